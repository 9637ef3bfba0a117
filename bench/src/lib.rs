//! Measures the engine and the service, and compares them with raw probes and peers. Most bars are ratios within one run, so that a slow
//! or noisy machine affects both sides.

pub mod bench;
mod comparison;
pub mod drain;
pub mod enqueue;
pub mod fail_fast;
pub mod figures;
pub mod jobs;
pub mod lag;
pub mod paste;
#[path = "../peers/payload.rs"]
mod payload;
pub mod peers;
pub mod pickup;
pub mod postgres;
pub mod probe;
pub mod redis;
pub mod retry;
pub mod service;
pub mod setup;
pub mod waiting;
