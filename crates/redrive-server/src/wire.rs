//! What goes over the wire: requests and answers, apart from how they are handled.

pub mod content;
pub mod event;
pub mod job;
pub mod key;
pub mod listing;
pub mod operation;
pub mod origin;
pub mod page;
pub mod policy;
pub mod preview;
pub mod queue;
pub mod status;
pub mod task;
pub mod why;
