//! Tests of the transport with real sockets and targets that misbehave.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod connect;
mod dns;
mod fixture;
mod grpc;
mod http;
mod ssrf;
mod tls;
