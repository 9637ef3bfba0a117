//! What the test programs share that kill and break things: a program that is its own victim, the work that it does, and
//! the books that are checked afterwards.

pub(crate) mod books;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod work;
