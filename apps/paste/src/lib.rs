//! A paste site: rows and jobs in one database, content in an object store, and nothing lost in between.
//!
//! Read it in this order: [`upload`] is the retry strategy, [`database`] the transactions, [`remove`] and [`sweep`] the removal of
//! pastes and blobs, [`site`] puts it all together.

pub mod arguments;
pub mod breaker;
pub mod cache;
pub mod code;
pub mod content;
pub mod database;
pub mod escape;
pub mod objects;
pub mod read;
pub mod remove;
pub mod routes;
pub mod site;
pub mod sweep;
pub mod token;
pub mod upload;
pub mod wire;
