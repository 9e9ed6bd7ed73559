//! What the tests of Paceline share: a toy target that is a pure function of its history, drafters that do everything a
//! drafter should not, and the places of the recorded oracles and of the tiny model.
//!
//! The toy has no weights and no floating point. Its hidden states are hashes that run through paged K/V like a
//! real model's, so that a wrong block, a stale key or a wrong position changes the text; and [`ToyModel`]
//! computes the same text without any paging, from the tokens alone.
#![forbid(unsafe_code)]

mod assistant;
mod engine;
mod nasty;
mod own_kv;
pub mod paths;
mod toy;

pub use assistant::ToyAssistant;
pub use engine::{ToyDecoder, ToyDrafter, toy_engine, toy_engine_for};
pub use nasty::{Nasty, NastyDrafter};
pub use own_kv::ToyOwnKv;
pub use toy::{TEXT_END, ToyBackend, ToyLayer, ToyModel, ToyTarget, ToyText, toy_text};
