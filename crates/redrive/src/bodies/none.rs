//! A handle in a build without object stores.

use redrive_core::{Job, NewJob, Outcome};

use super::unequipped;
use crate::{Error, Redrive};

impl Redrive {
    /// Nothing is set aside; a store refuses what is too large for it, by name.
    pub(crate) async fn set_aside(&self, job: NewJob) -> Result<NewJob, Error> {
        Ok(job)
    }

    pub(super) async fn fetch_body(&self, _: &Job, _: &[u8]) -> Result<Vec<u8>, Outcome> {
        Err(unequipped("needs the feature \"bodies\" of the redrive crate"))
    }

    /// There is nothing to remove.
    pub(crate) async fn collect_bodies(&self) {
        std::future::pending().await
    }
}
