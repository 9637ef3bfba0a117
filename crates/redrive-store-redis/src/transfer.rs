//! All of a store's content, out and in.

use std::collections::HashMap;

use async_trait::async_trait;
use redis::Value;
use redrive_core::steps::Parent;
use redrive_core::store::{Unreadable, check_batch};
use redrive_core::transfer::{
    EXPORT_BYTES_MAX, Exported, Held, Imported, Parcel, Promise, SEALED, Slot, Transfer,
};
use redrive_core::{JobId, Lease, StoreError, Timestamp};

use crate::arguments::Arguments;
use crate::homes::Home;
use crate::open::{Inner, Spread, Way};
use crate::settings::{Settings, is_setting};
use crate::{RedisStore, answer, attempts, cancel, recall, records, row, script, signal};

/// Jobs to fetch at a time: each may come with a long log.
const FETCHED: usize = 50;

#[async_trait]
impl Transfer for RedisStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        check_batch(limit)?;
        if after.is_none() {
            // Marks of what is left to end are not in parcels.
            cancel::work_off_all(&self.inner).await?;
        }
        let ids = next_ids(&self.inner, after, limit).await?;
        let mut exported = Exported::default();
        let mut bytes = 0;
        for some in ids.chunks(FETCHED) {
            for (id, parcel) in some.iter().zip(fetch(&self.inner, some).await?) {
                exported.last = Some(*id);
                match parcel {
                    Ok(parcel) => {
                        bytes += parcel.bytes();
                        exported.parcels.push(parcel);
                    }
                    Err(unreadable) => exported.unreadable.push(unreadable),
                }
                if bytes >= EXPORT_BYTES_MAX {
                    return Ok(exported);
                }
            }
        }
        Ok(exported)
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        Parcel::check_all(&parcels)?;
        let imported = import(&self.inner, &parcels).await?;
        self.inner
            .wake_if(imported.iter().any(|each| matches!(each, Imported::Created | Imported::Replaced)));
        Ok(imported)
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        let tag = self.inner.layout.records_tag();
        let mut command = redis::cmd("SMEMBERS");
        command.arg(format!("{tag}kinds"));
        let mut kinds = answer::texts(answer::list(self.inner.send(command).await?))?;
        kinds.sort_unstable();
        let mut slots = Vec::new();
        for kind in kinds {
            if after.is_some_and(|(done, _)| kind.as_str() < done) || slots.len() >= limit {
                continue;
            }
            let mut command = redis::cmd("HGETALL");
            command.arg(format!("{tag}records:{kind}"));
            let flat = answer::items(answer::flat(self.inner.send(command).await?))?;
            let mut of_kind = Vec::new();
            for pair in flat.chunks_exact(2) {
                let id = answer::text(pair[0].clone())?;
                let (version, value) = records::read_slot(&id, &answer::bytes(pair[1].clone())?)?;
                of_kind.push(Slot { kind: kind.clone(), id, version, value });
            }
            of_kind.retain(|slot| after.is_none_or(|after| (slot.kind.as_str(), slot.id.as_str()) > after));
            of_kind.sort_unstable_by(|one, other| one.id.cmp(&other.id));
            slots.extend(of_kind);
        }
        slots.truncate(limit);
        Ok(slots)
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        Slot::check_all(&slots)?;
        let mut arguments = Arguments::none();
        arguments.count(slots.len());
        for slot in &slots {
            arguments.text(&slot.kind);
            arguments.text(&slot.id);
            arguments.text(slot.version);
            arguments.text(u8::from(slot.value.is_some()));
            arguments.bytes(slot.value.as_deref().unwrap_or_default());
            arguments.text(u8::from(is_setting(&slot.kind)));
        }
        let written = flags(self.inner.run_on_records(&script::RECORD_IMPORT, arguments).await?)?;
        if slots.iter().any(|slot| slot.kind == SEALED) {
            seal(&self.inner, Settings::read(&self.inner).await?.is_sealed()).await?;
        }
        self.inner.wake_if(written.contains(&true));
        Ok(written)
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        let mut promises = Vec::new();
        for value in self.inner.run_on_all(&script::PROMISES, &self.inner.arguments()).await? {
            for three in answer::texts(value)?.chunks_exact(3) {
                let (tenant, kind, key) =
                    row::unique_parts(&three[0]).ok_or_else(|| answer::odd("a unique key"))?;
                let (job, until) = (answer::id(&three[1])?, answer::score(&three[2])?);
                promises.push(Promise { tenant, kind, key, job, until });
            }
        }
        promises.retain(|promise| after.is_none_or(|after| promise.job > after));
        promises.sort_by_key(|promise| promise.job);
        promises.truncate(limit);
        Ok(promises)
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        check_batch(promises.len())?;
        let policy = redrive_core::PolicyName::new("default")?;
        // Where the next job under the key will be looked for.
        let home = |promise: &Promise| {
            self.inner.layout.partition(&promise.tenant, &policy, Some(promise.key.as_str()), promise.job)
        };
        let homes: Vec<usize> = promises.iter().map(home).collect();
        let add = |arguments: &mut Arguments, n: usize| {
            let Promise { tenant, kind, key, job, until } = &promises[n];
            arguments.text(row::unique_name(tenant, kind, key));
            arguments.id(*job);
            arguments.text(until.as_ms());
        };
        self.inner.run_in(&homes, Spread::of(&script::PROMISE, add), |_, value| flags(value)).await
    }
}

