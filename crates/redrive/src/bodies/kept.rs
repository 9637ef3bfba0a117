//! The object store of a handle.

use std::time::Duration;

use redrive_bodies::{Bodies, BodyRef, GetError, ORPHAN_AGE};
use redrive_core::{Failure, Fault, Job, NewJob, Outcome, StoreError};

use super::{INLINE_BYTES_MAX, REFERENCE, unequipped};
use crate::{Error, Redrive};

/// How long an attempt is put off whose payload cannot be had for now. It costs no attempt.
const PUT_OFF: Duration = Duration::from_secs(5);
/// Time from one search for bodies without a job to the next.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);
/// Bodies looked at in one read.
const COLLECT_ITEMS: usize = 100;

impl Redrive {
    /// A handle that keeps payloads over [`INLINE_BYTES_MAX`] in an object store: `file:FOLDER`, `s3://BUCKET/PREFIX`
    /// with the usual `AWS_…` variables, or `memory:` for tests. They may have up to 64 MiB then.
    ///
    /// Give it to everyone who enqueues or works on the store. A payload is there before its job is, and is checked
    /// before the handler gets it: one that is gone or damaged makes its job dead at once, for that reason. It is
    /// removed some time after its job is, by the workers.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import { rows: String }
    /// # impl Task for Import { const KIND: &'static str = "import"; type Output = usize; }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let address = "sqlite::memory:";
    /// let redrive = Redrive::open(address).await?.with_bodies("memory:")?;
    /// let rows = "x".repeat(1_000_000);
    /// let id = redrive.enqueue(Import { rows }).await?.id();
    /// # let worker = redrive.worker().on(|job: Import, _: Context| async move { Ok(job.rows.len()) });
    /// # worker.run_until(async { assert_eq!(redrive.result::<Import>(id).await.unwrap(), 1_000_000); }).await?;
    /// # Ok(()) }
    /// ```
    pub fn with_bodies(mut self, address: &str) -> Result<Self, Error> {
        let bodies = Bodies::open(address).map_err(|error| Error::Address(error.to_string()))?;
        self.bodies = Some(bodies);
        Ok(self)
    }

    /// Puts a large payload into the object store, and its name in its place.
    pub(crate) async fn set_aside(&self, mut job: NewJob) -> Result<NewJob, Error> {
        let Some(bodies) = self.bodies.as_ref().filter(|_| job.payload.len() > INLINE_BYTES_MAX) else {
            return Ok(job);
        };
        let backend = &**self.backend();
        let now = backend.stats().await?.now;
        let payload = std::mem::take(&mut job.payload);
        let body = bodies.put_for(backend, &job.tenant, job.id, payload, now).await?;
        job.payload = [REFERENCE, body.to_string().as_bytes()].concat();
        Ok(job)
    }

    pub(super) async fn fetch_body(&self, job: &Job, reference: &[u8]) -> Result<Vec<u8>, Outcome> {
        let lost = |why: String| Outcome::Reject(Failure::new(Fault::BodyLost, why));
        let Some(bodies) = &self.bodies else {
            return Err(unequipped("needs Redrive::with_bodies"));
        };
        let body: BodyRef = std::str::from_utf8(reference)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| lost("the payload names a body that cannot be".to_owned()))?;
        match bodies.whole(&body, &job.tenant).await {
            Ok(payload) => Ok(payload),
            Err(GetError::Lost(why)) => Err(lost(why)),
            Err(GetError::Unavailable(cause)) => {
                tracing::warn!(job = %job.id, %cause, "attempt put off: the object store is unavailable");
                Err(Outcome::Park(PUT_OFF))
            }
        }
    }

    /// Removes bodies that no job uses any more, now and then, for as long as it is polled.
    pub(crate) async fn collect_bodies(&self) {
        let Some(bodies) = &self.bodies else { return std::future::pending().await };
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            match self.collect_once(bodies).await {
                Ok(bodies) => tracing::debug!(bodies, "bodies without a job removed"),
                Err(error) => tracing::warn!(%error, "bodies could not be looked through"),
            }
        }
    }

    async fn collect_once(&self, bodies: &Bodies) -> Result<usize, StoreError> {
        let now = self.backend().stats().await?.now;
        bodies.collect(&**self.backend(), now, ORPHAN_AGE, COLLECT_ITEMS).await
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::testing::Harness;
    use crate::{Context, JobError, Task};

    #[derive(Serialize, Deserialize)]
    struct Import {
        rows: String,
    }

    impl Task for Import {
        const KIND: &'static str = "import";
        type Output = ();
    }

    #[tokio::test]
    async fn a_body_is_removed_after_its_job_and_not_before() {
        let harness = Harness::new(|worker| {
            worker.on(|_: Import, _: Context| async { Err::<(), _>(JobError::reject("no")) })
        });
        let harness = harness.with_redrive(|redrive| redrive.with_bodies("memory:").unwrap());
        let redrive = harness.redrive();
        let collect = || redrive.collect_once(redrive.bodies.as_ref().unwrap());
        let id = redrive.enqueue(Import { rows: "x".repeat(100_000) }).await.unwrap().id();
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(collect().await.unwrap(), 0, "it waits for its turn");
        harness.drain("default").await;
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(collect().await.unwrap(), 0, "it may be driven again");
        redrive.discard(id).await.unwrap();
        assert_eq!(collect().await.unwrap(), 1);
    }
}
