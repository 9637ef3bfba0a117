//! Runs every command and program of the guide or compares it with the code, and checks every link.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod blocks;
mod claims;
mod compare;
mod deploy;
mod links;
mod pages;
mod run;
