//! The program as a user runs it.

mod help;
mod inspect;
mod process;
