//! The row of a job: writing its fields for a script, and reading them.

use std::time::Duration;

use redis::Value;
use redrive_core::lifecycle::State;
use redrive_core::store::UnreadableJob;
use redrive_core::time::ceil_ms;
use redrive_core::{
    IdempotencyKey, Invalid, Job, JobId, Kind, Lease, NewJob, Order, Parent, Partition, PolicyRef, Priority,
    Queue, SignalName, Start, StoreError, Tenant, Timestamp, UniqueKey, UniqueRule, WaitCondition, WorkerId,
};
use uuid::Uuid;

use crate::inner::Inner;
use crate::script::{Arguments, Fields, reply};
use crate::shards::JobLocation;

/// Separates the parts of a name. No part contains it.
pub(crate) const SEPARATOR: char = '\u{1f}';

/// The jobs of one queue with one priority and kind. Its name is PRIORITY, QUEUE and KIND.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) priority: u8,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
}

impl Lane {
    pub(crate) fn parse(name: String) -> Result<Self, Invalid> {
        let mut parts = name.split(SEPARATOR);
        let (Some(priority), Some(queue), Some(kind), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(damaged("lane", "does not have three parts"));
        };
        let priority = priority.parse().map_err(|_| damaged("lane", "has no priority"))?;
        let (queue, kind) = (Queue::new(queue)?, Kind::new(kind)?);
        Ok(Self { name, priority, queue, kind })
    }
}

fn lane_name(priority: Priority, queue: &Queue, kind: &Kind) -> String {
    format!("{}{SEPARATOR}{queue}{SEPARATOR}{kind}", priority.get())
}

/// Writes a new job, in the order in which `add.lua` reads it.
pub(crate) fn write(arguments: &mut Arguments, job: &NewJob) {
    arguments.id(job.id);
    arguments.text(lane_name(job.priority, &job.queue, &job.kind));
    arguments.text(&job.tenant);
    arguments.text(&job.policy);
    arguments.bytes(&job.payload);
    arguments.text(match job.start {
        Start::Now => "n".to_owned(),
        Start::After(wait) => format!("a{}", ceil_ms(wait)),
        Start::At(at) => format!("t{}", at.as_ms()),
    });
    let mut extras = Fields::default();
    if let Some(idempotency) = &job.idempotency {
        extras.text("key", Some(&idempotency.key));
        extras.text("print", Some(hex::encode(idempotency.fingerprint)));
    }
    if let Some(unique) = &job.unique {
        extras.text("unique", Some(unique_name(&job.tenant, &job.kind, &unique.key)));
        let (rule, span) = match unique.rule {
            UniqueRule::Live => ("live", None),
            UniqueRule::For(span) => ("for", Some(ceil_ms(span))),
            UniqueRule::Replace => ("replace", None),
        };
        extras.text("rule", Some(rule));
        extras.text("span", span);
    }
    write_partition(&mut extras, job.partition.as_ref(), &job.queue);
    write_parent(&mut extras, job.parent.as_ref());
    extras.text("timeout", job.timeout.map(ceil_ms));
    extras.text("lease", job.lease.map(ceil_ms));
    extras.text("subject", job.target.as_ref());
    extras.text("metadata", job.metadata.as_ref());
    arguments.fields(extras);
}

fn write_partition(fields: &mut Fields, partition: Option<&Partition>, queue: &Queue) {
    if let Some(partition) = partition {
        fields.text("scope", Some(partition.scope(queue)));
        fields.text("strict", (partition.order == Order::Strict).then_some("1"));
    }
}

fn write_parent(fields: &mut Fields, parent: Option<&Parent>) {
    if let Some(parent) = parent {
        fields.text("parent", Some(parent.id.0.simple()));
        fields.text("branch", Some(parent.branch));
        fields.text("detached", parent.detached.then_some("1"));
    }
}

