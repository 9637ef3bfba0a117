//! Export and import of all content.

use redrive_core::store::check_batch;
use redrive_core::transfer::{
    BEING_FILLED, EXPORT_BYTES_MAX, ExportPage, HeldUniqueKey, ImportResult, JobSnapshot, RecordSnapshot,
    ReservedKey, SEALED,
};
use redrive_core::{Invalid, Job, JobId, Kind, LEASE_COUNT_BITS, Tenant, Timestamp, UniqueKey};

use super::{Holder, Model, Row, key_of, records};

impl Model {
    /// See [`redrive_core::Transfer::export`].
    pub fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, Invalid> {
        check_batch(limit)?;
        let mut exported = ExportPage::default();
        let mut bytes = 0;
        for row in self.rows.values().filter(|row| after.is_none_or(|after| row.job.id > after)).take(limit) {
            let snapshot = self.snapshot(row);
            bytes += snapshot.bytes();
            exported.last = Some(row.job.id);
            exported.jobs.push(snapshot);
            if bytes >= EXPORT_BYTES_MAX {
                break;
            }
        }
        Ok(exported)
    }

    /// See [`redrive_core::Transfer::import`].
    pub fn import(
        &mut self,
        snapshots: Vec<JobSnapshot>,
        now: Timestamp,
    ) -> Result<Vec<ImportResult>, Invalid> {
        JobSnapshot::check_all(&snapshots)?;
        Ok(snapshots.into_iter().map(|snapshot| self.import_one(snapshot, now)).collect())
    }

    /// See [`redrive_core::Transfer::export_records`].
    pub fn export_records(&self, after: Option<(&str, &str)>, limit: usize) -> Vec<RecordSnapshot> {
        let entries =
            self.records.iter().filter(|((kind, id), _)| after.is_none_or(|after| (&**kind, &**id) > after));
        let snapshot = |((kind, id), entry): (&(String, String), &records::RecordEntry)| RecordSnapshot {
            kind: kind.clone(),
            id: id.clone(),
            version: entry.version,
            value: entry.value.clone(),
        };
        entries.take(limit).map(snapshot).collect()
    }

    /// See [`redrive_core::Transfer::import_records`].
    pub fn import_records(&mut self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, Invalid> {
        RecordSnapshot::check_all(&records)?;
        Ok(records.into_iter().map(|record| self.import_record(record)).collect())
    }

    /// See [`redrive_core::Transfer::export_reserved_keys`].
    pub fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<ReservedKey> {
        let mut keys: Vec<ReservedKey> = self
            .uniques
            .iter()
            .filter(|(_, holder)| {
                self.job(holder.job).is_none() && after.is_none_or(|after| holder.job > after)
            })
            .filter_map(|((tenant, kind, key), Holder { job, until })| {
                let until = until.filter(|until| *until > now)?;
                Some(ReservedKey {
                    tenant: tenant.clone(),
                    kind: kind.clone(),
                    key: key.clone(),
                    job: *job,
                    until,
                })
            })
            .collect();
        keys.sort_by_key(|key| key.job);
        keys.truncate(limit);
        keys
    }

    /// See [`redrive_core::Transfer::import_reserved_keys`].
    pub fn import_reserved_keys(
        &mut self,
        keys: Vec<ReservedKey>,
        now: Timestamp,
    ) -> Result<Vec<bool>, Invalid> {
        check_batch(keys.len())?;
        let import_key = |model: &mut Self, ReservedKey { tenant, kind, key, job, until }| {
            let key = (tenant, kind, key);
            let free = model.current_holder(&key, now).is_none_or(|holder| holder == job);
            if free {
                model.uniques.insert(key, Holder { job, until: Some(until) });
            }
            free
        };
        Ok(keys.into_iter().map(|key| import_key(self, key)).collect())
    }

    /// Whether the store is sealed: nothing is claimed or reclaimed.
    pub(super) fn is_sealed(&self) -> bool {
        !self.scan(SEALED, None, 1).is_empty()
    }

    fn snapshot(&self, row: &Row) -> JobSnapshot {
        let held = self.uniques.iter().find(|(_, holder)| holder.job == row.job.id);
        JobSnapshot {
            job: row.job.clone(),
            fingerprint: row.fingerprint,
            unique: held.map(|((_, _, key), holder)| HeldUniqueKey { key: key.clone(), until: holder.until }),
            log: row.log.values().cloned().collect(),
            steps: row.steps.values().cloned().collect(),
            signals: row.signals.clone(),
        }
    }

    fn import_one(&mut self, snapshot: JobSnapshot, now: Timestamp) -> ImportResult {
        let id = snapshot.job.id;
        let exists = self.job(id).is_some();
        if exists && self.read(SEALED, BEING_FILLED).is_none() {
            return ImportResult::Kept;
        }
        if let Some(other) = self.conflicting_job(&snapshot, now) {
            return ImportResult::Conflict(other);
        }
        // The next claim gets a greater number, so that the epoch of the job only grows.
        self.claims = self.claims.map(|claims| claims.max(snapshot.job.epoch >> LEASE_COUNT_BITS));
        self.remove(id, now);
        self.uniques.retain(|_, holder| holder.job != id);
        let JobSnapshot { job, fingerprint, unique, log, steps, signals } = snapshot;
        if let Some(HeldUniqueKey { key, until }) = unique {
            self.uniques.insert(unique_of(&job, key), Holder { job: id, until });
        }
        self.insert(Row {
            job,
            fingerprint,
            log: log.into_iter().map(|attempt| (attempt.epoch, attempt)).collect(),
            steps: steps.into_iter().map(|step| (step.place, step)).collect(),
            signals,
        });
        self.wake_up();
        if exists { ImportResult::Replaced } else { ImportResult::Created }
    }

    /// Returns another job that has a key of this one.
    fn conflicting_job(&self, snapshot: &JobSnapshot, now: Timestamp) -> Option<JobId> {
        let by_key = key_of(&snapshot.job).and_then(|key| self.keys.get(&key).copied());
        let unique = snapshot.unique.as_ref().map(|held| unique_of(&snapshot.job, held.key.clone()));
        let by_unique = unique.and_then(|key| self.current_holder(&key, now));
        [by_key, by_unique].into_iter().flatten().find(|other| *other != snapshot.job.id)
    }

    fn current_holder(&self, key: &(Tenant, Kind, UniqueKey), now: Timestamp) -> Option<JobId> {
        let Holder { job, until } = self.uniques.get(key)?;
        let live = self.job(*job).is_some_and(|job| !job.state.is_final());
        (live || until.is_some_and(|until| until > now)).then_some(*job)
    }

    fn import_record(&mut self, record: RecordSnapshot) -> bool {
        let RecordSnapshot { kind, id, version, value } = record;
        let current = self.records.entry((kind, id)).or_default();
        let newer = current.version < version;
        if newer {
            *current = records::RecordEntry { version, value };
            self.wake_up();
        }
        newer
    }
}

fn unique_of(job: &Job, key: UniqueKey) -> (Tenant, Kind, UniqueKey) {
    (job.tenant.clone(), job.kind.clone(), key)
}
