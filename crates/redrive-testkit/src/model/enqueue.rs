//! Adds jobs. A repeated enqueue changes nothing.

use std::collections::BTreeMap;

use redrive_core::store::{EnqueueResult, check_batch};
use redrive_core::{Invalid, Job, JobId, NewJob, State, Timestamp, UniqueRule};

use super::{Holder, Model, Row, whole_ms};

impl Model {
    /// See [`redrive_core::Store::enqueue`].
    pub fn enqueue(&mut self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<EnqueueResult>, Invalid> {
        check_batch(jobs.len())?;
        for job in &jobs {
            job.check()?;
            job.start.resolve(now)?;
        }
        jobs.into_iter().map(|job| self.add(job, now)).collect()
    }

    /// See [`redrive_core::Store::find`].
    pub fn find(&self, jobs: &[NewJob]) -> Result<Vec<Option<EnqueueResult>>, Invalid> {
        check_batch(jobs.len())?;
        Ok(jobs.iter().map(|job| self.known(job)).collect())
    }

    pub(super) fn add(&mut self, new: NewJob, now: Timestamp) -> Result<EnqueueResult, Invalid> {
        if let Some(known) = self.known(&new) {
            return Ok(known);
        }
        if let Some(held) = self.held_unique(&new, now)? {
            return Ok(held);
        }
        let id = new.id;
        if let Some(unique) = &new.unique {
            let until = match unique.rule {
                UniqueRule::For(span) => Some(now.after(span)),
                UniqueRule::Live | UniqueRule::Replace => None,
            };
            let key = (new.tenant.clone(), new.kind.clone(), unique.key.clone());
            self.uniques.insert(key, Holder { job: id, until });
        }
        self.insert(row(new, now)?);
        self.wake_up();
        Ok(EnqueueResult::Created(id))
    }

    /// The existing job with the same id, or with the same tenant and key.
    pub(super) fn known(&self, new: &NewJob) -> Option<EnqueueResult> {
        if self.rows.contains_key(&new.id) {
            return Some(EnqueueResult::Existing(new.id));
        }
        let requested = new.idempotency.as_ref()?;
        let id = *self.keys.get(&(new.tenant.clone(), requested.key.clone()))?;
        let same = self.rows[&id].fingerprint == Some(requested.fingerprint);
        Some(if same { EnqueueResult::Existing(id) } else { EnqueueResult::Conflict(id) })
    }

    /// The result of an enqueue whose unique key is in use.
    fn held_unique(&mut self, new: &NewJob, now: Timestamp) -> Result<Option<EnqueueResult>, Invalid> {
        let Some(unique) = &new.unique else { return Ok(None) };
        let key = (new.tenant.clone(), new.kind.clone(), unique.key.clone());
        let Some(Holder { job: id, until }) = self.uniques.get(&key).cloned() else { return Ok(None) };
        let live = self.job(id).is_some_and(|job| !job.state.is_final());
        Ok(match unique.rule {
            UniqueRule::Live => live.then_some(EnqueueResult::Existing(id)),
            UniqueRule::For(_) => {
                until.map_or(live, |until| until > now).then_some(EnqueueResult::Existing(id))
            }
            UniqueRule::Replace => self.replace(id, new, now)?.then_some(EnqueueResult::Replaced(id)),
        })
    }

    /// Gives a job that was never claimed the content of `new`.
    fn replace(&mut self, id: JobId, new: &NewJob, now: Timestamp) -> Result<bool, Invalid> {
        if self.job(id).is_none_or(|job| job.state != State::Pending || job.epoch > 0) {
            return Ok(false);
        }
        let due = new.start.resolve(now)?;
        self.change(id, |row| {
            let job = &mut row.job;
            job.policy = new.policy.clone();
            job.payload = new.payload.clone();
            job.target = new.target.clone();
            job.metadata = new.metadata.clone();
            job.timeout = new.timeout.map(whole_ms);
            job.lease = new.lease.map(whole_ms);
            (job.began_at, job.next_run_at) = (due, due);
        });
        self.wake_up();
        Ok(true)
    }
}

fn row(new: NewJob, now: Timestamp) -> Result<Row, Invalid> {
    let due = new.start.resolve(now)?;
    let (key, fingerprint) = new.idempotency.map(|requested| (requested.key, requested.fingerprint)).unzip();
    let job = Job {
        id: new.id,
        tenant: new.tenant,
        queue: new.queue,
        kind: new.kind,
        state: State::Pending,
        priority: new.priority,
        policy: new.policy,
        payload: new.payload,
        key,
        target: new.target,
        metadata: new.metadata,
        timeout: new.timeout.map(whole_ms),
        lease: new.lease.map(whole_ms),
        partition: new.partition,
        parent: new.parent,
        awaits: None,
        paused: false,
        run: 1,
        attempt: 0,
        epoch: 0,
        created_at: now,
        began_at: due,
        next_run_at: due,
        started_at: None,
        lease_until: None,
        worker: None,
        wait: None,
        cancel_requested: false,
        finished_at: None,
        output: None,
        last_error: None,
        last_status: None,
        reason: None,
    };
    Ok(Row { job, fingerprint, log: BTreeMap::new(), steps: BTreeMap::new(), signals: Vec::new() })
}