/// All fields of a job that is imported.
pub(crate) fn write_imported(
    job: &Job,
    fingerprint: Option<&[u8; 32]>,
    unique: Option<&UniqueKey>,
) -> Fields {
    let mut fields = Fields::default();
    let ms = |at: Timestamp| at.as_ms();
    fields.text("lane", Some(lane_name(job.priority, &job.queue, &job.kind)));
    fields.text("tenant", Some(&job.tenant));
    fields.text("policy", Some(&job.policy));
    fields.bytes("payload", Some(&job.payload));
    fields.text("state", Some(job.state.code()));
    fields.text("key", job.key.as_ref());
    fields.text("print", fingerprint.map(hex::encode));
    fields.text("unique", unique.map(|key| unique_name(&job.tenant, &job.kind, key)));
    write_partition(&mut fields, job.partition.as_ref(), &job.queue);
    write_parent(&mut fields, job.parent.as_ref());
    fields.text("subject", job.target.as_ref());
    fields.text("metadata", job.metadata.as_ref());
    fields.text("timeout", job.timeout.map(ceil_ms));
    fields.text("lease", job.lease.map(ceil_ms));
    fields.text("awaits", job.awaits.as_ref().map(wait_name));
    fields.text("held", job.paused.then_some("1"));
    fields.text("run", Some(job.run));
    fields.text("attempt", Some(job.attempt));
    fields.text("epoch", (job.epoch > 0).then_some(job.epoch));
    fields.text("created", Some(ms(job.created_at)));
    fields.text("began", Some(ms(job.began_at)));
    fields.text("due", Some(ms(job.next_run_at)));
    fields.text("started", job.started_at.map(ms));
    fields.text("lease_until", job.lease_until.map(ms));
    fields.text("worker", job.worker.as_ref());
    fields.text("wait", job.wait.map(ceil_ms));
    fields.text("cancelling", job.cancel_requested.then_some("1"));
    fields.text("finished", job.finished_at.map(ms));
    fields.bytes("output", job.output.as_deref());
    fields.text("error", job.last_error.as_ref());
    fields.text("status", job.last_status);
    fields.text("reason", job.reason);
    fields
}

/// The name of a unique key across tenants and kinds.
pub(crate) fn unique_name(tenant: &Tenant, kind: &Kind, key: &UniqueKey) -> String {
    format!("{tenant}{SEPARATOR}{kind}{SEPARATOR}{key}")
}

/// Parses the name of a unique key into tenant, kind and key.
pub(crate) fn parse_unique_name(name: &str) -> Option<(Tenant, Kind, UniqueKey)> {
    let mut parts = name.splitn(3, SEPARATOR);
    let (tenant, kind, key) = (parts.next()?, parts.next()?, parts.next()?);
    Some((Tenant::new(tenant).ok()?, Kind::new(kind).ok()?, UniqueKey::new(key).ok()?))
}

/// The name of a wait condition in a row.
pub(crate) fn wait_name(condition: &WaitCondition) -> String {
    match condition {
        WaitCondition::Signal(name) => format!("signal:{name}"),
        WaitCondition::Children { branch, failures_max } => format!("children:{branch}:{failures_max}"),
        WaitCondition::Unpaused => "unhold".to_owned(),
        WaitCondition::FreeSlot => "turn".to_owned(),
        WaitCondition::Any(parts) => {
            let parts: Vec<String> = parts.iter().map(wait_name).collect();
            format!("any:{}", parts.join(&SEPARATOR.to_string()))
        }
    }
}

fn parse_wait(text: &str) -> Result<WaitCondition, Invalid> {
    let problem = || damaged("awaits", "is not a wait condition");
    Ok(match text.split_once(':') {
        None if text == "unhold" => WaitCondition::Unpaused,
        None if text == "turn" => WaitCondition::FreeSlot,
        Some(("signal", name)) => WaitCondition::Signal(SignalName::new(name)?),
        Some(("any", parts)) => {
            WaitCondition::Any(parts.split(SEPARATOR).map(parse_wait).collect::<Result<_, _>>()?)
        }
        Some(("children", rest)) => {
            let (branch, failures_max) = rest.split_once(':').ok_or_else(problem)?;
            let number = |text: &str| text.parse().map_err(|_| problem());
            WaitCondition::Children { branch: number(branch)?, failures_max: number(failures_max)? }
        }
        None | Some(_) => return Err(problem()),
    })
}

