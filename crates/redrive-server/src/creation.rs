//! Turns a request for a task into a job: checks every field, resolves the policy, computes the fingerprint and stores a large body.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use redrive_core::limits::HORIZON;
use redrive_core::store::EnqueueResult;
use redrive_core::{
    Idempotency, IdempotencyKey, JobId, Kind, NewJob, Policy, Priority, Start, Tenant, Timestamp, catalog,
};
use redrive_delivery::call::{BODY_INLINE_BYTES_MAX, check_callback_target, read_method};
use redrive_delivery::encoding::LENIENT_BASE64;
use redrive_delivery::{BodyRef, Call, CallBody, HeaderText, KIND, PropagatedContext, Target};
use sha2::{Digest, Sha256};

use crate::api::{self, Api};
use crate::auth::Caller;
use crate::error::{Answer, Problem};
use crate::policies::{ResolvedPolicy, parse_policy};
use crate::present;
use redrive_wire::Code;
use redrive_wire::millis::ms;
use redrive_wire::policy::{
    ON_FAILURE_URL, ON_SUCCESS_URL, RetryPolicy, SIGNING_SECRET, attempt_timeout, on_failure_url,
};
use redrive_wire::state::JobState;
use redrive_wire::task::{Task, TaskRequest};

/// The header with the idempotency key.
const KEY_HEADER: &str = "Idempotency-Key";

/// A task whose fields were checked. Its body is not stored yet, and its job has no payload yet.
pub(crate) struct Draft {
    job: NewJob,
    call: Call,
    context: PropagatedContext,
    max_attempts: u32,
    now: Timestamp,
}

/// A job that is ready to be enqueued, and the task that the API returns for it.
pub(crate) struct ReadyTask {
    pub(crate) job: NewJob,
    pub(crate) task: Task,
    /// The body that was stored for the task or attached to it.
    pub(crate) body: Option<BodyRef>,
}

/// The idempotency key and the trace context from the headers of a request that creates tasks.
#[derive(Debug, Default)]
pub(crate) struct CreationHeaders {
    key: Option<String>,
    context: PropagatedContext,
}

impl CreationHeaders {
    /// Reads the headers of a request that creates one task. `X-Request-Id` is not used as the key, because a program may create
    /// several tasks with one request id.
    pub(crate) fn for_one_task(headers: &HeaderMap) -> Answer<Self> {
        Ok(Self { key: header_key(headers)?.map(str::to_owned), context: Self::trace(headers) })
    }

    /// Reads the headers of a request that creates several tasks. It ignores the key, because each task needs its own.
    pub(crate) fn for_many_tasks(headers: &HeaderMap) -> Self {
        Self { key: None, context: Self::trace(headers) }
    }

    fn trace(headers: &HeaderMap) -> PropagatedContext {
        let traceparent = valid_header(headers, "traceparent", |traceparent| PropagatedContext {
            traceparent,
            ..PropagatedContext::default()
        });
        // `tracestate` has no meaning without a valid `traceparent`.
        let tracestate = traceparent.as_ref().and_then(|_| {
            valid_header(headers, "tracestate", |tracestate| PropagatedContext {
                tracestate,
                ..PropagatedContext::default()
            })
        });
        PropagatedContext { key: None, traceparent, tracestate }
    }
}

/// The value of a header, if it can be propagated. An invalid value is dropped, and the task is created without it.
fn valid_header(
    headers: &HeaderMap,
    name: &str,
    part: impl Fn(Option<String>) -> PropagatedContext,
) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.to_owned();
    part(Some(value.clone())).check().is_ok().then_some(value)
}