/// Stops claims everywhere, or lets them go on; those under way have ended when it returns.
pub(crate) async fn seal(inner: &Inner, sealed: bool) -> Result<(), StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(u8::from(sealed));
    inner.run_on_all(&script::SEAL, &arguments).await.map(drop)
}

async fn next_ids(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<Vec<JobId>, StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(after.map(|id| id.0.simple().to_string()).unwrap_or_default());
    arguments.count(limit);
    let mut ids = Vec::new();
    for (partition, some) in inner.run_on_all(&script::IDS, &arguments).await?.into_iter().enumerate() {
        for id in answer::texts(some)? {
            let id = answer::id(&id)?;
            inner.homes.learn_partition(id, partition);
            ids.push(id);
        }
    }
    ids.sort_unstable();
    ids.truncate(limit);
    Ok(ids)
}

async fn fetch(inner: &Inner, ids: &[JobId]) -> Result<Vec<Result<Parcel, Unreadable>>, StoreError> {
    let read = |_, value| answer::items(value)?.into_iter().map(answer::parts::<5>).collect();
    let parcels: Vec<[Value; 5]> = inner
        .run_by_home(ids, Spread::of(&script::EXPORT, |arguments, n| arguments.id(ids[n])), read)
        .await?;
    let each = ids.iter().zip(parcels).map(|(id, parts)| Ok(read_parcel(*id, parts)));
    each.collect()
}

/// What cannot be read is named, with why.
fn read_parcel(id: JobId, parts: [Value; 5]) -> Result<Parcel, Unreadable> {
    let report = |problem: StoreError| Unreadable {
        lease: Lease { id, epoch: 0 },
        run: 1,
        attempt: 0,
        problem: problem.to_string(),
    };
    parcel(id, parts).map_err(report)
}

fn parcel(id: JobId, [flat, log, steps, signals, holder]: [Value; 5]) -> Result<Parcel, StoreError> {
    let flat = answer::items(flat)?;
    let damaged = |what: &str| StoreError::Corrupt(format!("job {id}: {what} cannot be read"));
    let mut hidden = row::Row::new(flat.clone());
    let (print, unique) = (hidden.text("print")?, hidden.text("unique")?);
    let holder = answer::text(holder)?;
    let unique = match (unique, holder.split_once(':')) {
        (Some(name), Some((_, until))) => {
            let (_, _, key) = row::unique_parts(&name).ok_or_else(|| damaged("its unique key"))?;
            Some(Held { key, until: until.parse().ok().map(Timestamp::from_ms) })
        }
        _ => None,
    };
    let log: Option<Vec<_>> = answer::texts(log)?.iter().map(|line| attempts::read(line)).collect();
    let steps: Result<Vec<_>, _> =
        answer::items(steps)?.into_iter().map(|step| recall::read(&answer::bytes(step)?)).collect();
    let signals: Option<Vec<_>> =
        answer::items(signals)?.into_iter().map(|each| signal::read(&answer::bytes(each).ok()?)).collect();
    Ok(Parcel {
        job: row::read(id, flat)?,
        fingerprint: print
            .map(|print| row::unhex(&print).ok_or_else(|| damaged("its fingerprint")))
            .transpose()?,
        unique,
        log: log.ok_or_else(|| damaged("an attempt"))?,
        steps: steps?,
        signals: signals.ok_or_else(|| damaged("a signal"))?,
    })
}

