//! The servers for tests: they answer, survive crashes, fail on demand, and leave nothing behind.

mod client;
mod pgbouncer;
mod postgres;
mod proxy;
mod s3;
