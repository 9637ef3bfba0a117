//! A handle in a build without object stores.

use redrive_core::store::Enqueued;
use redrive_core::{Job, NewJob, Outcome};

use super::{Confirmations, unequipped};
use crate::{Error, Redrive};

impl Redrive {
    /// Nothing is set aside; a store refuses what is too large for it, by name.
    pub(crate) async fn set_aside(&self, job: NewJob) -> Result<NewJob, Error> {
        Ok(job)
    }

    /// No payload is set aside, so no repeat can be spared that.
    pub(crate) async fn find_repeats(&self, jobs: &mut [NewJob]) -> Result<Vec<Option<Enqueued>>, Error> {
        Ok(vec![None; jobs.len()])
    }

    /// There is no body to keep.
    pub(crate) async fn confirm(&self, _: Confirmations) {}

    pub(super) async fn fetch_body(&self, job: &Job, _: &[u8]) -> Result<Vec<u8>, Outcome> {
        Err(unequipped(job, "needs the feature \"bodies\" of the redrive crate"))
    }

    /// There is nothing to remove.
    pub(crate) async fn collect_bodies_hourly(&self) {
        std::future::pending().await
    }
}
