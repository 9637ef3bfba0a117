//! The object store of a handle: puts large payloads into it, reads them, and deletes unused ones.

use std::time::Duration;

use redrive_bodies::{
    AttachError, Bodies, BodyRef, GetError, ORPHAN_AGE, PutError, attach, attach_to_replacement,
    confirm_attached,
};
use redrive_core::store::EnqueueResult;
use redrive_core::{Failure, FailureKind, Job, JobId, NewJob, Outcome};

use super::{
    BodyConfirmations, INLINE_BYTES_MAX, REFERENCE, UnconfirmedBody, defer, defer_without_object_store,
    may_replace,
};
use crate::{Error, Redrive};

/// Time between two searches for unused bodies.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);
/// Records of bodies in one read.
const COLLECT_ITEMS: usize = 100;

impl Redrive {
    /// A handle that puts payloads larger than [`INLINE_BYTES_MAX`] into an object store, up to 64 MiB each. The address is
    /// `file:FOLDER`, `s3://BUCKET/PREFIX` with the usual `AWS_…` variables, or `memory:` for tests.
    ///
    /// Every program that enqueues to the store or runs workers on it needs the same object store: a bucket, or a folder that all
    /// of them share. A payload is stored before its job, and verified before the handler gets it. If it is gone or damaged, the
    /// job is dead at once, with the reason `body_lost`. If a worker cannot reach it, the job waits, and its last error says why.
    /// Workers delete the payload some time after the job was removed.
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

    /// Puts a large payload into the object store, and replaces it with a reference.
    pub(crate) async fn store_large_payload(&self, mut job: NewJob) -> Result<NewJob, Error> {
        let Some(bodies) = self.bodies.as_ref().filter(|_| job.payload.len() > INLINE_BYTES_MAX) else {
            return Ok(job);
        };
        let backend = &**self.backend();
        let now = backend.stats().await?.now;
        let payload = std::mem::take(&mut job.payload);
        let body = bodies.put_bytes(backend, &job.tenant, payload, now).await?;
        let attached = if may_replace(&job) {
            attach_to_replacement(backend, &body, &job.tenant, job.id, now).await
        } else {
            attach(backend, &body, &job.tenant, job.id, now).await
        };
        attached.map_err(attach_error)?;
        job.payload = [REFERENCE, body.to_string().as_bytes()].concat();
        Ok(job)
    }

    /// Finds the jobs with large payloads that repeat an earlier enqueue, so that their payloads are not stored again. Returns the
    /// result for each repeat, and none for every other job.
    pub(crate) async fn find_repeats(
        &self,
        jobs: &mut [NewJob],
    ) -> Result<Vec<Option<EnqueueResult>>, Error> {
        let mut results = vec![None; jobs.len()];
        let is_large = |job: &NewJob| job.idempotency.is_some() && job.payload.len() > INLINE_BYTES_MAX;
        let large: Vec<usize> = (0..jobs.len()).filter(|n| is_large(&jobs[*n])).collect();
        if self.bodies.is_none() || large.is_empty() {
            return Ok(results);
        }
        let searched = large.iter().map(|n| without_payload(&mut jobs[*n])).collect();
        for (n, result) in large.iter().zip(self.backend().find(searched).await?) {
            results[*n] = result;
        }
        Ok(results)
    }

    /// Records which job uses each body, for enqueues that may have replaced another job. If that fails, the collector searches
    /// for the job before it deletes the body.
    pub(crate) async fn confirm_bodies(&self, BodyConfirmations(bodies): BodyConfirmations) {
        for (body, job) in bodies {
            if let Err(error) = self.confirm_body(&body, job).await {
                tracing::warn!(%job, %error, "could not record which job uses a body; the collector searches for it later");
            }
        }
    }

    async fn confirm_body(&self, body: &UnconfirmedBody, job: JobId) -> Result<(), AttachError> {
        let Some(reference) = parse(&body.reference) else { return Ok(()) };
        confirm_attached(&**self.backend(), &reference, &body.tenant, job).await
    }

