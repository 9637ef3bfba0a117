//! Every command and snippet of the guide is run or held against the code, and every link leads somewhere.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod blocks;
mod compare;
mod deploy;
mod links;
mod pages;
mod perform;
mod proofs;
