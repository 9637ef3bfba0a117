//! The library as a program uses it: one module for each part of its face.

mod admit;
mod batch;
mod context;
mod events;
mod middleware;
mod operate;
mod result;
mod schedule;
mod stage;
mod steps;
mod trace;
mod waits;
