//! Real servers for tests, and a browser, each private to the value that started it and gone with it, and faults on the
//! way to them.
//!
//! They are processes on loopback with their files in a temporary folder. A server or cluster that is already on the
//! machine is never touched. This needs Linux and what `cargo xtask setup` installs.
//!
//! ```no_run
//! use redrive_testkit::servers::{Postgres, Proxy};
//!
//! let mut postgres = Postgres::start_with(&[("max_connections", "20")]);
//! let proxy = Proxy::start(([127, 0, 0, 1], postgres.port()).into());
//! let address = format!("postgres://redrive@{}/redrive", proxy.address());
//! // A client commits at this address, and never hears of it.
//! proxy.cut_after_request(b"COMMIT");
//! // The server crashes, and comes back with what it had promised to keep.
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
