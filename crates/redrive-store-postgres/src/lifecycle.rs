//! The life of a job: enqueue, claim, settle, extend, reclaim, prune.

pub(crate) mod claim;
pub(crate) mod enqueue;
pub(crate) mod extend;
pub(crate) mod held_claims;
pub(crate) mod job_tree;
pub(crate) mod prune;
pub(crate) mod reclaim;
pub(crate) mod scan_start;
pub(crate) mod settle;
pub(crate) mod settle_columns;
