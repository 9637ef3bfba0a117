//! The transport against real sockets: targets that fail, hang, drip, flood, lie, hide and move.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod connect;
mod dns;
mod grpc;
mod http;
mod ssrf;
mod stage;
mod tls;
