//! Measures the engine and the service against raw probes and peers. Each bar is a ratio within one run, so that a noisy or slow machine
//! moves both sides.

pub mod bench;
#[cfg(feature = "servers")]
mod beside;
pub mod drain;
pub mod enqueue;
#[cfg(feature = "servers")]
pub mod fail_fast;
pub mod figures;
#[cfg(feature = "servers")]
pub mod jobs;
pub mod lag;
pub mod paste;
pub mod peers;
pub mod pickup;
#[cfg(feature = "servers")]
pub mod postgres;
pub mod probe;
#[cfg(feature = "servers")]
pub mod redis;
pub mod retry;
pub mod scene;
pub mod service;
pub mod waiting;
