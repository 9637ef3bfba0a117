//! Makes one attempt of a task: passes the gate, reads the body, signs the request, sends it, and turns the answer into an outcome.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method};
use redrive_core::store::Backend;
use redrive_core::{Deferral, Failure, FailureKind, Invalid, Job, NewJob, Outcome, PolicyRef};
use redrive_worker::{Context, Handler, JobEnd};
use tokio::time::Instant;

use crate::bodies::{Bodies, GetError};
use crate::call::{Call, CallBody, PropagatedContext};
use crate::callback;
use crate::gate::{AttemptKind, EnterResult, Gates};
use crate::gated_call::GatedCall;
use crate::secrets::{Vault, VaultError};
use crate::sign::Signer;
use crate::transport::Transport;
use crate::transport::exchange::{Exchange, LOCAL_FAILURE_WAIT, OutgoingRequest};
use crate::transport::local::LocalFailure;
use crate::transport::upload::Upload;

/// The kind of the jobs that a [`Deliverer`] handles.
pub const KIND: &str = "delivery";
/// How long an attempt waits at a gate that has reached its limit before the task is held.
const GATE_WAIT: Duration = Duration::from_millis(20);

/// The last error of a task whose headers this node cannot decrypt.
const SEALED_HEADERS: &str = "the headers of this task were encrypted with another key: start every node with the key that the task was created under";

/// The parts of the delivery that the API uses too: gates, large bodies, signing secrets.
#[derive(Clone)]
pub struct DeliveryParts {
    /// The gates of this node.
    pub gates: Arc<Gates>,
    /// Bodies that are stored outside their jobs.
    pub bodies: Bodies,
    /// Signing secrets.
    pub vault: Arc<Vault>,
}

/// The handler of every task: delivers its call.
pub struct Deliverer {
    transport: Transport,
    parts: DeliveryParts,
    backend: Arc<dyn Backend>,
    /// The policy of callbacks.
    callback_policy: PolicyRef,
    rng: Mutex<fastrand::Rng>,
}

impl Deliverer {
    /// Delivers the tasks of `backend` with `transport`. Callbacks use `callback_policy`, which must exist.
    pub fn new(
        transport: Transport,
        parts: DeliveryParts,
        backend: Arc<dyn Backend>,
        callback_policy: PolicyRef,
    ) -> Self {
        Self { transport, parts, backend, callback_policy, rng: Mutex::new(fastrand::Rng::new()) }
    }

    /// The call of a job, with decrypted credentials.
    fn read(&self, job: &Job) -> Result<Call, PreparationError> {
        let mut call = Call::decode(&job.payload)?;
        call.open_headers(&self.parts.vault, &job.tenant, job.id)
            .map_err(|_| PreparationError::Deferred(SEALED_HEADERS.to_owned()))?;
        Ok(call)
    }

    async fn enter(&self, job: &Job, call: &Call) -> EnterResult {
        let kind = if job.attempt > 1 { AttemptKind::Retry } else { AttemptKind::First };
        let origin = call.target.origin().to_string();
        self.parts.gates.wait_while_full(&origin, kind, Instant::now() + GATE_WAIT).await;
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.gates.enter(&origin, call.target.path(), kind, Instant::now(), &mut || rng.f64())
    }

    async fn attempt(&self, cx: &Context, call: &Call, gated_call: &mut GatedCall) -> Outcome {
        let outgoing = match self.prepare(cx, call).await {
            Ok(outgoing) => outgoing,
            Err(error) => return error.outcome(&cx.job),
        };
        gated_call.start_sending(&outgoing.progress);
        let exchange = self.transport.send(outgoing).await;
        gated_call.finish(&exchange);
        outcome(&exchange)
    }

