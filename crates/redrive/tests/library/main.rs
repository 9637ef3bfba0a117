//! The library as a program uses it: one module for each part of its face.

mod context;
mod stage;
