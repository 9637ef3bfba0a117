//! Takes over expired leases.

use redrive_core::store::{ClaimedJobs, ReclaimRequest};
use redrive_core::{Lease, StoreError, Timestamp};

use crate::inner::Inner;
use crate::row::LeasedRows;
use crate::script::{self, reply};

/// Expired leases that the script reads in one call.
const LEASES_READ: usize = 1_000;

pub(crate) async fn reclaim(inner: &Inner, request: &ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
    let number = fastrand::u64(..);
    let mut claimed = ClaimedJobs {
        jobs: Vec::new(),
        unreadable: Vec::new(),
        now: Timestamp::from_ms(i64::MIN),
        next_due: None,
        wake: inner.wakes(),
    };
    for shard in inner.rotated_shards() {
        let mut skip = 0;
        let own = own_leases(inner, request, shard);
        loop {
            let remaining = request.limit - claimed.jobs.len() - claimed.unreadable.len();
            let mut arguments = inner.arguments();
            arguments.count(remaining);
            arguments.text(number);
            arguments.text(request.lease.as_millis());
            arguments.count(skip);
            arguments.count(request.kinds.len());
            request.kinds.iter().for_each(|kind| arguments.text(kind));
            arguments.count(own.len());
            own.iter().for_each(|lease| arguments.lease(inner, *lease));
            let [now, leased, skipped, read] =
                reply::parts(inner.run(&script::RECLAIM, shard, arguments).await?)?;
            claimed.now = claimed.now.max(reply::timestamp(now)?);
            let rows = LeasedRows { inner, shard, claim: number, worker: None, started: None };
            let (jobs, unreadable) = rows.read(leased)?;
            claimed.jobs.extend(jobs);
            claimed.unreadable.extend(unreadable);
            skip += reply::number::<usize>(skipped)?;
            let is_full = claimed.jobs.len() + claimed.unreadable.len() == request.limit;
            if is_full || reply::number::<usize>(read)? < LEASES_READ {
                break;
            }
        }
    }
    Ok(claimed)
}

/// The caller's own leases in a shard, and those whose shard is not cached.
fn own_leases(inner: &Inner, request: &ReclaimRequest, shard: usize) -> Vec<Lease> {
    let may_be_here =
        |lease: &&Lease| inner.locations.get(lease.id).is_none_or(|location| location.shard == shard);
    request.held.iter().filter(may_be_here).copied().collect()
}