    /// The request of this attempt.
    async fn prepare<'a>(
        &self,
        cx: &Context,
        call: &'a Call,
    ) -> Result<OutgoingRequest<'a>, PreparationError> {
        let job = &cx.job;
        let mut outgoing = OutgoingRequest::new(&call.target);
        outgoing.method = Method::from_bytes(call.method.as_bytes())
            .map_err(|_| PreparationError::Unreadable(Invalid::new("method", "is not a method")))?;
        outgoing.headers = call.header_map()?;
        add_task_headers(&mut outgoing.headers, job)?;
        outgoing.body = match &call.signing_secret {
            Some(name) => self.sign(&mut outgoing.headers, job, call, name).await?,
            None => self.body(job, &call.body).await?,
        };
        outgoing.previous_attempts = job.attempt.saturating_sub(1);
        outgoing.timeout = cx.timeout;
        Ok(outgoing)
    }

    async fn body(&self, job: &Job, body: &CallBody) -> Result<Upload, PreparationError> {
        match body {
            CallBody::None => Ok(Upload::empty()),
            CallBody::Inline(bytes) => Ok(Upload::bytes(bytes.clone())),
            CallBody::Stored(name) => {
                let stored = self.parts.bodies.get_verified(&*self.backend, name, &job.tenant).await?;
                Ok(Upload::stored(stored))
            }
        }
    }

    /// The body. Adds its signature to the headers. A stored body is signed while it is verified, in one read.
    async fn sign(
        &self,
        headers: &mut HeaderMap,
        job: &Job,
        call: &Call,
        name: &str,
    ) -> Result<Upload, PreparationError> {
        let secrets = self.parts.vault.active_secrets(&*self.backend, &job.tenant, name).await?;
        let mut signer = Signer::new(&secrets, &job.id.to_string(), unix_seconds());
        let body = match &call.body {
            CallBody::Stored(name) => {
                let sign = |chunk: &[u8]| signer.update(chunk);
                let bodies = &self.parts.bodies;
                Upload::stored(bodies.get_verified_with(&*self.backend, name, &job.tenant, sign).await?)
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
            Err(error) => return error.outcome(&cx.job),
        };
        match self.enter(&cx.job, &call).await {
            EnterResult::Held { wait, .. } => Outcome::Hold(wait),
            EnterResult::Admitted(permit) => {
                let mut gated_call = GatedCall::new(cx.clone(), permit);
                self.attempt(&cx, &call, &mut gated_call).await
            }
        }
    }

    /// Attempts to the same origin take about the same time.
    fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        let target = job.target.as_deref().unwrap_or_default();
        let end = target.match_indices('/').nth(2).map_or(target.len(), |(at, _)| at);
        Cow::Borrowed(&target[..end])
    }

    fn follow_ups(&self, job: &Job, end: &JobEnd<'_>) -> Vec<NewJob> {
        callback::follow_ups(job, end, &self.callback_policy)
    }
}

/// Adds the idempotency key, which is the same on every attempt, the id of the task, the number of the attempt, and the trace context of
/// the creator.
fn add_task_headers(headers: &mut HeaderMap, job: &Job) -> Result<(), Invalid> {
    let context = job.metadata.as_deref().map(PropagatedContext::from_json).transpose()?.unwrap_or_default();
    headers.insert("idempotency-key", header("idempotencyKey", &context.key_for(job))?);
    headers.insert("redrive-task-id", header("taskId", &job.id.to_string())?);
    headers.insert("redrive-attempt", HeaderValue::from(job.attempt));
    for (name, value) in [("traceparent", &context.traceparent), ("tracestate", &context.tracestate)] {
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

/// The outcome of the attempt.
fn outcome(exchange: &Exchange) -> Outcome {
    if let Some(deferral) = exchange.deferral() {
        return Outcome::Defer(deferral);
    }
    match exchange.to_failure() {
        None => Outcome::Done(None),
        Some(failure) if exchange.no_retry || failure.kind == FailureKind::TargetRefused => {
            Outcome::Reject(failure)
        }
        Some(failure) => Outcome::Fail(failure),
    }
}

/// Why the request of an attempt could not be prepared.
enum PreparationError {
    /// The payload is not a call.
    Unreadable(Invalid),
    /// The body is gone or damaged.
    BodyLost(String),
    /// The secret is gone.
    SecretLost(String),
    /// The request may succeed later or on another node. The target did not cause the failure, so no attempt is charged.
    Deferred(String),
    /// This node cannot make attempts at all.
    Local(LocalFailure),
}

impl PreparationError {
    fn outcome(self, job: &Job) -> Outcome {
        match self {
            Self::Unreadable(problem) => Outcome::reject(format!("the call cannot be read: {problem}")),
            Self::BodyLost(why) => Outcome::Reject(Failure::new(FailureKind::BodyLost, why)),
            Self::SecretLost(why) => Outcome::reject(why),
            Self::Deferred(why) => {
                tracing::warn!(job = %job.id, %why, "an attempt is deferred");
                Outcome::Defer(Deferral::with_backoff(job.lease_count(), why))
            }
            Self::Local(failure) => Outcome::Defer(Deferral::of_node(LOCAL_FAILURE_WAIT, failure)),
        }
    }
}

impl From<Invalid> for PreparationError {
    fn from(problem: Invalid) -> Self {
        Self::Unreadable(problem)
    }
}

impl From<GetError> for PreparationError {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Lost(why) => Self::BodyLost(why),
            GetError::OtherLocation { .. } => Self::Deferred(error.to_string()),
            GetError::Unavailable(cause) => match LocalFailure::find_in(&*cause) {
                Some(failure) => Self::Local(failure),
                None => Self::Deferred(format!("the body cannot be read at the moment: {cause}")),
            },
        }
    }
}

impl From<VaultError> for PreparationError {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::Store(cause) => {
                Self::Deferred(format!("the signing secret cannot be read at the moment: {cause}"))
            }
            VaultError::WrongKey => Self::Deferred(error.to_string()),
            VaultError::Exists | VaultError::NotFound | VaultError::Invalid(_) => {
                Self::SecretLost(format!("the call cannot be signed: {error}"))
            }
        }
    }
}
