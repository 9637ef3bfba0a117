//! Payloads that are too large for a row. The object store holds the payload, the row holds a reference to it, and the worker
//! verifies the payload before the handler gets it.

#[cfg(not(feature = "bodies"))]
mod disabled;
#[cfg(feature = "bodies")]
mod object_store;

use redrive_core::store::EnqueueResult;
use redrive_core::{Deferral, Job, JobId, NewJob, Outcome, Tenant, UniqueRule};

use crate::Redrive;

/// The largest payload, in bytes, that stays on the row of the job. A larger one goes to the object store, if there is one.
#[cfg(feature = "bodies")]
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// The prefix of a payload that is only a reference. No JSON begins with it.
const REFERENCE: &[u8] = b"redrive-body:";

impl Redrive {
    /// Reads the payload of a job from the object store. Returns none if the row holds the payload. The error is the outcome of an
    /// attempt that cannot get its payload.
    pub(crate) async fn fetch_payload(&self, job: &Job) -> Result<Option<Vec<u8>>, Outcome> {
        match job.payload.strip_prefix(REFERENCE) {
            Some(reference) => self.fetch_body(job, reference).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The body of an enqueue that may replace another job. Only the result of the enqueue says which job uses the body.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "bodies"),
    expect(dead_code, reason = "without an object store there are no bodies")
)]
pub(crate) struct UnconfirmedBody {
    tenant: Tenant,
    reference: Vec<u8>,
}

impl UnconfirmedBody {
    /// Returns none if the payload is on the row, or if the enqueue cannot replace another job.
    pub(crate) fn of(job: &NewJob) -> Option<Self> {
        let reference = job.payload.strip_prefix(REFERENCE).filter(|_| may_replace(job))?;
        Some(Self { tenant: job.tenant.clone(), reference: reference.to_vec() })
    }
}

/// Bodies and the jobs that use them, to be confirmed once the enqueues are committed.
#[derive(Debug, Default)]
pub(crate) struct BodyConfirmations(Vec<(UnconfirmedBody, JobId)>);

impl BodyConfirmations {
    /// Adds the body of an enqueue with its result.
    pub(crate) fn add(&mut self, job: &NewJob, result: EnqueueResult) {
        self.0.extend(UnconfirmedBody::of(job).map(|body| (body, result.id())));
    }
}

impl FromIterator<(UnconfirmedBody, JobId)> for BodyConfirmations {
    fn from_iter<I: IntoIterator<Item = (UnconfirmedBody, JobId)>>(bodies: I) -> Self {
        Self(bodies.into_iter().collect())
    }
}

fn may_replace(job: &NewJob) -> bool {
    job.unique.as_ref().is_some_and(|unique| unique.rule == UniqueRule::Replace)
}

fn defer(job: &Job, reason: String) -> Outcome {
    tracing::warn!(job = %job.id, %reason, "attempt deferred");
    Outcome::Defer(Deferral::with_backoff(job.lease_count(), reason))
}

/// Defers the attempt, because another worker may have an object store.
fn defer_without_object_store(job: &Job, needs: &str) -> Outcome {
    defer(job, format!("the payload is in an object store, and to read it this worker {needs}"))
}
