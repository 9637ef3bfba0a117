//! How far a move has come, and what came of it.

use std::collections::BTreeMap;

use redrive_core::{JobId, Queue, State, Timestamp};

/// What a move is at.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// So many jobs still run at the source; the last lease ends at this time by the source's clock.
    Waiting {
        /// How many.
        running: u64,
        /// When none is left, at the latest, unless they go on.
        until: Option<Timestamp>,
        /// The source's time.
        now: Timestamp,
    },
    /// So many of about so many jobs are copied.
    Copying {
        /// How many were gone through.
        done: u64,
        /// How many there are, about.
        total: u64,
    },
    /// So many of about so many jobs are compared.
    Verifying {
        /// How many were gone through.
        done: u64,
        /// How many there are, about.
        total: u64,
    },
}

/// What came of a move.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Moved {
    /// It had ended before: only what was enqueued since was brought.
    pub again: bool,
    /// Jobs that the target has from the source; on a repeat those that were brought now.
    pub jobs: u64,
    /// The same, by queue and state.
    pub counts: BTreeMap<(Queue, State), u64>,
    /// Records that were written.
    pub records: u64,
    /// Records of the target that differ from the source's and stay, as `kind/id`.
    pub records_kept: Vec<String>,
    /// Jobs that had run at the target since and were left alone.
    pub ahead: Vec<JobId>,
    /// What stays at the source.
    pub left_behind: Vec<LeftBehind>,
}

/// A job that stays at the source.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftBehind {
    /// The job.
    pub id: JobId,
    /// Why.
    pub why: String,
}
