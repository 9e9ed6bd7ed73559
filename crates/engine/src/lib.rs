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
//! use std::sync::Arc;
//!
//! use paceline::{Activation, Inexact, Isa, LoadOptions, ModelFolder, Request, Sizes, TokenId, load};
//!
//! # let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-gemma4"));
//! let folder = ModelFolder::open(path)?;
//! let tokenizer = Arc::new(folder.tokenizer()?.ok_or("the folder has no tokenizer")?);
//! let mut engine = load(&folder, LoadOptions {
//!     isa: Isa::best().0,
//!     threads: 2,
//!     activation: Activation::Bf16,
//!     sizes: Sizes::single(256),
//!     inexact: Inexact::Refuse,
//!     draft: None,
//!     tokenizer: Some(tokenizer.clone()),
//!     progress: &mut |_layers, _of| {},
//! })?;
//!
//! let prompt = tokenizer.encode("Once upon a time")?.into_iter().map(TokenId).collect();
//! let completion = engine.generate(Request::new(prompt, 20))?;
//! assert_eq!(completion.token_ids.len(), 20);
//! println!("{}", completion.text.unwrap_or_default());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Drafts, many requests, events
//! An engine with a drafter, on a thread of its own. What is drafted, who else runs and when a request came change no text.
//! ```
//! use paceline::drafters::{AssistantConventions, DraftBlock};
//! use paceline::{DraftOptions, DraftSource, EngineHandle, Event};
//! # use std::sync::Arc;
//! # use paceline::{Activation, Inexact, Isa, LoadOptions, ModelFolder, Request, Sizes, TokenId, load};
//! # let assets = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets"));
//! # let folder = ModelFolder::open(&assets.join("tiny-gemma4"))?;
//! # let tokenizer = Arc::new(folder.tokenizer()?.ok_or("the folder has no tokenizer")?);
//! # let path = assets.join("tiny-gemma4-assistant");
//!
//! let assistant = ModelFolder::open(&path)?;
//! let engine = load(&folder, LoadOptions {
//!     sizes: Sizes { n_slots: 4, ..Sizes::single(256) }, // four texts at a time, others wait
//!     draft: Some(DraftOptions {
//!         sources: vec![DraftSource::Checkpoint(&assistant)],
//!         tokens_per_round: None, // as many as the assistant suggests
//!         confidence: 0.0,
//!         assistant: AssistantConventions::default(),
//!         block: DraftBlock::default(),
//!     }),
//!     // the rest as above
//! #   isa: Isa::best().0,
//! #   threads: 2,
//! #   activation: Activation::Bf16,
//! #   inexact: Inexact::Refuse,
//! #   tokenizer: Some(tokenizer.clone()),
//! #   progress: &mut |_layers, _of| {},
//! })?;
//! let engine = EngineHandle::spawn(engine)?;
//!
//! # let prompt: Vec<_> = tokenizer.encode("Once upon a time")?.into_iter().map(TokenId).collect();
//! let mut request = Request::new(prompt.clone(), 20);
//! (request.sampling.temperature, request.sampling.seed) = (0.8, Some(7));
//! let drawn = engine.submit(request)?;
//! let other = engine.submit(Request::new(prompt, 200))?;
//! for event in drawn {
//!     match event {
//!         Event::Token { text, .. } => print!("{}", text.unwrap_or_default()),
//!         Event::Finished(finished) => {
//!             let draft = finished.draft.ok_or("there is a drafter")?;
//!             println!("\n{} drafts in {} rounds, {} accepted", draft.drafted, draft.rounds, draft.accepted);
//!         }
//!         Event::Failed(failed) => return Err(failed.into()),
//!         _ => {} // how far the prompt is read, and what is new in later versions
//!     }
//! }
//! drop(other); // cancels it
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
mod inherit;
mod kept;
mod kv;
mod load;
mod request;
mod round;
mod sampling;
mod scheduler;
mod sequence;
mod sizes;
mod statistics;
mod status;
mod stop;
mod text;

pub use engine::{Engine, EngineParts};
pub use error::{Broken, BuildError, Failed, GenerateError, Refused};
pub use events::{Completion, Event, FinishReason, Finished, Usage};
pub use handle::{EngineHandle, Events, Ticket};
pub use load::{DraftOptions, DraftSource, LoadError, LoadOptions, MemoryNeeded, load, load_parts};
pub use paceline_backend::{Activation, BackendInfo, Distribution, Isa, TokenId};
pub use paceline_checkpoint::{GenerationConfig, Inexact, ModelFolder, NumberError, Tokenizer, parse_number};
pub use paceline_models::Description;
pub use request::{DraftSettings, Request, RequestId};
pub use sampling::{LogprobOptions, Logprobs, SamplingOptions, draw_seed};
pub use sizes::Sizes;
pub use statistics::{DraftStatistics, RoundTimes, SourceStatistics};
pub use status::{DraftTotals, EngineStatus, KvBlocks};
pub use text::{Detokenizer, TextDecoder};
