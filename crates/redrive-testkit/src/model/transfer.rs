//! All of a store's content, out and in.

use redrive_core::store::check_batch;
use redrive_core::transfer::{
    BEING_FILLED, EXPORT_BYTES_MAX, Exported, Held, Imported, Parcel, Promise, SEALED, Slot,
};
use redrive_core::{Invalid, Job, JobId, Kind, Tenant, Timestamp, UniqueKey};

use super::{Holder, Model, Row, key_of, records};

impl Model {
    /// See [`redrive_core::Transfer::export`].
    pub fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, Invalid> {
        check_batch(limit)?;
        let mut exported = Exported::default();
        let mut bytes = 0;
        for row in self.rows.values().filter(|row| after.is_none_or(|after| row.job.id > after)).take(limit) {
            let parcel = self.parcel(row);
            bytes += parcel.bytes();
            exported.last = Some(row.job.id);
            exported.parcels.push(parcel);
            if bytes >= EXPORT_BYTES_MAX {
                break;
            }
        }
        Ok(exported)
    }

    /// See [`redrive_core::Transfer::import`].
    pub fn import(&mut self, parcels: Vec<Parcel>, now: Timestamp) -> Result<Vec<Imported>, Invalid> {
        Parcel::check_all(&parcels)?;
        Ok(parcels.into_iter().map(|parcel| self.import_one(parcel, now)).collect())
    }

    /// See [`redrive_core::Transfer::export_records`].
    pub fn export_records(&self, after: Option<(&str, &str)>, limit: usize) -> Vec<Slot> {
        let slots =
            self.slots.iter().filter(|((kind, id), _)| after.is_none_or(|after| (&**kind, &**id) > after));
        let slot = |((kind, id), slot): (&(String, String), &records::Slot)| Slot {
            kind: kind.clone(),
            id: id.clone(),
            version: slot.version,
            value: slot.value.clone(),
        };
        slots.take(limit).map(slot).collect()
    }

    /// See [`redrive_core::Transfer::import_records`].
    pub fn import_records(&mut self, slots: Vec<Slot>) -> Result<Vec<bool>, Invalid> {
        Slot::check_all(&slots)?;
        Ok(slots.into_iter().map(|slot| self.import_record(slot)).collect())
    }

    /// See [`redrive_core::Transfer::export_promises`].
    pub fn export_promises(&self, after: Option<JobId>, limit: usize, now: Timestamp) -> Vec<Promise> {
        let mut promises: Vec<Promise> = self
            .uniques
            .iter()
            .filter(|(_, holder)| {
                self.job(holder.job).is_none() && after.is_none_or(|after| holder.job > after)
            })
            .filter_map(|((tenant, kind, key), Holder { job, until })| {
                let until = until.filter(|until| *until > now)?;
                Some(Promise {
                    tenant: tenant.clone(),
                    kind: kind.clone(),
                    key: key.clone(),
                    job: *job,
                    until,
                })
            })
            .collect();
        promises.sort_by_key(|promise| promise.job);
        promises.truncate(limit);
        promises
    }

    /// See [`redrive_core::Transfer::import_promises`].
    pub fn import_promises(&mut self, promises: Vec<Promise>, now: Timestamp) -> Result<Vec<bool>, Invalid> {
        check_batch(promises.len())?;
        let takes = |model: &mut Self, Promise { tenant, kind, key, job, until }| {
            let key = (tenant, kind, key);
            let free = model.holder_in_force(&key, now).is_none_or(|holder| holder == job);
            if free {
                model.uniques.insert(key, Holder { job, until: Some(until) });
            }
            free
        };
        Ok(promises.into_iter().map(|promise| takes(self, promise)).collect())
    }

    /// Whether nothing is claimed or taken over here.
    pub(super) fn is_sealed(&self) -> bool {
        !self.scan(SEALED, None, 1).is_empty()
    }

    fn parcel(&self, row: &Row) -> Parcel {
        let held = self.uniques.iter().find(|(_, holder)| holder.job == row.job.id);
        Parcel {
            job: row.job.clone(),
            fingerprint: row.fingerprint,
            unique: held.map(|((_, _, key), holder)| Held { key: key.clone(), until: holder.until }),
            log: row.log.values().cloned().collect(),
            steps: row.steps.values().cloned().collect(),
            signals: row.signals.clone(),
        }
    }

    fn import_one(&mut self, parcel: Parcel, now: Timestamp) -> Imported {
        let id = parcel.job.id;
        let there = self.job(id).is_some();
        if there && self.read(SEALED, BEING_FILLED).is_none() {
            return Imported::Kept;
        }
        if let Some(other) = self.in_the_way(&parcel, now) {
            return Imported::Conflict(other);
        }
        self.remove(id, now);
        self.uniques.retain(|_, holder| holder.job != id);
        let Parcel { job, fingerprint, unique, log, steps, signals } = parcel;
        if let Some(Held { key, until }) = unique {
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
        if there { Imported::Replaced } else { Imported::Created }
    }

    /// The other job that has a key of this one.
    fn in_the_way(&self, parcel: &Parcel, now: Timestamp) -> Option<JobId> {
        let by_key = key_of(&parcel.job).and_then(|key| self.keys.get(&key).copied());
        let unique = parcel.unique.as_ref().map(|held| unique_of(&parcel.job, held.key.clone()));
        let by_unique = unique.and_then(|key| self.holder_in_force(&key, now));
        [by_key, by_unique].into_iter().flatten().find(|other| *other != parcel.job.id)
    }

    fn holder_in_force(&self, key: &(Tenant, Kind, UniqueKey), now: Timestamp) -> Option<JobId> {
        let Holder { job, until } = self.uniques.get(key)?;
        let live = self.job(*job).is_some_and(|job| !job.state.is_final());
        (live || until.is_some_and(|until| until > now)).then_some(*job)
    }

    fn import_record(&mut self, slot: Slot) -> bool {
        let Slot { kind, id, version, value } = slot;
        let current = self.slots.entry((kind, id)).or_default();
        let newer = current.version < version;
        if newer {
            *current = records::Slot { version, value };
            self.wake_up();
        }
        newer
    }
}

fn unique_of(job: &Job, key: UniqueKey) -> (Tenant, Kind, UniqueKey) {
    (job.tenant.clone(), job.kind.clone(), key)
}
