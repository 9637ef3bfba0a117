//! Export and import of everything in a store.

use std::collections::HashMap;

use async_trait::async_trait;
use hex::FromHex as _;
use redis::Value;
use redrive_core::steps::Parent;
use redrive_core::store::{UnreadableJob, check_batch};
use redrive_core::transfer::{
    EXPORT_BYTES_MAX, ExportPage, HeldUniqueKey, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey,
    SEALED, Transfer,
};
use redrive_core::{JobId, Lease, StoreError, Timestamp};

use crate::inner::{CallConnections, Inner, ShardedCall};
use crate::lifecycle::job_tree;
use crate::script::{self, Arguments, reply};
use crate::settings::{Settings, is_setting};
use crate::shards::JobLocation;
use crate::{RedisStore, entries, records, row};

/// Jobs to export in one call. Each may have a long attempt log.
const EXPORTED_PER_CALL: usize = 50;

#[async_trait]
impl Transfer for RedisStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        check_batch(limit)?;
        if after.is_none() {
            // The marks of jobs with live descendants are not exported.
            job_tree::end_all_descendants(&self.inner).await?;
        }
        let ids = next_ids(&self.inner, after, limit).await?;
        let mut exported = ExportPage::default();
        let mut bytes = 0;
        for some in ids.chunks(EXPORTED_PER_CALL) {
            for (id, snapshot) in some.iter().zip(read_snapshots(&self.inner, some).await?) {
                exported.last = Some(*id);
                match snapshot {
                    Ok(snapshot) => {
                        bytes += snapshot.bytes();
                        exported.jobs.push(snapshot);
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

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        JobSnapshot::check_all(&snapshots)?;
        let imported = import(&self.inner, &snapshots).await?;
        self.inner.wake_if(
            imported.iter().any(|each| matches!(each, ImportResult::Created | ImportResult::Replaced)),
        );
        Ok(imported)
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        let prefix = self.inner.layout.records_prefix();
        let mut command = redis::cmd("SMEMBERS");
        command.arg(format!("{prefix}kinds"));
        let mut kinds = reply::texts(reply::set_to_list(self.inner.send(command).await?))?;
        kinds.sort_unstable();
        let mut snapshots = Vec::new();
        for kind in kinds {
            if after.is_some_and(|(done, _)| kind.as_str() < done) || snapshots.len() >= limit {
                continue;
            }
            let mut command = redis::cmd("HGETALL");
            command.arg(format!("{prefix}records:{kind}"));
            let flat = reply::items(reply::flatten_map(self.inner.send(command).await?))?;
            let mut of_kind = Vec::new();
            for pair in flat.chunks_exact(2) {
                let id = reply::text(pair[0].clone())?;
                let (version, value) = records::read_stored(&id, &reply::bytes(pair[1].clone())?)?;
                of_kind.push(RecordSnapshot { kind: kind.clone(), id, version, value });
            }
            of_kind.retain(|snapshot| {
                after.is_none_or(|after| (snapshot.kind.as_str(), snapshot.id.as_str()) > after)
            });
            of_kind.sort_unstable_by(|one, other| one.id.cmp(&other.id));
            snapshots.extend(of_kind);
        }
        snapshots.truncate(limit);
        Ok(snapshots)
    }

    async fn import_records(&self, snapshots: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        RecordSnapshot::check_all(&snapshots)?;
        let mut arguments = Arguments::none();
        arguments.count(snapshots.len());
        for snapshot in &snapshots {
            arguments.text(&snapshot.kind);
            arguments.text(&snapshot.id);
            arguments.text(snapshot.version);
            arguments.text(u8::from(snapshot.value.is_some()));
            arguments.bytes(snapshot.value.as_deref().unwrap_or_default());
            arguments.text(u8::from(is_setting(&snapshot.kind)));
        }
        let written = reply::flags(self.inner.run_on_records(&script::RECORD_IMPORT, arguments).await?)?;
        if snapshots.iter().any(|snapshot| snapshot.kind == SEALED) {
            seal(&self.inner, Settings::read(&self.inner).await?.is_sealed()).await?;
        }
        self.inner.wake_if(written.contains(&true));
        Ok(written)
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        let mut keys = Vec::new();
        for value in
            self.inner.run_on_all_shards(&script::EXPORT_RESERVED_KEYS, &self.inner.arguments()).await?
        {
            for three in reply::texts(value)?.chunks_exact(3) {
                let (tenant, kind, key) =
                    row::parse_unique_name(&three[0]).ok_or_else(|| reply::unexpected("a unique key"))?;
                let (job, until) = (reply::id(&three[1])?, reply::score(&three[2])?);
                keys.push(ReservedKey { tenant, kind, key, job, until });
            }
        }
        keys.retain(|reserved| after.is_none_or(|after| reserved.job > after));
        keys.sort_by_key(|reserved| reserved.job);
        keys.truncate(limit);
        Ok(keys)
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        check_batch(keys.len())?;
        let policy = redrive_core::PolicyName::new("default")?;
        // The shard to which the next job with the key will go.
        let shard = |reserved: &ReservedKey| {
            self.inner.layout.shard(&reserved.tenant, &policy, Some(reserved.key.as_str()), reserved.job)
        };
        let shards: Vec<usize> = keys.iter().map(shard).collect();
        let add = |arguments: &mut Arguments, n: usize| {
            let ReservedKey { tenant, kind, key, job, until } = &keys[n];
            arguments.text(row::unique_name(tenant, kind, key));
            arguments.id(*job);
            arguments.text(until.as_ms());
        };
        let call = ShardedCall::new(&script::IMPORT_RESERVED_KEYS, add);
        self.inner.run_on_shards(&shards, call, |_, value| reply::flags(value)).await
    }
}

/// Stops the claims of every shard, or allows them again. Claims in progress have ended when it returns.
pub(crate) async fn seal(inner: &Inner, sealed: bool) -> Result<(), StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(u8::from(sealed));
    inner.run_on_all_shards(&script::SEAL, &arguments).await.map(drop)
}

async fn next_ids(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<Vec<JobId>, StoreError> {
    let mut arguments = inner.arguments();
    arguments.optional_id(after);
    arguments.count(limit);
    let mut ids = Vec::new();
    for (shard, some) in inner.run_on_all_shards(&script::IDS, &arguments).await?.into_iter().enumerate() {
        for id in reply::texts(some)? {
            let id = reply::id(&id)?;
            inner.locations.insert_shard(id, shard);
            ids.push(id);
        }
    }
    ids.sort_unstable();
    ids.truncate(limit);
    Ok(ids)
}

async fn read_snapshots(
    inner: &Inner,
    ids: &[JobId],
) -> Result<Vec<Result<JobSnapshot, UnreadableJob>>, StoreError> {
    let read = |_, value| reply::items(value)?.into_iter().map(reply::parts::<5>).collect();
    let call = ShardedCall::new(&script::EXPORT, |arguments, n| arguments.id(ids[n]));
    let replies: Vec<[Value; 5]> = inner.run_for_jobs(ids, call, read).await?;
    Ok(ids.iter().zip(replies).map(|(id, parts)| read_snapshot(*id, parts)).collect())
}

/// Reads a job, or reports why it cannot be read.
fn read_snapshot(id: JobId, parts: [Value; 5]) -> Result<JobSnapshot, UnreadableJob> {
    let report = |problem: StoreError| UnreadableJob {
        lease: Lease { id, epoch: 0 },
        run: 1,
        attempt: 0,
        problem: problem.to_string(),
    };
    parse_snapshot(id, parts).map_err(report)
}

fn parse_snapshot(
    id: JobId,
    [flat, log, steps, signals, holder]: [Value; 5],
) -> Result<JobSnapshot, StoreError> {
    let flat = reply::items(flat)?;
    let damaged = |what: &str| StoreError::Corrupt(format!("job {id}: {what} cannot be read"));
    let mut row = row::Row::new(flat.clone());
    let (fingerprint, unique) = (row.text("print")?, row.text("unique")?);
    let holder = reply::text(holder)?;
    let unique = match (unique, holder.split_once(':')) {
        (Some(name), Some((_, until))) => {
            let (_, _, key) = row::parse_unique_name(&name).ok_or_else(|| damaged("its unique key"))?;
            Some(HeldUniqueKey { key, until: until.parse().ok().map(Timestamp::from_ms) })
        }
        _ => None,
    };
    let log: Option<Vec<_>> = reply::texts(log)?.iter().map(|line| entries::read_attempt(line)).collect();
    let steps: Result<Vec<_>, _> =
        reply::items(steps)?.into_iter().map(|step| entries::read_step(&reply::bytes(step)?)).collect();
    let signals: Option<Vec<_>> = reply::items(signals)?
        .into_iter()
        .map(|each| entries::read_signal(&reply::bytes(each).ok()?))
        .collect();
    Ok(JobSnapshot {
        job: row::read(id, flat)?,
        fingerprint: fingerprint
            .map(|text| <[u8; 32]>::from_hex(text).map_err(|_| damaged("its fingerprint")))
            .transpose()?,
        unique,
        log: log.ok_or_else(|| damaged("an attempt"))?,
        steps: steps?,
        signals: signals.ok_or_else(|| damaged("a signal"))?,
    })
}

async fn import(inner: &Inner, snapshots: &[JobSnapshot]) -> Result<Vec<ImportResult>, StoreError> {
    let being_filled = Settings::read(inner).await?.is_being_filled();
    let call = ShardedCall {
        script: &script::IMPORT,
        connections: CallConnections::Shared,
        begin: |arguments: &mut Arguments| arguments.text(u8::from(being_filled)),
        add: |arguments: &mut Arguments, n: usize| write(arguments, &snapshots[n]),
    };
    let shards = shards(inner, snapshots).await?;
    let read = |_, value| {
        reply::texts(value)?.chunks_exact(2).map(|pair| parse_result(&pair[0], &pair[1])).collect()
    };
    let results: Vec<ImportResult> = inner.run_on_shards(&shards, call, read).await?;
    for ((snapshot, shard), result) in snapshots.iter().zip(shards).zip(&results) {
        if *result == ImportResult::Created {
            inner.locations.insert(snapshot.job.id, JobLocation { shard, claim: None });
        }
    }
    Ok(results)
}

fn parse_result(word: &str, other: &str) -> Result<ImportResult, StoreError> {
    Ok(match word {
        "created" => ImportResult::Created,
        "replaced" => ImportResult::Replaced,
        "conflict" => ImportResult::Conflict(reply::id(other)?),
        _ => ImportResult::Kept,
    })
}

/// The shard of each imported job: the shard that already has the job, else that of its parent, else the one by the layout.
async fn shards(inner: &Inner, snapshots: &[JobSnapshot]) -> Result<Vec<usize>, StoreError> {
    let mut asked: Vec<JobId> = snapshots.iter().map(|snapshot| snapshot.job.id).collect();
    asked.extend(snapshots.iter().filter_map(|snapshot| snapshot.job.parent.map(|parent| parent.id)));
    let found = inner.locate(&asked).await?;
    let mut known: HashMap<JobId, usize> =
        asked.into_iter().zip(found).filter_map(|(id, shard)| Some((id, shard?))).collect();
    let mut shards = Vec::with_capacity(snapshots.len());
    for JobSnapshot { job, unique, .. } in snapshots {
        let of_parent = job.parent.and_then(|Parent { id, .. }| known.get(&id).copied());
        let partition = job.partition.as_ref().map(|of| of.key.as_str());
        let unique = unique.as_ref().map(|held| held.key.as_str());
        let key = partition.or(unique).or(job.key.as_ref().map(|key| key.as_str()));
        let by_layout = || inner.layout.shard(&job.tenant, &job.policy.name, key, job.id);
        let shard = known.get(&job.id).copied().or(of_parent).unwrap_or_else(by_layout);
        known.insert(job.id, shard);
        shards.push(shard);
    }
    Ok(shards)
}

/// Writes a job, in the order in which the script `import` reads it.
fn write(arguments: &mut Arguments, snapshot: &JobSnapshot) {
    let JobSnapshot { job, fingerprint, unique, log, steps, signals } = snapshot;
    arguments.id(job.id);
    arguments.flat_fields(row::write_imported(
        job,
        fingerprint.as_ref(),
        unique.as_ref().map(|held| &held.key),
    ));
    arguments.text(match unique {
        None => "none".to_owned(),
        Some(held) => held.until.map(|until| until.as_ms().to_string()).unwrap_or_default(),
    });
    arguments.count(2 * log.len());
    for attempt in log {
        arguments.text(attempt.epoch);
        arguments.bytes(&entries::write_attempt(attempt));
    }
    arguments.count(2 * steps.len());
    for step in steps {
        arguments.text(step.place);
        arguments.bytes(&entries::write_step(step));
    }
    arguments.count(signals.len());
    signals.iter().for_each(|each| arguments.bytes(&entries::write_signal(each)));
}
