//! A job's row: how it is written for a script and read back.

use std::time::Duration;

use redis::Value;
use redrive_core::lifecycle::State;
use redrive_core::store::Unreadable;
use redrive_core::time::ceil_ms;
use redrive_core::{
    Await, IdempotencyKey, Invalid, Job, JobId, Kind, Lease, NewJob, Order, Parent, Partition, PolicyRef,
    Priority, Queue, SignalName, Start, StoreError, Tenant, Timestamp, UniqueKey, UniqueRule, WorkerId,
};
use uuid::Uuid;

use crate::answer;
use crate::arguments::{Arguments, Fields};
use crate::homes::Home;
use crate::open::Inner;

/// Between the parts of a name: no name has one.
pub(crate) const SEPARATOR: char = '\u{1f}';

/// What a claim chooses by, as one name: PRIORITY, QUEUE and KIND.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) priority: u8,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
}

impl Lane {
    pub(crate) fn read(name: String) -> Result<Self, Invalid> {
        let mut parts = name.split(SEPARATOR);
        let (Some(priority), Some(queue), Some(kind), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(damaged("lane", "has not three parts"));
        };
        let priority = priority.parse().map_err(|_| damaged("lane", "has no priority"))?;
        let (queue, kind) = (Queue::new(queue)?, Kind::new(kind)?);
        Ok(Self { name, priority, queue, kind })
    }
}

fn lane_name(job: &NewJob) -> String {
    format!("{}{SEPARATOR}{}{SEPARATOR}{}", job.priority.get(), job.queue, job.kind)
}

/// Adds a new job to the arguments of a script, in the order in which `add.lua` reads them.
pub(crate) fn write(arguments: &mut Arguments, job: &NewJob) {
    arguments.id(job.id);
    arguments.text(lane_name(job));
    arguments.text(&job.tenant);
    arguments.text(&job.policy);
    arguments.bytes(&job.payload);
    arguments.text(match job.start {
        Start::Now => "n".to_owned(),
        Start::After(wait) => format!("a{}", ceil_ms(wait)),
        Start::At(at) => format!("t{}", at.as_ms()),
    });
    let mut extras = Fields::default();
    if let Some(asked) = &job.idempotency {
        extras.text("key", Some(&asked.key));
        extras.text("print", Some(hex(&asked.fingerprint)));
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
    if let Some(partition) = &job.partition {
        extras.text("scope", Some(partition.scope(&job.queue)));
        extras.text("strict", (partition.order == Order::Strict).then_some("1"));
    }
    if let Some(parent) = &job.parent {
        extras.text("parent", Some(parent.id.0.simple()));
        extras.text("branch", Some(parent.branch));
        extras.text("detached", parent.detached.then_some("1"));
    }
    extras.text("timeout", job.timeout.map(ceil_ms));
    extras.text("lease", job.lease.map(ceil_ms));
    extras.text("subject", job.subject.as_ref());
    extras.text("metadata", job.metadata.as_ref());
    arguments.extend(extras);
}

/// All fields of a row as it is.
pub(crate) fn write_whole(job: &Job, fingerprint: Option<&[u8; 32]>, unique: Option<&UniqueKey>) -> Fields {
    let mut fields = Fields::default();
    let ms = |at: Timestamp| at.as_ms();
    fields
        .text("lane", Some(format!("{}{SEPARATOR}{}{SEPARATOR}{}", job.priority.get(), job.queue, job.kind)));
    fields.text("tenant", Some(&job.tenant));
    fields.text("policy", Some(&job.policy));
    fields.bytes("payload", Some(&job.payload));
    fields.text("state", Some(job.state.code()));
    fields.text("key", job.key.as_ref());
    fields.text("print", fingerprint.map(|print| hex(print)));
    fields.text("unique", unique.map(|key| unique_name(&job.tenant, &job.kind, key)));
    if let Some(partition) = &job.partition {
        fields.text("scope", Some(partition.scope(&job.queue)));
        fields.text("strict", (partition.order == Order::Strict).then_some("1"));
    }
    if let Some(parent) = &job.parent {
        fields.text("parent", Some(parent.id.0.simple()));
        fields.text("branch", Some(parent.branch));
        fields.text("detached", parent.detached.then_some("1"));
    }
    fields.text("subject", job.subject.as_ref());
    fields.text("metadata", job.metadata.as_ref());
    fields.text("timeout", job.timeout.map(ceil_ms));
    fields.text("lease", job.lease.map(ceil_ms));
    fields.text("awaits", job.awaits.as_ref().map(awaits_name));
    fields.text("held", job.held.then_some("1"));
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

/// What a unique key is called across tenants and kinds.
pub(crate) fn unique_name(tenant: &Tenant, kind: &Kind, key: &UniqueKey) -> String {
    format!("{tenant}{SEPARATOR}{kind}{SEPARATOR}{key}")
}

/// The tenant, the kind and the key in what a unique key is called.
pub(crate) fn unique_parts(name: &str) -> Option<(Tenant, Kind, UniqueKey)> {
    let mut parts = name.splitn(3, SEPARATOR);
    let (tenant, kind, key) = (parts.next()?, parts.next()?, parts.next()?);
    Some((Tenant::new(tenant).ok()?, Kind::new(kind).ok()?, UniqueKey::new(key).ok()?))
}

/// Bytes from how a row has them.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    let byte = |n: usize| text.get(2 * n..2 * n + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    bytes?.try_into().ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a job waits for, as its row says it.
pub(crate) fn awaits_name(awaits: &Await) -> String {
    match awaits {
        Await::Signal(name) => format!("signal:{name}"),
        Await::Children { branch, failures_max } => format!("children:{branch}:{failures_max}"),
        Await::Unhold => "unhold".to_owned(),
        Await::Turn => "turn".to_owned(),
        Await::Any(parts) => {
            let parts: Vec<String> = parts.iter().map(awaits_name).collect();
            format!("any:{}", parts.join(&SEPARATOR.to_string()))
        }
    }
}

fn read_awaits(text: &str) -> Result<Await, Invalid> {
    let problem = || damaged("awaits", "is nothing to wait for");
    Ok(match text.split_once(':') {
        None if text == "unhold" => Await::Unhold,
        None if text == "turn" => Await::Turn,
        Some(("signal", name)) => Await::Signal(SignalName::new(name)?),
        Some(("any", parts)) => {
            Await::Any(parts.split(SEPARATOR).map(read_awaits).collect::<Result<_, _>>()?)
        }
        Some(("children", rest)) => {
            let (branch, failures_max) = rest.split_once(':').ok_or_else(problem)?;
            let number = |text: &str| text.parse().map_err(|_| problem());
            Await::Children { branch: number(branch)?, failures_max: number(failures_max)? }
        }
        None | Some(_) => return Err(problem()),
    })
}

/// What a claim has written on every row that it took.
pub(crate) struct Taken<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) partition: usize,
    /// The claim's own number.
    pub(crate) claim: u64,
    /// Who runs the attempt; none where that stays as it was.
    pub(crate) worker: Option<&'a WorkerId>,
    /// When the attempt began; none where it goes on.
    pub(crate) started: Option<Timestamp>,
}