async fn import(inner: &Inner, parcels: &[Parcel]) -> Result<Vec<Imported>, StoreError> {
    let filling = Settings::read(inner).await?.is_being_filled();
    let spread = Spread {
        script: &script::IMPORT,
        way: Way::Shared,
        begin: |arguments: &mut Arguments| arguments.text(u8::from(filling)),
        add: |arguments: &mut Arguments, n: usize| write(arguments, &parcels[n]),
    };
    let homes = homes(inner, parcels).await?;
    let read =
        |_, value| answer::texts(value)?.chunks_exact(2).map(|pair| imported(&pair[0], &pair[1])).collect();
    let answers: Vec<Imported> = inner.run_in(&homes, spread, read).await?;
    for ((parcel, partition), answer) in parcels.iter().zip(homes).zip(&answers) {
        if *answer == Imported::Created {
            inner.homes.learn(parcel.job.id, Home { partition, claim: None });
        }
    }
    Ok(answers)
}

fn imported(word: &str, other: &str) -> Result<Imported, StoreError> {
    Ok(match word {
        "created" => Imported::Created,
        "replaced" => Imported::Replaced,
        "conflict" => Imported::Conflict(answer::id(other)?),
        _ => Imported::Kept,
    })
}

/// Where each goes: where it is, or with its parent, or by what it has in common with others.
async fn homes(inner: &Inner, parcels: &[Parcel]) -> Result<Vec<usize>, StoreError> {
    let mut asked: Vec<JobId> = parcels.iter().map(|parcel| parcel.job.id).collect();
    asked.extend(parcels.iter().filter_map(|parcel| parcel.job.parent.map(|parent| parent.id)));
    let found = inner.get_homes(&asked).await?;
    let mut known: HashMap<JobId, usize> =
        asked.into_iter().zip(found).filter_map(|(id, home)| Some((id, home?))).collect();
    let mut homes = Vec::with_capacity(parcels.len());
    for Parcel { job, unique, .. } in parcels {
        let with_parent = job.parent.and_then(|Parent { id, .. }| known.get(&id).copied());
        let ordering = job.partition.as_ref().map(|of| of.key.as_str());
        let unique = unique.as_ref().map(|held| held.key.as_str());
        let key = ordering.or(unique).or(job.key.as_ref().map(|key| key.as_str()));
        let own = || inner.layout.partition(&job.tenant, &job.policy.name, key, job.id);
        let home = known.get(&job.id).copied().or(with_parent).unwrap_or_else(own);
        known.insert(job.id, home);
        homes.push(home);
    }
    Ok(homes)
}

/// A parcel, in the order in which `import.lua` reads it.
fn write(arguments: &mut Arguments, parcel: &Parcel) {
    let Parcel { job, fingerprint, unique, log, steps, signals } = parcel;
    arguments.id(job.id);
    arguments.flat(row::write_whole(job, fingerprint.as_ref(), unique.as_ref().map(|held| &held.key)));
    arguments.text(match unique {
        None => "none".to_owned(),
        Some(held) => held.until.map(|until| until.as_ms().to_string()).unwrap_or_default(),
    });
    arguments.count(2 * log.len());
    for (place, line) in log.iter().map(attempts::write_whole) {
        arguments.text(place);
        arguments.bytes(&line);
    }
    arguments.count(2 * steps.len());
    for step in steps {
        arguments.text(step.place);
        arguments.bytes(&recall::write(step));
    }
    arguments.count(signals.len());
    signals.iter().for_each(|each| arguments.bytes(&signal::write(each)));
}

fn flags(value: Value) -> Result<Vec<bool>, StoreError> {
    Ok(answer::items(value)?.into_iter().map(|flag| flag == Value::Int(1)).collect())
}
