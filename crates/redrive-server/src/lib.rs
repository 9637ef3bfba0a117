//! The retry service: other programs hand it a call over HTTP, and it delivers the call under a policy.

pub mod api;
pub mod assemble;
pub mod auth;
mod creation;
pub mod demo;
pub mod error;
pub mod events;
mod extract;
mod groups;
mod jobs;
pub mod keys;
mod listen;
pub mod metrics;
mod nodes;
mod observe;
mod openapi;
mod operations;
mod overview;
mod parts;
mod policies;
mod routes;
mod sample;
mod series;
pub mod service;
mod tasks;
mod text;
mod troubles;
mod view;
mod walk;
pub mod wire;

pub use api::{Access, Api};
pub use assemble::{AssembleError, KeySource, Setup, assemble};
pub use error::{Code, Problem};
pub use service::{Config, Roles, Service, StartError};
pub use view::View;