/// Reads the rows of jobs that a script leased. The reply has each row from before the lease; these are the fields that the lease
/// changed on all of them.
pub(crate) struct LeasedRows<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) shard: usize,
    /// The number of the claim.
    pub(crate) claim: u64,
    /// The worker of the attempt; `None` if it stays the same.
    pub(crate) worker: Option<&'a WorkerId>,
    /// When the attempt started; `None` if it continues.
    pub(crate) started: Option<Timestamp>,
}

impl LeasedRows<'_> {
    /// Returns the jobs, and apart from them those that cannot be read. Caches the shard and the claim of each.
    pub(crate) fn read(&self, value: Value) -> Result<(Vec<Job>, Vec<UnreadableJob>), StoreError> {
        let mut parts = reply::items(value)?.into_iter();
        let (mut reader, mut jobs) = (RowReader::default(), Vec::with_capacity(parts.len() / 5));
        let mut unreadable = Vec::new();
        while let (Some(id), Some(row), Some(attempt), Some(epoch), Some(until)) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        {
            let id = reply::id(&reply::text(id)?)?;
            let lease = Lease { id, epoch: reply::number(epoch)? };
            let location = JobLocation { shard: self.shard, claim: Some((lease.epoch, self.claim)) };
            self.inner.locations.insert(id, location);
            let (attempt, until) = (reply::number(attempt)?, reply::timestamp(until)?);
            let row = Row::new(reply::items(row)?);
            let run = row.number("run").ok().flatten().unwrap_or(1);
            match reader.job(id, row) {
                Ok(job) => jobs.push(self.with_lease(job, lease, attempt, until)),
                Err(problem) => {
                    unreadable.push(UnreadableJob { lease, run, attempt, problem: problem.to_string() });
                }
            }
        }
        Ok((jobs, unreadable))
    }

    fn with_lease(&self, job: Job, lease: Lease, attempt: u32, until: Timestamp) -> Job {
        Job {
            state: State::Running,
            attempt,
            epoch: lease.epoch,
            lease_until: Some(until),
            worker: self.worker.cloned().or(job.worker),
            started_at: self.started.or(job.started_at),
            awaits: None,
            ..job
        }
    }
}

/// Reads a job from its hash. The error names the job and the damaged field.
pub(crate) fn read(id: JobId, flat: Vec<Value>) -> Result<Job, StoreError> {
    let job = RowReader::default().job(id, Row::new(flat));
    job.map_err(|problem| StoreError::Corrupt(format!("job {id}: {problem}")))
}

/// Reads rows. It reuses the names of the previous row, so that a batch of similar rows allocates them once.
#[derive(Default)]
struct RowReader {
    lane: Option<Lane>,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
}

impl RowReader {
    fn job(&mut self, id: JobId, mut row: Row) -> Result<Job, Invalid> {
        let lane = self.lane(row.need("lane")?)?;
        let state = row.state()?;
        Ok(Job {
            id,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            priority: Priority::new(lane.priority)?,
            tenant: self.tenant(row.need("tenant")?)?,
            policy: self.policy(row.need("policy")?)?,
            state,
            payload: row.take("payload").ok_or_else(|| damaged("payload", "is missing"))?,
            key: row.text("key")?.map(IdempotencyKey::new).transpose()?,
            target: row.text("subject")?,
            metadata: row.text("metadata")?,
            timeout: row.span("timeout")?,
            lease: row.span("lease")?,
            partition: row.partition()?,
            parent: row.parent()?,
            awaits: row.text("awaits")?.map(|text| parse_wait(&text)).transpose()?,
            paused: row.has("held"),
            run: row.number("run")?.unwrap_or(1),
            attempt: row.number("attempt")?.unwrap_or(0),
            epoch: row.number("epoch")?.unwrap_or(0),
            created_at: row.need_instant("created")?,
            began_at: row.need_instant("began")?,
            next_run_at: row.need_instant("due")?,
            started_at: row.instant("started")?,
            // The field stays on the row after the lease has ended.
            lease_until: row.instant("lease_until")?.filter(|_| state == State::Running),
            worker: row.text("worker")?.map(WorkerId::new).transpose()?,
            wait: row.span("wait")?,
            cancel_requested: row.has("cancelling"),
            finished_at: row.instant("finished")?,
            output: row.take("output"),
            last_error: row.text("error")?,
            last_status: row.number("status")?,
            reason: row.text("reason")?.map(|reason| reason.parse()).transpose()?,
        })
    }

