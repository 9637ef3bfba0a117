//! The object store of a handle.

use std::time::Duration;

use redrive_bodies::{
    Bodies, BodyRef, ClaimError, GetError, ORPHAN_AGE, PutError, claim_for, claim_for_replacement,
    confirm_user,
};
use redrive_core::store::Enqueued;
use redrive_core::{Failure, Fault, Job, JobId, NewJob, Outcome};

use super::{Confirmations, INLINE_BYTES_MAX, REFERENCE, UnconfirmedBody, may_replace, put_off, unequipped};
use crate::{Error, Redrive};

/// Time from one search for bodies without a job to the next.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);
/// Bodies looked at in one read.
const COLLECT_ITEMS: usize = 100;

impl Redrive {
    /// A handle that keeps payloads over [`INLINE_BYTES_MAX`] in an object store: `file:FOLDER`, `s3://BUCKET/PREFIX`
    /// with the usual `AWS_…` variables, or `memory:` for tests. They may have up to 64 MiB then.
    ///
    /// Give it to everyone who enqueues or works on the store, with the same place: a folder that all of them share, or a
    /// bucket. A payload is there before its job is, and is checked before the handler gets it: one that is gone or damaged
    /// makes its job dead at once, for that reason. A job whose payload cannot be reached from a worker waits, and its last
    /// error says why. The payload is removed some time after its job is, by the workers.
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
        let body = bodies.put_bytes(backend, &job.tenant, payload, now).await?;
        let claimed = if may_replace(&job) {
            claim_for_replacement(backend, &body, &job.tenant, job.id, now).await
        } else {
            claim_for(backend, &body, &job.tenant, job.id, now).await
        };
        claimed.map_err(unclaimed)?;
        job.payload = [REFERENCE, body.to_string().as_bytes()].concat();
        Ok(job)
    }

    /// The answers to those jobs that repeat an earlier enqueue, so that their large payloads are not stored again. Others
    /// are left to the enqueue itself.
    pub(crate) async fn find_repeats(&self, jobs: &mut [NewJob]) -> Result<Vec<Option<Enqueued>>, Error> {
        let mut answers = vec![None; jobs.len()];
        let is_large = |job: &NewJob| job.idempotency.is_some() && job.payload.len() > INLINE_BYTES_MAX;
        let large: Vec<usize> = (0..jobs.len()).filter(|n| is_large(&jobs[*n])).collect();
        if self.bodies.is_none() || large.is_empty() {
            return Ok(answers);
        }
        let asked = large.iter().map(|n| without_payload(&mut jobs[*n])).collect();
        for (n, answer) in large.iter().zip(self.backend().find(asked).await?) {
            answers[*n] = answer;
        }
        Ok(answers)
    }

    /// Notes which jobs have the bodies of enqueues that may have replaced others. What cannot be noted now is found by the
    /// collector before it deletes anything.
    pub(crate) async fn confirm(&self, Confirmations(bodies): Confirmations) {
        for (body, job) in bodies {
            if let Err(error) = self.confirm_one(&body, job).await {
                tracing::warn!(%job, %error, "the job's large payload could not be noted as its own; it is looked for later");
            }
        }
    }

    async fn confirm_one(&self, body: &UnconfirmedBody, job: JobId) -> Result<(), ClaimError> {
        let Some(reference) = parse(&body.reference) else { return Ok(()) };
        confirm_user(&**self.backend(), &reference, &body.tenant, job).await
    }

    pub(super) async fn fetch_body(&self, job: &Job, reference: &[u8]) -> Result<Vec<u8>, Outcome> {
        let lost = |why: String| Outcome::Reject(Failure::new(Fault::BodyLost, why));
        let Some(bodies) = &self.bodies else {
            return Err(unequipped(job, "needs Redrive::with_bodies"));
        };
        let body =
            parse(reference).ok_or_else(|| lost("the payload names a body that cannot be".to_owned()))?;
        match bodies.whole(&**self.backend(), &body, &job.tenant).await {
            Ok(payload) => Ok(payload),
            Err(GetError::Lost(why)) => Err(lost(why)),
            Err(error @ GetError::Elsewhere { .. }) => Err(put_off(job, error.to_string())),
            Err(GetError::Unavailable(cause)) => {
                Err(put_off(job, format!("the payload cannot be read for now: {cause}")))
            }
        }
    }

    /// Deletes the large payloads that no job uses any more, and returns how many it deleted. Every worker of a handle with an
    /// object store does this once an hour; call it to free the space now, for example after [`Redrive::discard_all`].
    ///
    /// A payload is kept for at least a day after it was stored, since its job may still be on its way into the store. Several
    /// calls at once are harmless. A handle without [`Redrive::with_bodies`] refuses the call.
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
            Error::Address("this handle has no object store; open it with Redrive::with_bodies".to_owned())
        })?;
        let now = self.backend().stats().await?.now;
        Ok(bodies.collect(&**self.backend(), now, ORPHAN_AGE, COLLECT_ITEMS).await?)
    }

    /// Collects bodies once per [`COLLECT_EVERY`] for as long as it is polled.
    pub(crate) async fn collect_bodies_hourly(&self) {
        if self.bodies.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            match self.collect_bodies().await {
                Ok(bodies) => tracing::debug!(bodies, "bodies without a job removed"),
                Err(error) => tracing::warn!(%error, "bodies could not be looked through"),
            }
        }
    }
}

fn parse(reference: &[u8]) -> Option<BodyRef> {
    std::str::from_utf8(reference).ok()?.parse().ok()
}

/// A job as it is looked for. Its payload stays where it is: it is large.
fn without_payload(job: &mut NewJob) -> NewJob {
    let payload = std::mem::take(&mut job.payload);
    let asked = job.clone();
    job.payload = payload;
    asked
}

fn unclaimed(error: ClaimError) -> Error {
    match error {
        ClaimError::Store(error) => error.into(),
        ClaimError::Gone | ClaimError::TooManyTasks | ClaimError::Contended => {
            PutError::Store(Box::new(error)).into()
        }
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
        let id = redrive.enqueue(Import { rows: "x".repeat(100_000) }).await.unwrap().id();
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(redrive.collect_bodies().await.unwrap(), 0, "it waits for its turn");
        harness.drain("default").await;
        harness.advance(ORPHAN_AGE * 2);
        assert_eq!(redrive.collect_bodies().await.unwrap(), 0, "it may be driven again");
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
