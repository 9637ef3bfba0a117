//! A task on the wire: how it is asked for, how it is shown, and the log of its attempts.

use std::collections::BTreeMap;

use redrive_core::{Attempt, Job};
use redrive_delivery::{Call, CallBody, Evidence, Passport, grpc_name};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::content::Detail;
use super::policy::{RetryPolicy, ms};
use super::status::Status;

/// A call to deliver. At most one of `body`, `bodyJson`, `bodyBase64` and `bodyRef`, of `policyId` and `policy`, and of
/// `delayMs` and `runAt`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"targetUrl": "https://example.com/hook", "bodyJson": {"order": 7}, "idempotencyKey": "order-7"}))]
pub struct TaskRequest {
    /// Where it goes: `http`, `https`, `grpc` or `grpcs`; for gRPC it ends in `/package.Service/Method`.
    #[schema(min_length = 1, max_length = 2048)]
    pub target_url: String,
    /// The HTTP method; `POST` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers to send, at most 64 and 8 KiB in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// The body as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body as JSON; it is sent as it is written here, as `application/json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub body_json: Option<Box<RawValue>>,
    /// The body in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// A body that was uploaded with `PUT /bodies`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_ref: Option<String>,
    /// A registered policy; `default` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// A policy for this task alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<RetryPolicy>,
    /// Makes the creation repeatable, and is sent with every attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub idempotency_key: Option<String>,
    /// How long to wait before the first attempt; at most a year.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub delay_ms: Option<u64>,
    /// When to make the first attempt, in epoch ms; at most a year ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<i64>,
    /// From 0 to 9, higher ones first; 5 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// How long one attempt may take; the policy's limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 43200000)]
    pub timeout_ms: Option<u64>,
    /// Where the outcome is delivered when it succeeds, `http` or `https`; the policy's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// Where the outcome is delivered when it is exhausted, `http` or `https`; the policy's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted_url: Option<String>,
    /// The name of the secret that signs each attempt; the policy's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// Many calls to deliver, in one commit.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchRequest {
    /// The calls, from 1 to 1,000.
    #[schema(value_type = Vec<TaskRequest>, min_items = 1, max_items = 1000)]
    pub items: Vec<Box<RawValue>>,
}

/// What came of each call of a batch, in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchAnswer {
    /// One for each call.
    pub items: Vec<BatchItem>,
}

/// What came of one call of a batch: the task, or its problem.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchItem {
    /// The status that the call would have had by itself.
    pub status: u16,
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::error::ProblemDetails>)]
    pub problem: Option<serde_json::Value>,
}

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its identity.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Whose it is; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The key that is sent with every attempt: the caller's, else the task's id.
    pub idempotency_key: String,
    /// Where it goes.
    pub target_url: String,
    /// The HTTP method.
    pub method: String,
    /// Headers that are sent; the value of one that carries a credential is shown as `***`.
    pub headers: BTreeMap<String, String>,
    /// The body's name in the object store, when it is there.
    pub body_ref: Option<String>,
    /// Its policy.
    pub policy_id: String,
    /// The version of its policy.
    pub policy_version: u32,
    /// Where it is in its life.
    pub status: Option<Status>,
    /// Attempts so far, since it was last driven.
    pub attempt_number: u32,
    /// Attempts that its policy allows.
    pub max_attempts: Option<u32>,
    /// When the next attempt is due, in epoch ms, while it waits for that; one that is paused does not.
    pub next_attempt_at: Option<i64>,
    /// When it was created, in epoch ms.
    pub created_at: i64,
    /// When it ended, in epoch ms.
    pub finished_at: Option<i64>,
    /// What last went wrong.
    pub last_error: Option<String>,
    /// With which HTTP status or gRPC code the target last answered.
    pub last_response_status: Option<u16>,
    /// Why it is exhausted.
    pub reason: Option<String>,
    /// Whether someone asked for its end while it was in flight.
    pub cancel_requested: bool,
    /// From 0 to 9, higher ones first.
    pub priority: u8,
    /// How long one attempt may take, where the task says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Where the outcome is delivered when it succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// Where the outcome is delivered when it is exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted_url: Option<String>,
    /// The name of the secret that signs each attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

impl Task {
    /// What a call says about a task.
    pub fn of_call(call: Call) -> Self {
        let body_ref = match call.body {
            CallBody::None | CallBody::Inline(_) => None,
            CallBody::Stored(name) => Some(String::from(name)),
        };
        Self {
            target_url: call.target.to_string(),
            method: call.method,
            headers: call.headers.iter().map(|(name, value)| (name.clone(), value.shown(name))).collect(),
            body_ref,
            on_success_url: call.on_success.map(|target| target.to_string()),
            on_exhausted_url: call.on_exhausted.map(|target| target.to_string()),
            signing_secret: call.signing_secret,
            ..Self::default()
        }
    }

