//! The program as a user runs it.

mod bad_folder;
mod bench;
mod chat;
mod check;
mod documents;
mod help;
#[cfg(all(unix, feature = "hub"))]
mod hub;
mod inspect;
mod made_up;
mod process;
mod prove;
mod render;
mod run;
mod sampling;
mod score;
mod serve;
