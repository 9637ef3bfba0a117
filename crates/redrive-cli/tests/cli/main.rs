//! The command line as people and scripts meet it: what each command prints, for both, and how it ends.
//!
//! What is printed is compared with the `.txt` files beside this one; `UPDATE_SNAPSHOTS=1` writes them anew, to be read
//! before they are committed. Ids, times and ports are replaced by words of the same width, so that tables stay aligned.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod commands;
mod errors;
mod export;
mod follow;
mod guide;
mod library;
mod options;
mod pipes;
mod secrecy;
mod session;
mod shells;
mod terminal;
mod tls;
mod usage;

#[path = "../service/stage/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of the service need more of it")]
mod stage;
