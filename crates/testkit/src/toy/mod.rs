//! The toy: [`ToyModel`] says what every row is, from the tokens alone; [`ToyTarget`] says the same as a line of ops;
//! [`ToyBackend`] runs those ops over paged K/V.
//!
//! ```text
//! hidden of a row   h0 = hash(seed, token, position)
//! layer that owns   key = hash(h, layer) is stored for the row
//! layer with K/V    h = hash(h, fold of the visible keys of its K/V, in ascending order)
//! recurrent layer   state = hash(state, h); h = hash(h, state)
//! logits            hash(h, token id), 24 bits
//! ```

mod backend;
mod model;
mod target;

pub use backend::ToyBackend;
pub(crate) use backend::to_row as key_row;
pub(crate) use model::mix;
pub use model::{TEXT_END, ToyLayer, ToyModel, ToyText, toy_text};
pub use target::ToyTarget;
pub(crate) use target::{HASH_WIDTH, TARGET_HEAD, group_spec, store_op};