    pub(super) async fn fetch_body(&self, job: &Job, reference: &[u8]) -> Result<Vec<u8>, Outcome> {
        let lost = |why: String| Outcome::Reject(Failure::new(FailureKind::BodyLost, why));
        let Some(bodies) = &self.bodies else {
            return Err(defer_without_object_store(job, "needs Redrive::with_bodies"));
        };
        let body = parse(reference)
            .ok_or_else(|| lost("the payload has an invalid reference to a body".to_owned()))?;
        match bodies.get_bytes(&**self.backend(), &body, &job.tenant).await {
            Ok(payload) => Ok(payload),
            Err(GetError::Lost(why)) => Err(lost(why)),
            Err(error @ GetError::OtherLocation { .. }) => Err(defer(job, error.to_string())),
            Err(GetError::Unavailable(cause)) => {
                Err(defer(job, format!("the payload cannot be read at the moment: {cause}")))
            }
        }
    }

    /// Deletes the large payloads that no job uses any more, and returns how many it deleted. Every worker with an object store
    /// does this once an hour. Call it to free the space now, for example after [`Redrive::discard_all`].
    ///
    /// A payload is kept for at least a day after it was stored, because its job may not be enqueued yet. Concurrent calls are
    /// harmless. Fails for a handle without [`Redrive::with_bodies`].
    ///
    /// ```
    /// # use redrive::Redrive;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// let redrive = Redrive::open("sqlite::memory:").await?.with_bodies("memory:")?;
    /// let deleted = redrive.collect_bodies().await?;
    /// # assert_eq!(deleted, 0);
    /// # Ok(()) }
    /// ```
    pub async fn collect_bodies(&self) -> Result<usize, Error> {
        let bodies = self.bodies.as_ref().ok_or_else(|| {
            Error::Address("this handle has no object store; add one with Redrive::with_bodies".to_owned())
        })?;
        let now = self.backend().stats().await?.now;
        Ok(bodies.collect(&**self.backend(), now, ORPHAN_AGE, COLLECT_ITEMS).await?)
    }

    /// Collects unused bodies once per [`COLLECT_EVERY`]. Never returns.
    pub(crate) async fn collect_bodies_hourly(&self) {
        if self.bodies.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            match self.collect_bodies().await {
                Ok(bodies) => tracing::debug!(bodies, "unused bodies deleted"),
                Err(error) => tracing::warn!(%error, "unused bodies could not be deleted"),
            }
        }
    }
}

fn parse(reference: &[u8]) -> Option<BodyRef> {
    std::str::from_utf8(reference).ok()?.parse().ok()
}

/// A copy of a job without its payload, which is too large to copy.
fn without_payload(job: &mut NewJob) -> NewJob {
    let payload = std::mem::take(&mut job.payload);
    let copy = job.clone();
    job.payload = payload;
    copy
}

fn attach_error(error: AttachError) -> Error {
    match error {
        AttachError::Store(error) => error.into(),
        AttachError::Gone | AttachError::TooManyTasks => PutError::Store(Box::new(error)).into(),
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
    async fn a_body_is_deleted_after_its_job_and_not_before() {
        let harness = Harness::new(|worker| {
            worker.on(|_: Import, _: Context| async { Err::<(), _>(JobError::reject("no")) })
        });
        let harness = harness.with_redrive(|redrive| redrive.with_bodies("memory:").unwrap());
        let redrive = harness.redrive();
        let id = redrive.enqueue(Import { rows: "x".repeat(100_000) }).await.unwrap().id();
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(redrive.collect_bodies().await.unwrap(), 0, "the job has not run");
        harness.drain("default").await;
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(redrive.collect_bodies().await.unwrap(), 0, "the job can be redriven");
        redrive.discard(id).await.unwrap();
        assert_eq!(redrive.collect_bodies().await.unwrap(), 1);
        assert_eq!(redrive.collect_bodies().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_handle_without_an_object_store_refuses_to_collect() {
        let redrive = Redrive::open("sqlite::memory:").await.unwrap();
        let error = redrive.collect_bodies().await.unwrap_err();
        assert!(error.to_string().contains("Redrive::with_bodies"), "{error}");
    }
}
