//! From a request to a job: what is asked for is checked, named by its field, and fingerprinted.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use redrive_core::limits::HORIZON;
use redrive_core::store::Enqueued;
use redrive_core::{
    Idempotency, IdempotencyKey, JobId, Kind, NewJob, Policy, Priority, Start, Tenant, Timestamp, catalog,
};
use redrive_delivery::call::{BODY_INLINE_BYTES_MAX, check_report_target, read_method};
use redrive_delivery::encoding::LENIENT_BASE64;
use redrive_delivery::{BodyRef, Call, CallBody, HeaderText, KIND, Passport, Target};
use sha2::{Digest, Sha256};

use crate::api::{self, Api};
use crate::auth::Caller;
use crate::error::{Answer, Code, Problem};
use crate::policies::Resolved;
use crate::wire::policy::{
    ON_EXHAUSTED_URL, ON_SUCCESS_URL, RetryPolicy, SIGNING_SECRET, attempt_timeout, ms,
};
use crate::wire::status::Status;
use crate::wire::task::{Task, TaskRequest};

/// The header that makes a request repeatable.
const KEY_HEADER: &str = "Idempotency-Key";

/// A task that was checked. Its body is not stored yet, and its job has no payload yet.
pub(crate) struct Draft {
    job: NewJob,
    call: Call,
    passport: Passport,
    max_attempts: u32,
    now: Timestamp,
}

/// A task that may be enqueued, and how it will be shown.
pub(crate) struct ReadyTask {
    pub(crate) job: NewJob,
    pub(crate) task: Task,
    /// The body that was stored or claimed for it.
    pub(crate) body: Option<BodyRef>,
}

/// What the creating request itself says, beside its body.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    key: Option<String>,
    passport: Passport,
}

impl Origin {
    /// Of a request that creates one task: it may name the key. Its `X-Request-Id` is no key, because a program may
    /// create several tasks under one.
    pub(crate) fn of_one(headers: &HeaderMap) -> Answer<Self> {
        Ok(Self { key: header_key(headers)?.map(str::to_owned), passport: Self::trace(headers) })
    }

    /// Of a request that creates many: one key cannot be that of each.
    pub(crate) fn of_many(headers: &HeaderMap) -> Self {
        Self { key: None, passport: Self::trace(headers) }
    }

    fn trace(headers: &HeaderMap) -> Passport {
        let traceparent =
            usable(headers, "traceparent", |traceparent| Passport { traceparent, ..Passport::default() });
        // A state without its trace means nothing.
        let tracestate = traceparent.as_ref().and_then(|_| {
            usable(headers, "tracestate", |tracestate| Passport { tracestate, ..Passport::default() })
        });
        Passport { key: None, traceparent, tracestate }
    }
}

/// A header that can be passed on; one that cannot is no reason to refuse a task.
fn usable(headers: &HeaderMap, name: &str, part: impl Fn(Option<String>) -> Passport) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.to_owned();
    part(Some(value.clone())).check().is_ok().then_some(value)
}

/// Checks a request and makes a job of it. Only an inline policy that is new costs a write.
pub(crate) async fn draft(
    api: &Arc<Api>,
    caller: &Caller,
    mut request: TaskRequest,
    origin: &Origin,
) -> Answer<Draft> {
    let now = api::now();
    let start = start(&request, now)?;
    let priority = request.priority.map(Priority::new).transpose()?.unwrap_or_default();
    let timeout = attempt_timeout("timeoutMs", request.timeout_ms)?;
    let key = dedupe_key(&mut request, origin)?;
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
        subject: Some(call.target.to_string()),
        metadata: passport(&origin.passport),
        idempotency: key.zip(fingerprint).map(|(key, fingerprint)| Idempotency { key, fingerprint }),
        ..NewJob::new(JobId(uuid::Uuid::now_v7()), Kind::new(KIND)?, resolved.reference.clone(), Vec::new())
    };
    let max_attempts = resolved.policy.max_attempts.get();
    Ok(Draft { job, call, passport: origin.passport.clone(), max_attempts, now })
}

/// The answers to those drafts that repeat an earlier request, in one read. Only drafts whose body would have to be stored or
/// claimed are looked for: an enqueue tells the others for itself.
pub(crate) async fn find_repeats(api: &Api, drafts: &[&Draft]) -> Answer<Vec<Option<Enqueued>>> {
    let mut answers = vec![None; drafts.len()];
    let keyed: Vec<usize> = (0..drafts.len()).filter(|n| drafts[*n].key_with_body().is_some()).collect();
    if keyed.is_empty() {
        return Ok(answers);
    }
    let asked = keyed.iter().map(|n| drafts[*n].job.clone()).collect();
    for (n, answer) in keyed.iter().zip(api.store.find(asked).await?) {
        answers[*n] = answer;
    }
    Ok(answers)
}

