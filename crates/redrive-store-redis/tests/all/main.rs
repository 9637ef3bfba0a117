//! Tests of the Redis store, on private servers and clusters.

mod cascade;
mod cluster;
mod conformance;
mod connection;
mod limits;
mod retention;
