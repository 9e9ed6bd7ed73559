//! The architectures: one file each, in forward order, as straight lines of backend ops.
#![forbid(unsafe_code)]

mod target;

pub use target::{Description, ExportLayer, Exports, Limits, Parameters, Target};
