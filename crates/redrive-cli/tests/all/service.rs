//! Tests of the service as a process: its API, its shutdown, and crashes.

mod bodies;
mod callbacks;
mod console;
mod crash;
mod dead_letters;
mod events;
mod grpc;
mod identity;
mod jobs;
#[cfg(target_os = "linux")]
mod node_problems;
mod nodes;
mod openapi;
mod outage;
mod readiness;
mod redis;
mod s3;
mod shutdown;
mod signing;
mod startup;
mod targets;
mod traces;
