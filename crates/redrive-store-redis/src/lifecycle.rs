//! The life of a job: enqueue, claim, settle and extend, reclaim, prune.

pub(crate) mod claim;
pub(crate) mod enqueue;
pub(crate) mod job_tree;
pub(crate) mod prune;
pub(crate) mod reclaim;
pub(crate) mod settle;
