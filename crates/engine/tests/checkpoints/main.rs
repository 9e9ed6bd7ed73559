//! The engine on real weights: the tiny model and the recorded oracles, plain and with their assistants.

mod bad_input;
mod bad_weights;
mod chains;
mod conversation;
mod dflash;
mod dflash_context;
mod draft_model;
mod files;
mod mixtures;
mod oracles;
mod padded;
mod preempted;
mod sampled;
mod setup;
mod tiny;
