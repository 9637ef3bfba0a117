//! The calls of the module `object_store`, in a build without the feature `bodies`.

use redrive_core::store::EnqueueResult;
use redrive_core::{Job, NewJob, Outcome};

use super::{BodyConfirmations, defer_without_object_store};
use crate::{Error, Redrive};

impl Redrive {
    /// Changes nothing. The store rejects a payload that is too large for it.
    pub(crate) async fn store_large_payload(&self, job: NewJob) -> Result<NewJob, Error> {
        Ok(job)
    }

    /// Finds nothing, because no payload goes to an object store.
    pub(crate) async fn find_repeats(
        &self,
        jobs: &mut [NewJob],
    ) -> Result<Vec<Option<EnqueueResult>>, Error> {
        Ok(vec![None; jobs.len()])
    }

    /// Does nothing, because there are no bodies.
    pub(crate) async fn confirm_bodies(&self, _: BodyConfirmations) {}

    pub(super) async fn fetch_body(&self, job: &Job, _: &[u8]) -> Result<Vec<u8>, Outcome> {
        Err(defer_without_object_store(job, "needs the feature \"bodies\" of the redrive crate"))
    }

    /// Never returns, because there is nothing to collect.
    pub(crate) async fn collect_bodies_hourly(&self) {
        std::future::pending().await
    }
}
