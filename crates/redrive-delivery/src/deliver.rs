//! Makes one attempt at a call: through the gate, with its body and signature, to an answer.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method};
use redrive_core::store::Backend;
use redrive_core::{Deferral, Failure, Fault, Invalid, Job, NewJob, Outcome, PolicyRef};
use redrive_worker::{Context, Ending, Handler};
use tokio::time::Instant;

use crate::bodies::{Bodies, GetError};
use crate::call::{Call, CallBody, Passport};
use crate::escalate;
use crate::exchange::{Exchange, LOCAL_FAILURE_WAIT, Outgoing};
use crate::gate::{Admission, Gates, Turn};
use crate::local::LocalFailure;
use crate::passage::Passage;
use crate::secrets::{Vault, VaultError};
use crate::sign::Signer;
use crate::transport::Transport;
use crate::upload::Upload;

/// The kind of the jobs that a [`Deliverer`] runs.
pub const KIND: &str = "delivery";
/// How long an attempt waits before a gate that is full; longer, and it is parked.
const GATE_PATIENCE: Duration = Duration::from_millis(20);

/// The reason that a task shows whose headers this node cannot decrypt.
const SEALED_HEADERS: &str = "the headers of this task were encrypted with another key: start every node with the key that the task was created under";

/// What deliveries share with whoever shows their state: gates, large bodies, signing secrets.
#[derive(Clone)]
pub struct Parts {
    /// One gate per origin, of this node.
    pub gates: Arc<Gates>,
    /// Large bodies.
    pub bodies: Bodies,
    /// Signing secrets.
    pub vault: Arc<Vault>,
}

/// Delivers calls: the handler behind every task of the service.
pub struct Deliverer {
    transport: Transport,
    parts: Parts,
    backend: Arc<dyn Backend>,
    /// The policy of the tasks that report how another one ended.
    escalation_policy: PolicyRef,
    chance: Mutex<fastrand::Rng>,
}

impl Deliverer {
    /// Sends by `transport` what `backend` holds; reports on ended tasks go by `escalation_policy`, which must be there.
    pub fn new(
        transport: Transport,
        parts: Parts,
        backend: Arc<dyn Backend>,
        escalation_policy: PolicyRef,
    ) -> Self {
        Self { transport, parts, backend, escalation_policy, chance: Mutex::new(fastrand::Rng::new()) }
    }

    /// The call of a job, with its credentials as they are sent.
    fn read(&self, job: &Job) -> Result<Call, Unready> {
        let mut call = Call::decode(&job.payload)?;
        call.open_headers(&self.parts.vault, &job.tenant, job.id)
            .map_err(|_| Unready::NotNow(SEALED_HEADERS.to_owned()))?;
        Ok(call)
    }

    async fn enter(&self, job: &Job, call: &Call) -> Admission {
        let turn = if job.attempt > 1 { Turn::Retry } else { Turn::First };
        let origin = call.target.origin().to_string();
        self.parts.gates.wait_for_room(&origin, turn, Instant::now() + GATE_PATIENCE).await;
        let mut rng = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.gates.enter(&origin, call.target.path(), turn, Instant::now(), &mut || rng.f64())
    }

    async fn attempt(&self, cx: &Context, call: &Call, passage: &mut Passage) -> Outcome {
        let outgoing = match self.prepare(cx, call).await {
            Ok(outgoing) => outgoing,
            Err(unready) => return unready.outcome(&cx.job),
        };
        passage.depart(&outgoing.progress);
        let exchange = self.transport.send(outgoing).await;
        passage.arrive(&exchange);
        outcome(&exchange)
    }

    /// The request as this attempt sends it.
    async fn prepare<'a>(&self, cx: &Context, call: &'a Call) -> Result<Outgoing<'a>, Unready> {
        let job = &cx.job;
        let mut outgoing = Outgoing::new(&call.target);
        outgoing.method = Method::from_bytes(call.method.as_bytes())
            .map_err(|_| Unready::Unreadable(Invalid::new("method", "is none")))?;
        outgoing.headers = call.header_map()?;
        introduce(&mut outgoing.headers, job)?;
        outgoing.body = match &call.signing_secret {
            Some(name) => self.sign(&mut outgoing.headers, job, call, name).await?,
            None => self.body(job, &call.body).await?,
        };
        outgoing.previous_attempts = job.attempt.saturating_sub(1);
        outgoing.timeout = cx.timeout;
        Ok(outgoing)
    }

    async fn body(&self, job: &Job, body: &CallBody) -> Result<Upload, Unready> {
        match body {
            CallBody::None => Ok(Upload::empty()),
            CallBody::Inline(bytes) => Ok(Upload::bytes(bytes.clone())),
            CallBody::Stored(name) => {
                let stored = self.parts.bodies.verified(&*self.backend, name, &job.tenant).await?;
                Ok(Upload::stored(stored))
            }
        }
    }

    /// The body, with its signature among the headers. A stored body is signed while it is checked.
    async fn sign(
        &self,
        headers: &mut HeaderMap,
        job: &Job,
        call: &Call,
        name: &str,
    ) -> Result<Upload, Unready> {
        let secrets = self.parts.vault.keys_for(&*self.backend, &job.tenant, name).await?;
        let mut signer = Signer::new(&secrets, &job.id.to_string(), unix_seconds());
        let body = match &call.body {
            CallBody::Stored(name) => {
                let look = |chunk: &[u8]| signer.update(chunk);
                let bodies = &self.parts.bodies;
                Upload::stored(bodies.verified_with(&*self.backend, name, &job.tenant, look).await?)
            }
            CallBody::Inline(bytes) => {
                signer.update(bytes);
                Upload::bytes(bytes.clone())
            }
            CallBody::None => Upload::empty(),
        };
        for (name, value) in signer.finish().iter() {
            headers.insert(name, header("signingSecret", value)?);
        }
        Ok(body)
    }
}

