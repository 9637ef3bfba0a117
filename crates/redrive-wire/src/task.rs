//! Tasks: requests, answers, and the attempt log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::policy::RetryPolicy;
use super::state::{DeadReason, JobState, WaitingFor};

/// The kind of the jobs that are tasks.
pub const TASK_KIND: &str = "delivery";

/// A call to deliver. It may have one of `body`, `bodyJson`, `bodyBase64` and `bodyRef`, one of `policyId`
/// and `policy`, and one of `delayMs` and `runAt`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"target": "https://example.com/hook", "bodyJson": {"order": 7}, "idempotencyKey": "order-7"}))]
pub struct TaskRequest {
    /// The address to deliver to: `http`, `https`, `grpc` or `grpcs`; for gRPC it ends in `/package.Service/Method`.
    #[schema(min_length = 1, max_length = 2048)]
    pub target: String,
    /// The HTTP method; `POST` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers to send, at most 64 and 8 KiB in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// The body as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body as JSON. It is sent unchanged, with the content type `application/json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub body_json: Option<Box<RawValue>>,
    /// The body in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The name of a body that was uploaded with `PUT /v1/bodies`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_ref: Option<String>,
    /// A registered policy; `default` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// A policy for this task alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<RetryPolicy>,
    /// Makes a repeated create return the first task. It is also sent with every attempt.
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
    /// From 0 to 9; 5 when absent. Tasks with a higher priority are claimed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// How long one attempt may take; the policy's limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 43200000)]
    pub timeout_ms: Option<u64>,
    /// The callback URL for a task that succeeds, `http` or `https`; the policy's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// The callback URL for a task that is dead, `http` or `https`; the policy's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure_url: Option<String>,
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

/// The results of a batch, in the order of its calls.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchAnswer {
    /// One result for each call.
    pub items: Vec<BatchItem>,
}

/// The result of one call of a batch: the task, or its problem.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchItem {
    /// The HTTP status that a request with only this call would get.
    pub status: u16,
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Why no task was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::problem::ProblemDetails>)]
    pub problem: Option<serde_json::Value>,
}

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its id.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Its tenant; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The key that is sent with every attempt: the caller's, else the task's id.
    pub idempotency_key: String,
    /// The address that it is delivered to.
    pub target: String,
    /// The HTTP method.
    pub method: String,
    /// Headers that are sent; the value of one that carries a credential is shown as `***`.
    pub headers: BTreeMap<String, String>,
    /// The name of the body, if it is stored outside the task.
    pub body_ref: Option<String>,
    /// Its policy.
    pub policy_id: String,
    /// The version of its policy.
    pub policy_version: u32,
    /// Its state.
    pub state: JobState,
    /// What it waits for, while its state is `waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Attempts of this run so far.
    pub attempt_number: u32,
    /// Attempts that its policy allows.
    pub max_attempts: Option<u32>,
    /// When the next attempt is due, in epoch ms; null unless the task is pending or retrying.
    pub next_attempt_at: Option<i64>,
    /// When it was created, in epoch ms.
    pub created_at: i64,
    /// When it ended, in epoch ms.
    pub finished_at: Option<i64>,
    /// The last error.
    pub last_error: Option<String>,
    /// The HTTP status or gRPC code of the last answer.
    pub last_response_status: Option<u16>,
    /// Why it is dead.
    pub reason: Option<DeadReason>,
    /// Whether someone cancelled it while it was running.
    pub cancel_requested: bool,
    /// From 0 to 9. Tasks with a higher priority are claimed first.
    pub priority: u8,
    /// How long one attempt may take; absent if the policy decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The callback URL if it succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// The callback URL if it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure_url: Option<String>,
    /// The name of the secret that signs each attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// One attempt of a task.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskAttempt {
    /// The number of the attempt within its run, from 1.
    pub attempt_number: u32,
    /// The number of its run: 1, plus one for each redrive.
    pub run: u32,
    /// When it was started, in epoch ms.
    pub started_at: i64,
    /// How long it took.
    pub duration_ms: u64,
    /// The HTTP status of the answer; for gRPC the code, which is 0 for success.
    pub response_status: Option<u16>,
    /// The name of the gRPC code, such as `UNAVAILABLE`; only for gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<String>,
    /// The error, if it failed.
    pub error_message: Option<String>,
    /// How it ended: `succeeded`, `failed`, `timeout`, `rejected`, `cancelled`, `released` or `lease_expired`.
    pub outcome: String,
    /// Whether the target may have received the call: `never_sent`, `no_answer` or `answered`.
    pub phase: Option<String>,
    /// The state that it led to.
    pub led_to: JobState,
    /// The wait that was planned after it.
    pub wait_ms: Option<u64>,
    /// When the next attempt was due, in epoch ms.
    pub next_attempt_at: Option<i64>,
    /// The beginning of the body of the answer; null if the caller's key may not see bodies.
    pub response_excerpt: Option<String>,
    /// True if `responseExcerpt` is left out because the caller's key may not see bodies.
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
