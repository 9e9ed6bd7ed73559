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
//! # Example
//! ```
//! use paceline::{Activation, Inexact, Loader, ModelFolder, Request, Sizes, TokenId, cpu_backend};
//!
//! # let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-gemma4"));
//! let folder = ModelFolder::open(path)?;
//! let loader = Loader {
//!     folder: &folder,
//!     drafter: None,
//!     sizes: Sizes::single(256),
//!     inexact: Inexact::Refuse,
//!     progress: &mut |_layers| {},
//! };
//! let mut model = loader.load(cpu_backend(Activation::Bf16)?)?;
//!
//! let tokenizer = model.tokenizer.as_ref().expect("the folder has a tokenizer");
//! let prompt = tokenizer.encode("Once upon a time")?.into_iter().map(TokenId).collect();
//! let completion = model.engine.generate(Request::new(prompt, 20))?;
//! assert_eq!(completion.token_ids.len(), 20);
//! println!("{}", completion.text.expect("there is a tokenizer"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
mod load;
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
pub use load::{LoadError, Loader, Model, cpu_backend, suggested_drafts, text_decoder};
pub use paceline_backend::{Activation, BackendInfo, TokenId};
pub use paceline_checkpoint::{Inexact, ModelFolder, Tokenizer};
pub use paceline_models::Description;
pub use request::{DraftSettings, Request, RequestId};
pub use sizes::{Sizes, block_bytes};
pub use statistics::DraftStatistics;
pub use text::{Detokenizer, TextDecoder};
