//! The JSON types of the HTTP API: its requests and answers. The service, the command line and the console
//! share them.

pub mod content;
pub mod count;
pub mod event;
pub mod filter;
pub mod group;
pub mod headers;
pub mod job;
pub mod key;
pub mod me;
pub mod millis;
pub mod node;
pub mod operation;
pub mod origin;
pub mod overview;
pub mod page;
pub mod peer;
pub mod policy;
pub mod preview;
pub mod problem;
pub mod queue;
pub mod replay;
pub mod schedule;
pub mod series;
pub mod session;
pub mod state;
pub mod task;
pub mod why;

pub use key::Scope;
pub use peer::Peer;
pub use problem::{Code, ProblemDetails};
