//! The server as its clients see it: on loopback, with the tiny model and its assistant.

mod api;
mod bad_requests;
mod client;
mod description;
mod field_bugs;
mod gate;
mod habits;
mod limits;
mod load;
mod same_text;
mod scoring;
mod setup;