/// Checks a request and builds the job. It writes to the store only if the request has an inline policy that is new.
pub(crate) async fn draft(
    api: &Arc<Api>,
    caller: &Caller,
    mut request: TaskRequest,
    headers: &CreationHeaders,
) -> Answer<Draft> {
    let now = api::now();
    let start = start(&request, now)?;
    let priority = request.priority.map(Priority::new).transpose()?.unwrap_or_default();
    let timeout = attempt_timeout("timeoutMs", request.timeout_ms)?;
    let key = dedupe_key(&mut request, headers)?;
    let resolved = policy(api, &mut request).await?;
    let body = body(&mut request)?;
    let call = call(&mut request, &resolved.policy, body)?;
    let fingerprint = key.as_ref().map(|_| fingerprint(&call, &resolved, &request, priority));
    let job = NewJob {
        tenant: caller.acts_for.clone(),
        priority,
        start,
        timeout,
        lease: resolved.policy.lease,
        target: Some(call.target.to_string()),
        metadata: context_metadata(&headers.context),
        idempotency: key.zip(fingerprint).map(|(key, fingerprint)| Idempotency { key, fingerprint }),
        ..NewJob::new(JobId(uuid::Uuid::now_v7()), Kind::new(KIND)?, resolved.reference.clone(), Vec::new())
    };
    let max_attempts = resolved.policy.max_attempts.get();
    Ok(Draft { job, call, context: headers.context.clone(), max_attempts, now })
}

/// Looks up the drafts that repeat an earlier request, in one read, and returns a result for each of them. It skips drafts without
/// a body to store or attach: for them, the enqueue itself finds the earlier task.
pub(crate) async fn find_repeats(api: &Api, drafts: &[&Draft]) -> Answer<Vec<Option<EnqueueResult>>> {
    let mut results = vec![None; drafts.len()];
    let keyed: Vec<usize> = (0..drafts.len()).filter(|n| drafts[*n].key_with_body().is_some()).collect();
    if keyed.is_empty() {
        return Ok(results);
    }
    let jobs = keyed.iter().map(|n| drafts[*n].job.clone()).collect();
    for (n, result) in keyed.iter().zip(api.store.find(jobs).await?) {
        results[*n] = result;
    }
    Ok(results)
}

impl Draft {
    /// The idempotency key, if the body must be stored or attached before the task is enqueued.
    pub(crate) fn key_with_body(&self) -> Option<&Idempotency> {
        let has_body = match &self.call.body {
            CallBody::None => false,
            CallBody::Inline(bytes) => bytes.len() > BODY_INLINE_BYTES_MAX,
            CallBody::Stored(_) => true,
        };
        self.job.idempotency.as_ref().filter(|_| has_body)
    }

    /// Stores or attaches the body, and makes the checks that need the store.
    pub(crate) async fn prepare(self, api: &Arc<Api>) -> Answer<ReadyTask> {
        let Self { mut job, mut call, context, max_attempts, now } = self;
        let body = store_or_attach_body(api, job.id, &job.tenant, &mut call).await?;
        if let Some(secret) = &call.signing_secret {
            api.check_secret(&job.tenant, secret).await?;
        }
        call.check()?;
        call.seal_headers(&api.parts.vault, &job.tenant, job.id);
        job.payload = call.encode();
        job.check()?;
        let task = new_task(&job, call, &context, max_attempts, now);
        Ok(ReadyTask { job, task, body })
    }
}

/// The task as the API shows it right after its creation. Its times come from this node's clock.
fn new_task(
    job: &NewJob,
    call: Call,
    context: &PropagatedContext,
    max_attempts: u32,
    now: Timestamp,
) -> Task {
    let due = match job.start {
        Start::Now => now,
        Start::After(wait) => now.after(wait),
        Start::At(at) => at,
    };
    Task {
        task_id: job.id.to_string(),
        tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
        idempotency_key: context.key(job.idempotency.as_ref().map(|idempotency| &idempotency.key), job.id),
        policy_id: job.policy.name.as_str().to_owned(),
        policy_version: job.policy.version.get(),
        state: JobState::Pending,
        max_attempts: Some(max_attempts),
        next_attempt_at: Some(due.as_ms()),
        created_at: now.as_ms(),
        priority: job.priority.get(),
        timeout_ms: job.timeout.map(ms),
        ..present::call(call)
    }
}

