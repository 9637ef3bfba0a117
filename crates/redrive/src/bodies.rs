//! Payloads too large for a row: kept in an object store, named on the row, checked before the handler gets them.

#[cfg(feature = "bodies")]
mod kept;
#[cfg(not(feature = "bodies"))]
mod none;

use redrive_core::{Job, Outcome};

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

/// Another worker may be able to: that is a failure, and no reason to give the job up.
fn unequipped(needs: &str) -> Outcome {
    Outcome::fail(format!("the payload is in an object store, for which this worker {needs}"))
}
