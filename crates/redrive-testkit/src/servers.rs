//! Real servers for tests, each private to the value that started it and gone with it, and faults on the way to them.
//!
//! They are processes on loopback with their files in a temporary folder. A server or cluster that is already on the
//! machine is never touched. This needs Linux and what `cargo xtask setup` installs.

mod folder;
mod postgres;
mod process;
mod template;

pub use postgres::Postgres;