fn start(request: &TaskRequest, now: Timestamp) -> Answer<Start> {
    match (request.delay_ms, request.run_at) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("runAt", "cannot be combined with delayMs; send one of them"))
        }
        (None, None) => Ok(Start::Now),
        (Some(delay), None) if Duration::from_millis(delay) > HORIZON => {
            Err(Problem::invalid("delayMs", format!("must be at most {} (a year)", HORIZON.as_millis())))
        }
        (Some(delay), None) => Ok(Start::After(Duration::from_millis(delay))),
        // The store's clock may be slightly behind this node's clock.
        (None, Some(at)) if Timestamp::from_ms(at) > now.after(HORIZON - Duration::from_secs(1)) => {
            Err(Problem::invalid("runAt", "must be at most one year ahead"))
        }
        // The time budget starts when a task is due, so a time in the past could use it up before the first attempt.
        (None, Some(at)) if at <= now.as_ms() => Ok(Start::Now),
        (None, Some(at)) => Ok(Start::At(Timestamp::from_ms(at))),
    }
}

/// The idempotency key in the headers of a request.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Answer<Option<IdempotencyKey>> {
    Ok(header_key(headers)?.map(IdempotencyKey::new).transpose()?)
}

fn header_key(headers: &HeaderMap) -> Answer<Option<&str>> {
    let unreadable = |_| Problem::invalid(KEY_HEADER, "must be visible ASCII");
    let key = headers.get(KEY_HEADER).map(|value| value.to_str().map_err(unreadable)).transpose()?;
    // An invalid header is rejected even if the body has a key.
    key.map(IdempotencyKey::new)
        .transpose()
        .map_err(|invalid| Problem::invalid(KEY_HEADER, invalid.problem))?;
    Ok(key)
}

fn dedupe_key(request: &mut TaskRequest, headers: &CreationHeaders) -> Answer<Option<IdempotencyKey>> {
    let Some(key) = request.idempotency_key.take().or_else(|| headers.key.clone()) else { return Ok(None) };
    // Every attempt sends the key as a header, so it must be a valid header value.
    PropagatedContext { key: Some(key.clone()), ..PropagatedContext::default() }.check()?;
    Ok(Some(IdempotencyKey::new(key)?))
}

async fn policy(api: &Arc<Api>, request: &mut TaskRequest) -> Answer<ResolvedPolicy> {
    match (request.policy_id.as_deref(), request.policy.take()) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("policy", "cannot be combined with policyId; send one of them"))
        }
        (None, Some(inline)) => Ok(api.policies.inline(inline_policy(&inline)?).await?),
        (named, None) => {
            let name = named.unwrap_or(catalog::DEFAULT);
            let current = api.policies.current(name).await?;
            current.ok_or_else(|| {
                let detail = format!("the policy {name:?} is not registered; POST /v1/policies registers it");
                Problem::invalid("policyId", detail).with_code(Code::UnknownPolicy)
            })
        }
    }
}

fn inline_policy(inline: &RetryPolicy) -> Answer<Policy> {
    if inline.policy_id.is_some() {
        return Err(Problem::invalid("policy.policyId", "a policy for one task has no name; omit policyId"));
    }
    parse_policy(inline).map_err(|problem| problem.within("policy"))
}

/// The body of a call, with the content type that its field implies.
struct TypedBody {
    bytes: CallBody,
    content_type: Option<&'static str>,
}

fn body(request: &mut TaskRequest) -> Answer<TypedBody> {
    let fields = [
        ("body", request.body.is_some()),
        ("bodyJson", request.body_json.is_some()),
        ("bodyBase64", request.body_base64.is_some()),
        ("bodyRef", request.body_ref.is_some()),
    ];
    let mut present = fields.into_iter().filter(|(_, is_present)| *is_present).map(|(field, _)| field);
    if let (Some(first), Some(second)) = (present.next(), present.next()) {
        return Err(Problem::invalid(second, format!("cannot be combined with {first}; send one of them")));
    }
    let untyped = |bytes| TypedBody { bytes, content_type: None };
    if let Some(text) = request.body.take() {
        return Ok(untyped(CallBody::Inline(text.into_bytes())));
    }
    if let Some(json) = request.body_json.take() {
        let bytes = CallBody::Inline(String::from(Box::<str>::from(json)).into_bytes());
        return Ok(TypedBody { bytes, content_type: Some("application/json") });
    }
    if let Some(encoded) = request.body_base64.take() {
        let bytes = LENIENT_BASE64.decode(encoded);
        let bytes =
            bytes.map_err(|error| Problem::invalid("bodyBase64", format!("is not base64: {error}")))?;
        return Ok(untyped(CallBody::Inline(bytes)));
    }
    match request.body_ref.take() {
        Some(name) => Ok(untyped(CallBody::Stored(name.parse()?))),
        None => Ok(untyped(CallBody::None)),
    }
}

