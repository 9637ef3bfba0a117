//! The service as its users meet it: a process with sockets and files that is fed, watched, stopped and killed.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bodies;
mod console;
mod crash;
mod dead_letters;
mod document;
mod escalation;
mod events;
mod grpc;
mod identity;
mod jobs;
#[cfg(target_os = "linux")]
mod local_failures;
mod nodes;
mod outage;
mod readiness;
mod redis;
mod s3;
mod shutdown;
mod signing;
mod stage;
mod startup;
mod targets;
mod traces;
