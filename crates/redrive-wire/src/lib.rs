//! What goes over the wire: requests and answers, apart from how they are handled. A program that calls the service
//! writes and reads the same types.

pub mod content;
pub mod count;
pub mod event;
pub mod filter;
pub mod group;
pub mod job;
pub mod key;
pub mod listing;
pub mod me;
pub mod node;
pub mod operation;
pub mod origin;
pub mod overview;
pub mod page;
pub mod policy;
pub mod preview;
pub mod queue;
pub mod replay;
pub mod schedule;
pub mod series;
pub mod session;
pub mod status;
pub mod task;
pub mod why;

pub use crate::error::{Code, ProblemDetails};
pub use crate::keys::Scope;
pub use redrive_delivery::headers::{MASK, is_sensitive};
