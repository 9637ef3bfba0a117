//! Ends the descendants of jobs that ended early.
//!
//! A script ends a bounded number of jobs. It marks a job that has live descendants left, and the caller ends those before it
//! returns. After a crash the sweep ([`crate::steps::sweep`]) does it.

use redis::Value;
use redrive_core::{JobId, StoreError};

use crate::inner::{Inner, ShardedCall};
use crate::limits;
use crate::script::{self, Arguments, reply};

/// Runs a script that may end jobs, and reads its answer for each of `ids`. When this returns, the descendants of the jobs that it
/// ended have ended too, and the slots that they freed are granted.
pub(crate) async fn run<T>(
    inner: &Inner,
    ids: &[JobId],
    call: ShardedCall<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
    parse: impl Fn(Value) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut follow_ups = Vec::new();
    let read = |shard, value| {
        let (answers, follow_up) = FollowUp::read(shard, value)?;
        follow_ups.push(follow_up);
        reply::items(answers)?.into_iter().map(&parse).collect()
    };
    let answers = inner.run_for_jobs(ids, call, read).await?;
    for follow_up in follow_ups {
        follow_up.run(inner).await?;
    }
    Ok(answers)
}

/// The work that a script leaves to its caller; `reply_with_follow_up` in `job_tree.lua` writes it.
pub(crate) struct FollowUp {
    shard: usize,
    /// Scopes in which a job freed its slot.
    freed_scopes: Vec<String>,
    /// Whether the cancel of a running job was requested.
    cancel_requested: bool,
    /// Whether jobs that have ended still have live descendants.
    descendants_left: bool,
}

impl FollowUp {
    /// Separates the answers of a script from the follow-up.
    pub(crate) fn read(shard: usize, value: Value) -> Result<(Value, Self), StoreError> {
        let [answers, freed, requested, left] = reply::parts(value)?;
        let follow_up = Self {
            shard,
            freed_scopes: reply::texts(freed)?,
            cancel_requested: requested == Value::Int(1),
            descendants_left: left == Value::Int(1),
        };
        Ok((answers, follow_up))
    }

    /// Notifies workers of cancel requests, grants free slots, and ends the remaining descendants.
    pub(crate) async fn run(self, inner: &Inner) -> Result<(), StoreError> {
        let (shard, descendants_left) = (self.shard, self.descendants_left);
        self.notify_and_grant(inner).await?;
        if descendants_left { end_descendants(inner, shard).await } else { Ok(()) }
    }

    async fn notify_and_grant(self, inner: &Inner) -> Result<(), StoreError> {
        inner.notify_cancel_if(self.cancel_requested);
        limits::grant_free_slots(inner, self.shard, self.freed_scopes).await
    }
}

/// Ends the descendants of ended jobs of a shard, a bounded number in each script.
pub(crate) async fn end_descendants(inner: &Inner, shard: usize) -> Result<(), StoreError> {
    loop {
        let value = inner.run(&script::CANCEL_DESCENDANTS, shard, inner.arguments()).await?;
        let (_, follow_up) = FollowUp::read(shard, value)?;
        let descendants_left = follow_up.descendants_left;
        follow_up.notify_and_grant(inner).await?;
        if !descendants_left {
            return Ok(());
        }
    }
}

/// Ends the descendants of ended jobs on every shard.
pub(crate) async fn end_all_descendants(inner: &Inner) -> Result<(), StoreError> {
    for shard in 0..inner.layout.shards {
        end_descendants(inner, shard).await?;
    }
    Ok(())
}