#[async_trait]
impl Handler for Deliverer {
    async fn run(&self, cx: Context) -> Outcome {
        let call = match self.read(&cx.job) {
            Ok(call) => call,
            Err(unready) => return unready.outcome(&cx.job),
        };
        match self.enter(&cx.job, &call).await {
            Admission::Park { wait, .. } => Outcome::Park(wait),
            Admission::Go(permit) => {
                let mut passage = Passage::new(cx.clone(), permit);
                self.attempt(&cx, &call, &mut passage).await
            }
        }
    }

    /// Attempts at one origin take about as long.
    fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        let subject = job.subject.as_deref().unwrap_or_default();
        let end = subject.match_indices('/').nth(2).map_or(subject.len(), |(at, _)| at);
        Cow::Borrowed(&subject[..end])
    }

    fn follow_ups(&self, job: &Job, ending: &Ending<'_>) -> Vec<NewJob> {
        escalate::follow_ups(job, ending, &self.escalation_policy)
    }
}

/// What every attempt carries: the same key always, which attempt it is, and the creator's trace.
fn introduce(headers: &mut HeaderMap, job: &Job) -> Result<(), Invalid> {
    let passport = job.metadata.as_deref().map(Passport::from_json).transpose()?.unwrap_or_default();
    headers.insert("idempotency-key", header("idempotencyKey", &passport.key_for(job))?);
    headers.insert("redrive-task-id", header("taskId", &job.id.to_string())?);
    headers.insert("redrive-attempt", HeaderValue::from(job.attempt));
    for (name, value) in [("traceparent", &passport.traceparent), ("tracestate", &passport.tracestate)] {
        if let Some(value) = value {
            headers.insert(name, header(name, value)?);
        }
    }
    Ok(())
}

fn header(field: &'static str, text: &str) -> Result<HeaderValue, Invalid> {
    HeaderValue::from_str(text).map_err(|_| Invalid::new(field, "cannot be sent as a header"))
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What the answer means for the task.
fn outcome(exchange: &Exchange) -> Outcome {
    if let Some(deferral) = exchange.deferral() {
        return Outcome::Defer(deferral);
    }
    match exchange.failure() {
        None => Outcome::Done(None),
        Some(failure) if exchange.no_retry || failure.fault == Fault::TargetRefused => {
            Outcome::Reject(failure)
        }
        Some(failure) => Outcome::Fail(failure),
    }
}

/// Why an attempt could not even begin.
enum Unready {
    /// The job is not one that this code wrote.
    Unreadable(Invalid),
    /// The body is gone or damaged.
    BodyLost(String),
    /// The secret is gone.
    SecretLost(String),
    /// It may work later or on another node; not the target's fault, so no attempt is charged.
    NotNow(String),
    /// This node cannot make attempts at all.
    Local(LocalFailure),
}

impl Unready {
    fn outcome(self, job: &Job) -> Outcome {
        match self {
            Self::Unreadable(problem) => Outcome::reject(format!("the call cannot be read: {problem}")),
            Self::BodyLost(why) => Outcome::Reject(Failure::new(Fault::BodyLost, why)),
            Self::SecretLost(why) => Outcome::reject(why),
            Self::NotNow(why) => {
                tracing::warn!(job = %job.id, %why, "attempt put off");
                Outcome::Defer(Deferral::with_backoff(job.epoch, why))
            }
            Self::Local(failure) => Outcome::Defer(Deferral::of_node(LOCAL_FAILURE_WAIT, failure)),
        }
    }
}

impl From<Invalid> for Unready {
    fn from(problem: Invalid) -> Self {
        Self::Unreadable(problem)
    }
}

impl From<GetError> for Unready {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Lost(why) => Self::BodyLost(why),
            GetError::Elsewhere { .. } => Self::NotNow(error.to_string()),
            GetError::Unavailable(cause) => match LocalFailure::behind(&*cause) {
                Some(failure) => Self::Local(failure),
                None => Self::NotNow(format!("the body cannot be read for now: {cause}")),
            },
        }
    }
}

impl From<VaultError> for Unready {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::Store(cause) => Self::NotNow(format!("the secret cannot be read for now: {cause}")),
            VaultError::Contended | VaultError::WrongKey => Self::NotNow(error.to_string()),
            VaultError::Exists | VaultError::NotFound | VaultError::Invalid(_) => {
                Self::SecretLost(format!("the call cannot be signed: {error}"))
            }
        }
    }
}
