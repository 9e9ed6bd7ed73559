//! The engine on real weights: the tiny model and the recorded oracles, plain and with their assistants.

mod bad_input;
mod oracles;
mod sampled;
mod setup;
mod tiny;