impl Taken<'_> {
    /// The rows with what could not be read of them; remembers where they are and under which claim they are held.
    pub(crate) fn read(&self, value: Value) -> Result<(Vec<Job>, Vec<Unreadable>), StoreError> {
        let mut parts = answer::items(value)?.into_iter();
        let (mut reader, mut jobs) = (Reader::default(), Vec::with_capacity(parts.len() / 5));
        let mut unreadable = Vec::new();
        while let (Some(id), Some(row), Some(attempt), Some(epoch), Some(until)) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        {
            let id = answer::id(&answer::text(id)?)?;
            let lease = Lease { id, epoch: answer::number(epoch)? };
            let home = Home { partition: self.partition, claim: Some((lease.epoch, self.claim)) };
            self.inner.homes.learn(id, home);
            let (attempt, until) = (answer::number(attempt)?, answer::instant(until)?);
            let row = Row::new(answer::items(row)?);
            let run = row.number("run").ok().flatten().unwrap_or(1);
            match reader.job(id, row) {
                Ok(job) => jobs.push(self.fresh(job, lease, attempt, until)),
                Err(problem) => {
                    unreadable.push(Unreadable { lease, run, attempt, problem: problem.to_string() });
                }
            }
        }
        Ok((jobs, unreadable))
    }

    fn fresh(&self, job: Job, lease: Lease, attempt: u32, until: Timestamp) -> Job {
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

/// A job from its hash, or an error that names the row and what is wrong with it.
pub(crate) fn read(id: JobId, flat: Vec<Value>) -> Result<Job, StoreError> {
    let job = Reader::default().job(id, Row::new(flat));
    job.map_err(|problem| StoreError::Corrupt(format!("job {id}: {problem}")))
}

/// Reads rows, and keeps the names it has just seen so that a batch of like rows allocates them once.
#[derive(Default)]
struct Reader {
    lane: Option<Lane>,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
}

impl Reader {
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
            subject: row.text("subject")?,
            metadata: row.text("metadata")?,
            timeout: row.span("timeout")?,
            lease: row.span("lease")?,
            partition: row.partition()?,
            parent: row.parent()?,
            awaits: row.text("awaits")?.map(|text| read_awaits(&text)).transpose()?,
            held: row.has("held"),
            run: row.number("run")?.unwrap_or(1),
            attempt: row.number("attempt")?.unwrap_or(0),
            epoch: row.number("epoch")?.unwrap_or(0),
            created_at: row.need_instant("created")?,
            began_at: row.need_instant("began")?,
            next_run_at: row.need_instant("due")?,
            started_at: row.instant("started")?,
            // It stays on the row when the lease has ended.
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
            none @ None => none.insert(Lane::read(name)?),
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

/// The fields of a row: few enough to look through.
pub(crate) struct Row(Vec<(Vec<u8>, Vec<u8>)>);

impl Row {
    pub(crate) fn new(flat: Vec<Value>) -> Self {
        let mut fields = Vec::with_capacity(flat.len() / 2);
        let mut flat = flat.into_iter();
        while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
            if let (Ok(field), Ok(value)) = (answer::bytes(field), answer::bytes(value)) {
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
        text.transpose().map_err(|_| damaged(field, "is no text"))
    }

    fn state(&self) -> Result<State, Invalid> {
        self.number("state")?.and_then(State::from_code).ok_or_else(|| damaged("state", "is no state"))
    }

    fn partition(&mut self) -> Result<Option<Partition>, Invalid> {
        let order = if self.has("strict") { Order::Strict } else { Order::Any };
        self.text("scope")?.map(|scope| Partition::of_scope(&scope, order)).transpose()
    }

    fn parent(&mut self) -> Result<Option<Parent>, Invalid> {
        let Some(id) = self.text("parent")? else { return Ok(None) };
        let id = Uuid::try_parse(&id).map(JobId).map_err(|_| damaged("parent", "is no id"))?;
        let branch = self.number("branch")?.ok_or_else(|| damaged("branch", "is missing"))?;
        Ok(Some(Parent { id, branch, detached: self.has("detached") }))
    }

    fn need(&mut self, field: &'static str) -> Result<String, Invalid> {
        self.text(field)?.ok_or_else(|| damaged(field, "is missing"))
    }

    fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<Option<T>, Invalid> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| damaged(field, "is no number"))
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