    fn lane(&mut self, name: String) -> Result<&Lane, Invalid> {
        if self.lane.as_ref().is_none_or(|seen| seen.name != name) {
            self.lane = None;
        }
        Ok(match &mut self.lane {
            Some(seen) => seen,
            none @ None => none.insert(Lane::parse(name)?),
        })
    }

    fn tenant(&mut self, name: String) -> Result<Tenant, Invalid> {
        match &self.tenant {
            Some(seen) if seen.as_str() == name => Ok(seen.clone()),
            _ => Ok(self.tenant.insert(Tenant::new(name)?).clone()),
        }
    }

    fn policy(&mut self, text: String) -> Result<PolicyRef, Invalid> {
        match &self.policy {
            Some((seen, policy)) if *seen == text => Ok(policy.clone()),
            _ => {
                let policy = text.parse()?;
                Ok(self.policy.insert((text, policy)).1.clone())
            }
        }
    }
}

/// The fields of a row. There are so few that a linear search is fast.
pub(crate) struct Row(Vec<(Vec<u8>, Vec<u8>)>);

impl Row {
    pub(crate) fn new(flat: Vec<Value>) -> Self {
        let mut fields = Vec::with_capacity(flat.len() / 2);
        let mut flat = flat.into_iter();
        while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
            if let (Ok(field), Ok(value)) = (reply::bytes(field), reply::bytes(value)) {
                fields.push((field, value));
            }
        }
        Self(fields)
    }

    fn find(&self, field: &str) -> Option<&[u8]> {
        self.0.iter().find(|(name, _)| name == field.as_bytes()).map(|(_, value)| value.as_slice())
    }

    fn has(&self, field: &str) -> bool {
        self.find(field).is_some()
    }

    fn take(&mut self, field: &str) -> Option<Vec<u8>> {
        let found = self.0.iter_mut().find(|(name, _)| name == field.as_bytes());
        found.map(|(_, value)| std::mem::take(value))
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<Option<String>, Invalid> {
        let text = self.take(field).map(String::from_utf8);
        text.transpose().map_err(|_| damaged(field, "is not text"))
    }

    fn state(&self) -> Result<State, Invalid> {
        self.number("state")?.and_then(State::from_code).ok_or_else(|| damaged("state", "is not a state"))
    }

    fn partition(&mut self) -> Result<Option<Partition>, Invalid> {
        let order = if self.has("strict") { Order::Strict } else { Order::Any };
        self.text("scope")?.map(|scope| Partition::from_scope(&scope, order)).transpose()
    }

    fn parent(&mut self) -> Result<Option<Parent>, Invalid> {
        let Some(id) = self.text("parent")? else { return Ok(None) };
        let id = Uuid::try_parse(&id).map(JobId).map_err(|_| damaged("parent", "is not an id"))?;
        let branch = self.number("branch")?.ok_or_else(|| damaged("branch", "is missing"))?;
        Ok(Some(Parent { id, branch, detached: self.has("detached") }))
    }

    fn need(&mut self, field: &'static str) -> Result<String, Invalid> {
        self.text(field)?.ok_or_else(|| damaged(field, "is missing"))
    }

    fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<Option<T>, Invalid> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| damaged(field, "is not a number"))
    }

    fn span(&self, field: &'static str) -> Result<Option<Duration>, Invalid> {
        Ok(self.number(field)?.map(Duration::from_millis))
    }

    fn instant(&self, field: &'static str) -> Result<Option<Timestamp>, Invalid> {
        Ok(self.number(field)?.map(Timestamp::from_ms))
    }

    fn need_instant(&self, field: &'static str) -> Result<Timestamp, Invalid> {
        self.instant(field)?.ok_or_else(|| damaged(field, "is missing"))
    }
}

fn damaged(field: &'static str, problem: &str) -> Invalid {
    Invalid::new(field, format!("cannot be read: {problem}"))
}
