//! Takes over leases that have run out.

use redrive_core::store::{Claimed, ReclaimRequest};
use redrive_core::{Lease, StoreError, Timestamp};

use crate::open::Inner;
use crate::row::Taken;
use crate::{answer, script};

/// Leases that a script looks at.
const LOOKED_AT: usize = 1_000;

pub(crate) async fn reclaim(inner: &Inner, request: &ReclaimRequest) -> Result<Claimed, StoreError> {
    let number = fastrand::u64(..);
    let mut claimed = Claimed {
        jobs: Vec::new(),
        unreadable: Vec::new(),
        now: Timestamp::from_ms(i64::MIN),
        next_due: None,
        wake: inner.wakes(),
    };
    for partition in inner.in_turn() {
        let mut skip = 0;
        let held = held_in(inner, request, partition);
        loop {
            let left = request.limit - claimed.jobs.len() - claimed.unreadable.len();
            let mut arguments = inner.arguments();
            arguments.count(left);
            arguments.text(number);
            arguments.text(request.lease.as_millis());
            arguments.count(skip);
            arguments.count(request.kinds.len());
            request.kinds.iter().for_each(|kind| arguments.text(kind));
            arguments.count(held.len());
            held.iter().for_each(|lease| arguments.lease(inner, *lease));
            let [now, taken, passed, looked_at] =
                answer::parts(inner.run(&script::RECLAIM, partition, arguments).await?)?;
            claimed.now = claimed.now.max(answer::instant(now)?);
            let takes = Taken { inner, partition, claim: number, worker: None, started: None };
            let (jobs, unreadable) = takes.read(taken)?;
            claimed.jobs.extend(jobs);
            claimed.unreadable.extend(unreadable);
            skip += answer::number::<usize>(passed)?;
            let full = claimed.jobs.len() + claimed.unreadable.len() == request.limit;
            if full || answer::number::<usize>(looked_at)? < LOOKED_AT {
                break;
            }
        }
    }
    Ok(claimed)
}

/// The caller's leases of jobs in a partition, and of those whose partition is not known.
fn held_in(inner: &Inner, request: &ReclaimRequest, partition: usize) -> Vec<Lease> {
    let is_there = |lease: &&Lease| inner.homes.find(lease.id).is_none_or(|home| home.partition == partition);
    request.held.iter().filter(is_there).copied().collect()
}