    /// A job as a task; `max_attempts` is its policy's.
    pub fn show(job: &Job, max_attempts: Option<u32>) -> Self {
        // A payload that cannot be read still has a row worth showing.
        let call = Call::decode(&job.payload).map(Self::of_call);
        let unread = || Self { target_url: job.subject.clone().unwrap_or_default(), ..Self::default() };
        let passport =
            job.metadata.as_deref().and_then(|json| Passport::from_json(json).ok()).unwrap_or_default();
        Self {
            task_id: job.id.to_string(),
            tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
            idempotency_key: passport.key_for(job),
            policy_id: job.policy.name.as_str().to_owned(),
            policy_version: job.policy.version.get(),
            status: Some(job.state.into()),
            attempt_number: job.attempt,
            max_attempts,
            next_attempt_at: job.state.is_claimable().then(|| job.next_run_at.as_ms()),
            created_at: job.created_at.as_ms(),
            finished_at: job.finished_at.map(|at| at.as_ms()),
            last_error: job.last_error.clone(),
            last_response_status: job.last_status,
            reason: job.reason.map(|reason| reason.name().to_owned()),
            cancel_requested: job.cancel_requested,
            priority: job.priority.get(),
            timeout_ms: job.timeout.map(ms),
            ..call.unwrap_or_else(|_| unread())
        }
    }
}

/// One attempt of a task.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskAttempt {
    /// The attempt, from 1, since the task was last driven.
    pub attempt_number: u32,
    /// Which drive it belongs to: 1, and one more for each redrive.
    pub run: u32,
    /// When it was started, in epoch ms.
    pub started_at: i64,
    /// How long it took.
    pub duration_ms: u64,
    /// With which HTTP status the target answered; for gRPC its code, which is 0 for success.
    pub response_status: Option<u16>,
    /// The name of the gRPC code, such as `UNAVAILABLE`; only for gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<String>,
    /// What went wrong.
    pub error_message: Option<String>,
    /// How it ended: `succeeded`, `failed`, `timeout`, `rejected`, `cancelled`, `released` or `lease_expired`.
    pub outcome: String,
    /// `NEVER_SENT`, `NO_ANSWER` or `ANSWERED`: whether the target may have seen it.
    pub phase: Option<String>,
    /// The status that it led to.
    pub led_to: Status,
    /// The wait that was planned after it.
    pub wait_ms: Option<u64>,
    /// When the next attempt was due, in epoch ms.
    pub next_attempt_at: Option<i64>,
    /// The beginning of what the target answered; null where the caller's key may not see bodies.
    pub response_excerpt: Option<String>,
    /// True where `responseExcerpt` is left out because the caller's key may not see bodies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub body_hidden: bool,
    /// Something about the answer that did not change the outcome, such as a body that broke off after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The address that was dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The worker that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

impl TaskAttempt {
    /// An attempt in the log, with its evidence; `shown` says whether with what the target answered.
    pub fn show(attempt: Attempt, shown: Detail) -> Self {
        let detail = attempt.entry.detail.as_deref();
        let evidence: Option<Evidence> = detail.and_then(|json| serde_json::from_str(json).ok());
        let phase = evidence.as_ref().and_then(|evidence| serde_json::to_value(evidence.phase).ok());
        let said = evidence.as_ref();
        let excerpt = said.and_then(|said| said.excerpt.clone());
        let hides = shown == Detail::Hidden;
        Self {
            attempt_number: attempt.entry.attempt,
            run: attempt.entry.run,
            started_at: attempt.entry.started_at.as_ms(),
            duration_ms: ms(attempt.entry.duration),
            // Every gRPC answer is an HTTP 200: the code is the status.
            response_status: said.and_then(|said| said.grpc_code.or(said.status)),
            grpc_status: said.and_then(|said| said.grpc_code).map(grpc_name),
            error_message: attempt.entry.error,
            // The engine's word for a job that may be anything; here it is a call.
            outcome: if attempt.entry.outcome == "done" {
                "succeeded".to_owned()
            } else {
                attempt.entry.outcome
            },
            phase: phase.and_then(|phase| phase.as_str().map(str::to_owned)),
            led_to: attempt.led_to.into(),
            wait_ms: attempt.wait.map(ms),
            next_attempt_at: attempt.next_run_at.map(|at| at.as_ms()),
            body_hidden: hides && excerpt.is_some(),
            response_excerpt: excerpt.filter(|_| !hides),
            note: said.and_then(|said| said.note.clone()),
            address: said.and_then(|said| said.address.clone()),
            worker: attempt.worker.map(|worker| worker.as_str().to_owned()),
        }
    }
}
