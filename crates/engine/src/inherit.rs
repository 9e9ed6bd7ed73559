//! Sequences that begin with the K/V of another one with the same prompt, as the choices of a request do.
//!
//! ```text
//! first      prompt read as ever; while it reads, its heirs wait and nobody overtakes them
//!            len >= P, the last block border below the prompt's end: heirs hold its blocks below P too, from now on
//! heir       rows P .. of the prompt (1 to 64), and on in blocks of its own
//! ```
//! A row's bits do not depend on who computed the rows before it, so an heir's text is that of reading the whole prompt. An heir that
//! is preempted reads all of it; where blocks are short, sharing ends first.

use paceline_backend::KV_BLOCK;

use crate::kv::KvCache;
use crate::sequence::Sequence;

/// Tokens of a sequence's prompt whose K/V it could have from another: whole blocks, and at least one token is left to be read.
/// None where all rows are wanted.
pub(crate) fn inheritable(sequence: &Sequence) -> usize {
    if sequence.scores(sequence.n_prompt) { 0 } else { (sequence.n_prompt - 1) / KV_BLOCK * KV_BLOCK }
}

/// Gives an heir without a slot the K/V that it waits for, once `from` has read so far; if it can not have it, it waits no more. Returns
/// the number of rows that it need not compute.
pub(crate) fn inherit(kv: &mut KvCache, from: &Sequence, heir: &mut Sequence) -> usize {
    let len = inheritable(heir);
    if from.len < len {
        return 0;
    }
    heir.heir_of = None;
    if from.tokens.get(..len) != heir.tokens.get(..len) {
        return 0;
    }
    let Some(shared) = kv.share(&from.kv, len) else { return 0 };
    (heir.kv, heir.len) = (shared, len);
    len
}
