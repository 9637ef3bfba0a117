//! The tests of the SQLite store.

mod clock;
mod conformance;
mod file;
mod leases;
