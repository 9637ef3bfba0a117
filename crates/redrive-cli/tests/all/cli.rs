//! Checks what each command prints, as text and as JSON, and its exit code.
//!
//! The output is compared with the `.txt` files in this folder. `UPDATE_SNAPSHOTS=1` writes these files again; read them
//! before you commit them. Ids, times and ports are replaced by words of the same width, so that tables stay aligned.

mod commands;
mod completions;
mod errors;
mod export;
mod guide;
mod library;
mod options;
mod pipes;
mod secrecy;
pub(crate) mod session;
mod terminal;
mod tls;
pub(crate) mod usage;
mod watch;
