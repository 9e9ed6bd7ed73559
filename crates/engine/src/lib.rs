//! See the workspace README.
#![forbid(unsafe_code)]
