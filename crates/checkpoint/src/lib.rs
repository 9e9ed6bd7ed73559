//! See the workspace README.
#![deny(unsafe_code)]