impl Draft {
    /// The key of a request whose body has to be stored or claimed first.
    pub(crate) fn key_with_body(&self) -> Option<&Idempotency> {
        let has_body = match &self.call.body {
            CallBody::None => false,
            CallBody::Inline(bytes) => bytes.len() > BODY_INLINE_BYTES_MAX,
            CallBody::Stored(_) => true,
        };
        self.job.idempotency.as_ref().filter(|_| has_body)
    }

    /// Stores or claims its body, and checks what is left to check.
    pub(crate) async fn place(self, api: &Arc<Api>) -> Answer<ReadyTask> {
        let Self { mut job, mut call, passport, max_attempts, now } = self;
        let body = place_body(api, job.id, &job.tenant, &mut call).await?;
        if let Some(secret) = &call.signing_secret {
            api.check_secret(&job.tenant, secret).await?;
        }
        call.check()?;
        call.seal_headers(&api.parts.vault, &job.tenant, job.id);
        job.payload = call.encode();
        job.check()?;
        let task = shown(&job, call, &passport, max_attempts, now);
        Ok(ReadyTask { job, task, body })
    }
}

/// The task as it is about to be, by this node's clock.
fn shown(job: &NewJob, call: Call, passport: &Passport, max_attempts: u32, now: Timestamp) -> Task {
    let due = match job.start {
        Start::Now => now,
        Start::After(wait) => now.after(wait),
        Start::At(at) => at,
    };
    Task {
        task_id: job.id.to_string(),
        tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
        idempotency_key: passport.key(job.idempotency.as_ref().map(|held| &held.key), job.id),
        policy_id: job.policy.name.as_str().to_owned(),
        policy_version: job.policy.version.get(),
        status: Some(Status::Pending),
        max_attempts: Some(max_attempts),
        next_attempt_at: Some(due.as_ms()),
        created_at: now.as_ms(),
        priority: job.priority.get(),
        timeout_ms: job.timeout.map(ms),
        ..Task::of_call(call)
    }
}

fn start(request: &TaskRequest, now: Timestamp) -> Answer<Start> {
    match (request.delay_ms, request.run_at) {
        (Some(_), Some(_)) => Err(Problem::invalid("runAt", "is there beside delayMs; send one of them")),
        (None, None) => Ok(Start::Now),
        (Some(delay), None) if Duration::from_millis(delay) > HORIZON => {
            Err(Problem::invalid("delayMs", format!("must be at most {} (a year)", HORIZON.as_millis())))
        }
        (Some(delay), None) => Ok(Start::After(Duration::from_millis(delay))),
        // The store's clock may be a little behind this one.
        (None, Some(at)) if Timestamp::from_ms(at) > now.after(HORIZON - Duration::from_secs(1)) => {
            Err(Problem::invalid("runAt", "must be at most one year ahead"))
        }
        // The budget counts from when a task is due: a time long past would have used it up.
        (None, Some(at)) if at <= now.as_ms() => Ok(Start::Now),
        (None, Some(at)) => Ok(Start::At(Timestamp::from_ms(at))),
    }
}

/// The key in the header of a request that may be repeated.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Answer<Option<IdempotencyKey>> {
    let key = header_key(headers)?.map(IdempotencyKey::new).transpose();
    key.map_err(|invalid| Problem::invalid(KEY_HEADER, invalid.problem))
}

fn header_key(headers: &HeaderMap) -> Answer<Option<&str>> {
    let unreadable = |_| Problem::invalid(KEY_HEADER, "must be visible ASCII");
    headers.get(KEY_HEADER).map(|value| value.to_str().map_err(unreadable)).transpose()
}

fn dedupe_key(request: &mut TaskRequest, origin: &Origin) -> Answer<Option<IdempotencyKey>> {
    let Some(key) = request.idempotency_key.take().or_else(|| origin.key.clone()) else { return Ok(None) };
    // It is sent as a header with every attempt.
    Passport { key: Some(key.clone()), ..Passport::default() }.check()?;
    Ok(Some(IdempotencyKey::new(key)?))
}

async fn policy(api: &Arc<Api>, request: &mut TaskRequest) -> Answer<Resolved> {
    match (request.policy_id.as_deref(), request.policy.take()) {
        (Some(_), Some(_)) => Err(Problem::invalid("policy", "is there beside policyId; send one of them")),
        (None, Some(inline)) => Ok(api.policies.inline(inline_policy(&inline)?).await?),
        (named, None) => {
            let name = named.unwrap_or(catalog::DEFAULT);
            let current = api.policies.current(name).await?;
            current.ok_or_else(|| {
                let detail =
                    format!("the policy {name:?} is not registered; POST /retry-policies registers it");
                Problem::invalid("policyId", detail).with_code(Code::UnknownPolicy)
            })
        }
    }
}

