//! Exact fast decoding: the text of plain decoding, faster through drafts.
//!
//! A small *drafter* proposes the next few tokens, the *target* model verifies them all in one pass, and what it would have
//! chosen itself is kept. Because every row of a pass is computed in the same operations whatever other rows are in it
//! (`paceline_backend`), the text is the same bits with any drafter, any number of drafts, any company in the batch, any
//! prompt chunk and after preemption.
//!
//! Where to look: [`Engine`] takes a [`Request`] and tells of [`Event`]s, round by round; [`EngineHandle`] is the same on a
//! thread of its own; [`Sizes`] bound the memory. Inside, `round.rs` is
//! the heart (draft, verify, choose, commit), `scheduler.rs` decides who takes part, `kv/` who holds which memory.
//!
//! # What it does not do
//! It opens no socket and reads no clock. It does not decide which drafts are right: the target alone does. It does not read
//! a value from the backend between the draft and the end of a round.
#![forbid(unsafe_code)]

mod admission;
pub mod drafters;
mod engine;
mod error;
mod events;
mod handle;
mod kv;
mod request;
mod round;
mod scheduler;
mod sequence;
mod sizes;
mod statistics;
mod stop;
mod text;

pub use engine::{Engine, EngineParts};
pub use error::{Broken, BuildError, Failed, GenerateError, Refused};
pub use events::{Completion, Event, FinishReason, Finished, Usage};
pub use handle::{EngineHandle, Events};
pub use paceline_backend::{Activation, BackendInfo, TokenId};
pub use paceline_models::Description;
pub use request::{DraftSettings, Request, RequestId};
pub use sizes::{Sizes, block_bytes};
pub use statistics::DraftStatistics;
pub use text::{Detokenizer, TextDecoder};