fn call(request: &mut TaskRequest, policy: &Policy, body: TypedBody) -> Answer<Call> {
    let target = Target::parse(&request.target)?;
    let headers = request.headers.take().unwrap_or_default().into_iter();
    let mut headers: Vec<(String, HeaderText)> = headers.map(|(name, value)| (name, value.into())).collect();
    if let Some(content_type) = body.content_type {
        if target.scheme().is_grpc() {
            let detail = "a gRPC call sends its serialised message: use bodyBase64";
            return Err(Problem::invalid("bodyJson", detail));
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            headers.push(("content-type".to_owned(), content_type.into()));
        }
    }
    let own_or_policy =
        |own: Option<String>, name: &str| own.or_else(|| policy.annotations.get(name).cloned());
    let callback = |field: &'static str, url: Option<String>| {
        let target = url.map(|url| Target::parse_as(field, &url)).transpose()?;
        target.as_ref().map_or(Ok(()), |target| check_callback_target(field, target))?;
        Answer::Ok(target)
    };
    Ok(Call {
        method: read_method(request.method.as_deref())?,
        headers,
        body: body.bytes,
        signing_secret: own_or_policy(request.signing_secret.clone(), SIGNING_SECRET),
        on_success: callback(ON_SUCCESS_URL, own_or_policy(request.on_success_url.clone(), ON_SUCCESS_URL))?,
        on_failure: callback(
            ON_FAILURE_URL,
            request.on_failure_url.clone().or_else(|| on_failure_url(policy).cloned()),
        )?,
        target,
    })
}

/// Stores a large inline body in the object store, or attaches a body that the tenant uploaded earlier. Fails if the tenant has no
/// such body.
async fn store_or_attach_body(
    api: &Arc<Api>,
    id: JobId,
    tenant: &Tenant,
    call: &mut Call,
) -> Answer<Option<BodyRef>> {
    match &mut call.body {
        CallBody::None => Ok(None),
        CallBody::Inline(bytes) if bytes.len() <= BODY_INLINE_BYTES_MAX => Ok(None),
        CallBody::Inline(bytes) => {
            let stored = api.store_body(id, tenant, std::mem::take(bytes)).await?;
            call.body = CallBody::Stored(stored);
            Ok(Some(stored))
        }
        CallBody::Stored(name) => {
            api.attach_body(id, tenant, name).await?;
            Ok(Some(*name))
        }
    }
}

/// A hash that distinguishes a repeat from a different request with the same key. It covers every field that the caller sent, and
/// nothing that differs between two sends of the same request.
fn fingerprint(
    call: &Call,
    resolved: &ResolvedPolicy,
    request: &TaskRequest,
    priority: Priority,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(call.target.to_string().as_bytes());
    part(call.method.as_bytes());
    part(&(call.headers.len() as u64).to_le_bytes());
    for (name, value) in &call.headers {
        part(name.to_ascii_lowercase().as_bytes());
        part(value.plain().unwrap_or_default().as_bytes());
    }
    match &call.body {
        CallBody::None => part(b"none"),
        CallBody::Inline(bytes) => {
            part(b"inline");
            part(bytes);
        }
        CallBody::Stored(name) => {
            part(b"stored");
            part(name.to_string().as_bytes());
        }
    }
    // The version of the policy is left out, so that a repeat after an edit of the policy is still the same request.
    part(resolved.reference.name.as_str().as_bytes());
    part(format!("{:?} {:?} {:?}", request.delay_ms, request.run_at, request.timeout_ms).as_bytes());
    part(&[priority.get()]);
    for own in [&request.on_success_url, &request.on_failure_url, &request.signing_secret] {
        part(own.as_deref().unwrap_or_default().as_bytes());
    }
    hash.finalize().into()
}

fn context_metadata(context: &PropagatedContext) -> Option<String> {
    (*context != PropagatedContext::default()).then(|| context.to_json())
}
