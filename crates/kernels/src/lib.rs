//! Row-invariant CPU kernels: one numeric contract ([`numerics`]), the same bits at every level ([`isa`]).
//!
//! Every kernel here computes a row in the same operations and the same order whatever other rows are in the
//! call, however many threads help and whichever instruction set runs it. The plain `reference` functions are
//! that contract in code; every vector form must equal them bit for bit.
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod act;
pub mod attend;
pub mod each_row;
pub mod embed;
pub mod experts;
pub mod heads;
pub mod isa;
pub mod linear;
pub mod math;
pub mod memory;
pub mod norm;
pub mod numerics;
pub mod pool;
pub mod rope;
pub mod router;
pub mod select;
#[cfg(test)]
mod testing;
mod vector;
