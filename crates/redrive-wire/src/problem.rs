//! Error answers: RFC 9457 `application/problem+json` with a stable code and the field at fault.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was rejected. The meaning of a code never changes, so programs may compare codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON.
    MalformedJson,
    /// The body ended before it was complete.
    BrokenBody,
    /// The request does not name one host.
    InvalidHost,
    /// The request has no API key, or an unknown one.
    Unauthenticated,
    /// The API key does not allow the call.
    Forbidden,
    /// The path or the resource does not exist, or the resource belongs to another tenant.
    NotFound,
    /// The path does not have this method; `Allow` lists its methods.
    MethodNotAllowed,
    /// The policy id already has other content.
    PolicyConflict,
    /// Live tasks use the policy.
    PolicyInUse,
    /// The task has already ended.
    TaskEnded,
    /// Only a dead task can be redriven.
    TaskNotDead,
    /// The task does not wait for its time, so it cannot be run now.
    TaskNotWaiting,
    /// The job has already ended.
    JobEnded,
    /// Only a dead job can be redriven or discarded.
    JobNotDead,
    /// The job does not wait for its time, so it cannot be run now.
    JobNotWaiting,
    /// The operation has already ended.
    OperationEnded,
    /// The first key must be an admin key that is not bound to a tenant.
    FirstKeyNotAdmin,
    /// The last admin key that is not bound to a tenant cannot be revoked.
    LastAdminKey,
    /// The header `If-Match` names another version than the current one.
    PreconditionFailed,
    /// The body arrived too slowly.
    RequestTooSlow,
    /// The body is larger than the path accepts.
    BodyTooLarge,
    /// The path does not accept a body of this content type.
    UnsupportedMediaType,
    /// A value is invalid; `field` names it.
    Invalid,
    /// The policy is not registered.
    UnknownPolicy,
    /// The idempotency key was used before, for a different request.
    IdempotencyKeyReused,
    /// The uploaded body does not exist.
    UnknownBody,
    /// Too many wrong API keys came from this address; `Retry-After` says when to try again.
    TooManyFailedLogins,
    /// The memory for the bodies of current requests is full: try again.
    Overloaded,
    /// A defect or a failure of the service; its log says more.
    Internal,
    /// The store or the object store cannot answer now: try again.
    Unavailable,
    /// The store has no room left.
    StoreFull,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 31] = [
        Self::MalformedJson,
        Self::BrokenBody,
        Self::InvalidHost,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::PolicyConflict,
        Self::PolicyInUse,
        Self::TaskEnded,
        Self::TaskNotDead,
        Self::TaskNotWaiting,
        Self::JobEnded,
        Self::JobNotDead,
        Self::JobNotWaiting,
        Self::OperationEnded,
        Self::FirstKeyNotAdmin,
        Self::LastAdminKey,
        Self::PreconditionFailed,
        Self::RequestTooSlow,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::UnknownPolicy,
        Self::IdempotencyKeyReused,
        Self::UnknownBody,
        Self::TooManyFailedLogins,
        Self::Overloaded,
        Self::Internal,
        Self::Unavailable,
        Self::StoreFull,
    ];

    /// The HTTP status of an answer with this code.
    pub fn status(self) -> u16 {
        match self {
            Self::MalformedJson | Self::BrokenBody | Self::InvalidHost => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::PolicyConflict
            | Self::PolicyInUse
            | Self::TaskEnded
            | Self::TaskNotDead
            | Self::TaskNotWaiting
            | Self::JobEnded
            | Self::JobNotDead
            | Self::JobNotWaiting
            | Self::OperationEnded
            | Self::FirstKeyNotAdmin
            | Self::LastAdminKey => 409,
            Self::PreconditionFailed => 412,
            Self::RequestTooSlow => 408,
            Self::BodyTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid | Self::UnknownPolicy | Self::IdempotencyKeyReused | Self::UnknownBody => 422,
            Self::TooManyFailedLogins | Self::Overloaded => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::StoreFull => 507,
        }
    }

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::MalformedJson => "malformed_json",
            Self::BrokenBody => "broken_body",
            Self::InvalidHost => "invalid_host",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::PolicyConflict => "policy_conflict",
            Self::PolicyInUse => "policy_in_use",
            Self::TaskEnded => "task_ended",
            Self::TaskNotDead => "task_not_dead",
            Self::TaskNotWaiting => "task_not_waiting",
            Self::JobEnded => "job_ended",
            Self::JobNotDead => "job_not_dead",
            Self::JobNotWaiting => "job_not_waiting",
            Self::OperationEnded => "operation_ended",
            Self::FirstKeyNotAdmin => "first_key_not_admin",
            Self::LastAdminKey => "last_admin_key",
            Self::PreconditionFailed => "precondition_failed",
            Self::RequestTooSlow => "request_too_slow",
            Self::BodyTooLarge => "body_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::Invalid => "invalid",
            Self::UnknownPolicy => "unknown_policy",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::UnknownBody => "unknown_body",
            Self::TooManyFailedLogins => "too_many_failed_logins",
            Self::Overloaded => "overloaded",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::StoreFull => "store_full",
        }
    }

    /// Whether the same request may succeed a second later. The answer then has `Retry-After: 1`.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::TooManyFailedLogins | Self::Overloaded)
    }

    /// A short explanation of the code.
    pub fn title(self) -> &'static str {
        match self {
            Self::MalformedJson => "the body is not JSON",
            Self::BrokenBody => "the body ended before it was complete",
            Self::InvalidHost => "the request does not name one host",
            Self::Unauthenticated => "an API key is needed",
            Self::Forbidden => "the API key does not allow this",
            Self::NotFound => "not found",
            Self::MethodNotAllowed => "the path does not have this method",
            Self::PolicyConflict => "the policy id already has other content",
            Self::PolicyInUse => "live tasks use the policy",
            Self::TaskEnded => "the task has ended",
            Self::TaskNotDead => "the task is not dead",
            Self::TaskNotWaiting => "the task does not wait for its time",
            Self::JobEnded => "the job has ended",
            Self::JobNotDead => "the job is not dead",
            Self::JobNotWaiting => "the job does not wait for its time",
            Self::OperationEnded => "the operation has ended",
            Self::FirstKeyNotAdmin => "the first key must be an admin key",
            Self::LastAdminKey => "the last admin key cannot be revoked",
            Self::PreconditionFailed => "If-Match does not name the current version",
            Self::RequestTooSlow => "the body arrived too slowly",
            Self::BodyTooLarge => "the body is too large",
            Self::UnsupportedMediaType => "the body has the wrong content type",
            Self::Invalid => "a value is invalid",
            Self::UnknownPolicy => "the policy is not registered",
            Self::IdempotencyKeyReused => "the idempotency key belongs to another request",
            Self::UnknownBody => "the uploaded body does not exist",
            Self::TooManyFailedLogins => "too many wrong API keys came from this address",
            Self::Overloaded => "too many requests",
            Self::Internal => "the service failed",
            Self::Unavailable => "temporarily unavailable",
            Self::StoreFull => "the store is full",
        }
    }
}

/// RFC 9457 problem details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDetails {
    /// Where the code is explained.
    #[serde(rename = "type")]
    #[schema(format = "uri-reference")]
    pub kind: String,
    /// A short explanation of the code. It is the same in every answer with this code.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What is wrong here and what to do next.
    pub detail: String,
    /// The code, for programs to compare.
    pub code: Code,
    /// The invalid field, if a value of the request is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_serialized_as_its_name() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
            assert_eq!(serde_json::from_value::<Code>(code.name().into()).unwrap(), code);
            assert!((400..600).contains(&code.status()));
        }
    }
}