fn inline_policy(inline: &RetryPolicy) -> Answer<Policy> {
    if inline.policy_id.is_some() {
        return Err(Problem::invalid("policy.policyId", "a policy for one task has no name; leave it out"));
    }
    inline.to_policy().map_err(|problem| problem.within("policy"))
}

/// What is sent, with the content type that goes with it.
struct Sent {
    bytes: CallBody,
    content_type: Option<&'static str>,
}

fn body(request: &mut TaskRequest) -> Answer<Sent> {
    let given = [
        ("body", request.body.is_some()),
        ("bodyJson", request.body_json.is_some()),
        ("bodyBase64", request.body_base64.is_some()),
        ("bodyRef", request.body_ref.is_some()),
    ];
    let mut given = given.into_iter().filter(|(_, given)| *given).map(|(field, _)| field);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        return Err(Problem::invalid(second, format!("is there beside {first}; send one of them")));
    }
    let plain = |bytes| Sent { bytes, content_type: None };
    if let Some(text) = request.body.take() {
        return Ok(plain(CallBody::Inline(text.into_bytes())));
    }
    if let Some(json) = request.body_json.take() {
        let bytes = CallBody::Inline(String::from(Box::<str>::from(json)).into_bytes());
        return Ok(Sent { bytes, content_type: Some("application/json") });
    }
    if let Some(encoded) = request.body_base64.take() {
        let bytes = LENIENT_BASE64.decode(encoded);
        let bytes =
            bytes.map_err(|error| Problem::invalid("bodyBase64", format!("is not base64: {error}")))?;
        return Ok(plain(CallBody::Inline(bytes)));
    }
    match request.body_ref.take() {
        Some(name) => Ok(plain(CallBody::Stored(name.parse()?))),
        None => Ok(plain(CallBody::None)),
    }
}

fn call(request: &mut TaskRequest, policy: &Policy, body: Sent) -> Answer<Call> {
    let target = Target::parse(&request.target_url)?;
    let given = request.headers.take().unwrap_or_default().into_iter();
    let mut headers: Vec<(String, HeaderText)> = given.map(|(name, value)| (name, value.into())).collect();
    if let Some(content_type) = body.content_type {
        if target.scheme().is_grpc() {
            let detail = "a gRPC call sends its serialised message: use bodyBase64";
            return Err(Problem::invalid("bodyJson", detail));
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            headers.push(("content-type".to_owned(), content_type.into()));
        }
    }
    let kept = |own: Option<String>, name: &str| own.or_else(|| policy.annotations.get(name).cloned());
    let url = |field: &'static str, url: Option<String>| {
        let target = url.map(|url| Target::parse_as(field, &url)).transpose()?;
        target.as_ref().map_or(Ok(()), |target| check_report_target(field, target))?;
        Answer::Ok(target)
    };
    Ok(Call {
        method: read_method(request.method.as_deref())?,
        headers,
        body: body.bytes,
        signing_secret: kept(request.signing_secret.clone(), SIGNING_SECRET),
        on_success: url(ON_SUCCESS_URL, kept(request.on_success_url.clone(), ON_SUCCESS_URL))?,
        on_exhausted: url(ON_EXHAUSTED_URL, kept(request.on_exhausted_url.clone(), ON_EXHAUSTED_URL))?,
        target,
    })
}

/// A large body goes to the object store first; one that was uploaded must be there and be the tenant's.
async fn place_body(api: &Arc<Api>, id: JobId, tenant: &Tenant, call: &mut Call) -> Answer<Option<BodyRef>> {
    match &mut call.body {
        CallBody::None => Ok(None),
        CallBody::Inline(bytes) if bytes.len() <= BODY_INLINE_BYTES_MAX => Ok(None),
        CallBody::Inline(bytes) => {
            let stored = api.keep_body(id, tenant, std::mem::take(bytes)).await?;
            call.body = CallBody::Stored(stored);
            Ok(Some(stored))
        }
        CallBody::Stored(name) => {
            api.use_body(id, tenant, name).await?;
            Ok(Some(*name))
        }
    }
}

/// Tells a repeat from another request under the same key: everything that the caller asked for, and nothing that
/// differs from one sending to the next.
fn fingerprint(call: &Call, resolved: &Resolved, request: &TaskRequest, priority: Priority) -> [u8; 32] {
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
    // Without the version, so that a repeat after an edit is still the same request.
    part(resolved.reference.name.as_str().as_bytes());
    part(format!("{:?} {:?} {:?}", request.delay_ms, request.run_at, request.timeout_ms).as_bytes());
    part(&[priority.get()]);
    for own in [&request.on_success_url, &request.on_exhausted_url, &request.signing_secret] {
        part(own.as_deref().unwrap_or_default().as_bytes());
    }
    hash.finalize().into()
}

fn passport(passport: &Passport) -> Option<String> {
    (*passport != Passport::default()).then(|| passport.to_json())
}
