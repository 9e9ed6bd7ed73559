//! The engine with the toy target: whatever drafts, whoever shares the batch, the text is that of plain decoding.

mod chains;
mod endings;
mod failures;
mod field_bugs;
mod handle;
mod harness;
mod kept;
mod ngram;
mod prediction;
mod recurrent;
mod same_text;
mod sampled;
mod sampled_bugs;
mod sampled_law;
