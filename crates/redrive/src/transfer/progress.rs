//! The progress and the result of a move.

use std::collections::BTreeMap;

use redrive_core::{JobId, Queue, State, Timestamp};

/// The progress of a move.
#[derive(Debug, Clone, PartialEq)]
pub enum MoveProgress {
    /// The move waits for jobs that still run at the source.
    Waiting {
        /// The number of running jobs.
        running: u64,
        /// When the last of their leases ends, unless it is renewed.
        until: Option<Timestamp>,
        /// The source's time.
        now: Timestamp,
    },
    /// The move copies jobs.
    Copying {
        /// Jobs read so far.
        done: u64,
        /// The approximate number of all jobs.
        total: u64,
    },
    /// The move compares the jobs of both stores.
    Verifying {
        /// Jobs compared so far.
        done: u64,
        /// The approximate number of all jobs.
        total: u64,
    },
}

/// The result of a move.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoveResult {
    /// Whether an earlier run had finished the move. Then this run moved only the jobs that were enqueued since.
    pub repeated: bool,
    /// The number of jobs that were moved; on a repeat, by this run.
    pub jobs: u64,
    /// The same, by queue and state.
    pub counts: BTreeMap<(Queue, State), u64>,
    /// The number of records that were moved.
    pub records: u64,
    /// Records of the target that differ from those of the source and were kept, as `kind/id`.
    pub records_kept: Vec<String>,
    /// Jobs that have already run at the target and were not replaced.
    pub ahead: Vec<JobId>,
    /// Jobs that stay at the source.
    pub left_behind: Vec<UnmovedJob>,
}

/// A job that could not be moved.
#[derive(Debug, Clone, PartialEq)]
pub struct UnmovedJob {
    /// The job.
    pub id: JobId,
    /// Why it could not be moved.
    pub why: String,
}
