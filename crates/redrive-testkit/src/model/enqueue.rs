//! Adds jobs, once each.

use std::collections::BTreeMap;

use redrive_core::store::{Enqueued, check_batch};
use redrive_core::{Invalid, Job, NewJob, State, Timestamp};

use super::{Model, Row, whole_ms};

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

    pub(super) fn add(&mut self, new: NewJob, now: Timestamp) -> Result<Enqueued, Invalid> {
        if let Some(known) = self.known(&new) {
            return Ok(known);
        }
        let id = new.id;
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
    Ok(Row { job, fingerprint, log: BTreeMap::new() })
}
