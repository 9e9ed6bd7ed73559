//! See the README.
#![forbid(unsafe_code)]
fn main() {}
