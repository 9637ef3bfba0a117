//! Real servers and a browser for tests, and a proxy that injects faults. Each belongs to the value that started it and
//! ends with it.
//!
//! The servers are processes on loopback with their files in a temporary folder. A server or cluster that already runs
//! on the machine is not touched. They need Linux and the programs that `cargo xtask setup` installs.
//!
//! ```no_run
//! use redrive_testkit::servers::{Postgres, Proxy};
//!
//! let mut postgres = Postgres::start_with(&[("max_connections", "20")]);
//! let proxy = Proxy::start(([127, 0, 0, 1], postgres.port()).into());
//! let address = format!("postgres://redrive@{}/redrive", proxy.address());
//! // A client commits through this address, and does not get the answer.
//! proxy.cut_after_request(b"COMMIT");
//! // The server crashes, and recovers everything that it had committed.
//! postgres.kill();
//! postgres.restart();
//! ```

mod browser;
mod folder;
mod pgbouncer;
mod postgres;
mod process;
mod proxy;
mod redis;
mod s3;
mod template;

pub use browser::{Browser, DESKTOP, Element, PHONE};
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use proxy::Proxy;
pub use redis::{Redis, RedisCluster};
pub use s3::S3;
