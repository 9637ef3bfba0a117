//! Payloads too large for a row: kept in an object store, named on the row, checked before the handler gets them.

#[cfg(feature = "bodies")]
mod kept;
#[cfg(not(feature = "bodies"))]
mod none;

use redrive_core::store::Enqueued;
use redrive_core::{Deferral, Job, JobId, NewJob, Outcome, Tenant, UniqueRule};

use crate::Redrive;

/// Bytes of a payload that stays on the job's row although the handle has an object store.
#[cfg(feature = "bodies")]
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// What the payload of a row begins with that only names where the payload is. No JSON begins like this.
const REFERENCE: &[u8] = b"redrive-body:";

impl Redrive {
    /// The whole payload of a job whose row only names it; none where the row has it. The error is what an attempt comes to
    /// that cannot have it.
    pub(crate) async fn fetch(&self, job: &Job) -> Result<Option<Vec<u8>>, Outcome> {
        match job.payload.strip_prefix(REFERENCE) {
            Some(reference) => self.fetch_body(job, reference).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The body of a job that may have replaced another: the store says only with the enqueue which job has it then.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "bodies"),
    expect(dead_code, reason = "without an object store nothing is set aside")
)]
pub(crate) struct UnconfirmedBody {
    tenant: Tenant,
    reference: Vec<u8>,
}

impl UnconfirmedBody {
    /// That of a job whose large payload was set aside.
    pub(crate) fn of(job: &NewJob) -> Option<Self> {
        let reference = job.payload.strip_prefix(REFERENCE).filter(|_| may_replace(job))?;
        Some(Self { tenant: job.tenant.clone(), reference: reference.to_vec() })
    }
}

/// Bodies with the jobs that they went to, once those are committed.
#[derive(Debug, Default)]
pub(crate) struct Confirmations(Vec<(UnconfirmedBody, JobId)>);

impl Confirmations {
    /// Notes which job an enqueue inside a transaction led to.
    pub(crate) fn note(&mut self, job: &NewJob, answer: Enqueued) {
        self.0.extend(UnconfirmedBody::of(job).map(|body| (body, answer.id())));
    }
}

impl FromIterator<(UnconfirmedBody, JobId)> for Confirmations {
    fn from_iter<I: IntoIterator<Item = (UnconfirmedBody, JobId)>>(bodies: I) -> Self {
        Self(bodies.into_iter().collect())
    }
}

fn may_replace(job: &NewJob) -> bool {
    job.unique.as_ref().is_some_and(|unique| unique.rule == UniqueRule::Replace)
}

fn put_off(job: &Job, reason: String) -> Outcome {
    tracing::warn!(job = %job.id, %reason, "attempt put off");
    Outcome::Defer(Deferral::with_backoff(job.epoch, reason))
}

/// Another worker may be able to, so the job waits.
fn unequipped(job: &Job, needs: &str) -> Outcome {
    put_off(job, format!("the payload is in an object store, for which this worker {needs}"))
}
