//! Adds jobs, once each.

use std::collections::BTreeMap;

use redrive_core::store::{Enqueued, check_batch};
use redrive_core::{Invalid, Job, JobId, NewJob, State, Timestamp, UniqueRule};

use super::{Holder, Model, Row, whole_ms};

impl Model {
    /// See [`redrive_core::Store::enqueue`].
    pub fn enqueue(&mut self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>, Invalid> {
        check_batch(jobs.len())?;
        for job in &jobs {
            job.check()?;
            job.start.resolve(now)?;
        }
        jobs.into_iter().map(|job| self.add(job, now)).collect()
    }

    /// See [`redrive_core::Store::find`].
    pub fn find(&self, jobs: &[NewJob]) -> Result<Vec<Option<Enqueued>>, Invalid> {
        check_batch(jobs.len())?;
        Ok(jobs.iter().map(|job| self.known(job)).collect())
    }

    pub(super) fn add(&mut self, new: NewJob, now: Timestamp) -> Result<Enqueued, Invalid> {
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
        Ok(Enqueued::Created(id))
    }

    /// What is there already: the same id, or else the same key of the same tenant.
    pub(super) fn known(&self, new: &NewJob) -> Option<Enqueued> {
        if self.rows.contains_key(&new.id) {
            return Some(Enqueued::Existing(new.id));
        }
        let asked = new.idempotency.as_ref()?;
        let id = *self.keys.get(&(new.tenant.clone(), asked.key.clone()))?;
        let same = self.rows[&id].fingerprint == Some(asked.fingerprint);
        Some(if same { Enqueued::Existing(id) } else { Enqueued::Conflict(id) })
    }

    /// What becomes of a job whose unique key is taken.
    fn held_unique(&mut self, new: &NewJob, now: Timestamp) -> Result<Option<Enqueued>, Invalid> {
        let Some(unique) = &new.unique else { return Ok(None) };
        let key = (new.tenant.clone(), new.kind.clone(), unique.key.clone());
        let Some(Holder { job: id, until }) = self.uniques.get(&key).cloned() else { return Ok(None) };
        let live = self.job(id).is_some_and(|job| !job.state.is_final());
        Ok(match unique.rule {
            UniqueRule::Live => live.then_some(Enqueued::Existing(id)),
            UniqueRule::For(_) => until.map_or(live, |until| until > now).then_some(Enqueued::Existing(id)),
            UniqueRule::Replace => self.replace(id, new, now)?.then_some(Enqueued::Replaced(id)),
        })
    }

    /// Lets a job that has never been claimed do what `new` asks for.
    fn replace(&mut self, id: JobId, new: &NewJob, now: Timestamp) -> Result<bool, Invalid> {
        if self.job(id).is_none_or(|job| job.state != State::Pending || job.epoch > 0) {
            return Ok(false);
        }
        let due = new.start.resolve(now)?;
        self.change(id, |row| {
            let job = &mut row.job;
            job.policy = new.policy.clone();
            job.payload = new.payload.clone();
            job.subject = new.subject.clone();
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
    let (key, fingerprint) = new.idempotency.map(|asked| (asked.key, asked.fingerprint)).unzip();
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
        subject: new.subject,
        metadata: new.metadata,
        timeout: new.timeout.map(whole_ms),
        lease: new.lease.map(whole_ms),
        partition: new.partition,
        parent: new.parent,
        awaits: None,
        held: false,
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
