//! Every refusal as RFC 9457 `application/problem+json`: a stable code, what to do next, and the field at fault.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::{Invalid, StoreError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::KeysError;

/// What a route answers with: its value, or a problem.
pub type Answer<T> = Result<T, Problem>;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was refused. The codes never change meaning: programs may compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The body is not JSON.
    MalformedJson,
    /// The body ended before it was complete.
    BrokenBody,
    /// The request does not name one host.
    InvalidHost,
    /// No key, or one that is not known.
    Unauthenticated,
    /// The key does not allow it.
    Forbidden,
    /// There is nothing here, or nothing of yours.
    NotFound,
    /// The path has other methods; `Allow` lists them.
    MethodNotAllowed,
    /// The policy's id has other content.
    PolicyConflict,
    /// Live tasks use the policy.
    PolicyInUse,
    /// The task has ended before.
    TaskEnded,
    /// Only an exhausted task can be driven again.
    TaskNotExhausted,
    /// The task does not wait for anything that could be skipped.
    TaskNotWaiting,
    /// The job has ended before.
    JobEnded,
    /// Only a dead job can be driven again or removed.
    JobNotDead,
    /// The job does not wait for its time.
    JobNotWaiting,
    /// The operation has ended before.
    OperationEnded,
    /// The first key must be an admin key that is not bound to a tenant.
    FirstKeyNotAdmin,
    /// The last admin key that is not bound to a tenant cannot be revoked.
    LastAdminKey,
    /// The body came too slowly.
    RequestTooSlow,
    /// The body is larger than the route takes.
    BodyTooLarge,
    /// The body is of a type that the route does not take.
    UnsupportedMediaType,
    /// A value is not legal; `field` names it.
    Invalid,
    /// The policy is not registered.
    UnknownPolicy,
    /// The key was used before, for a different request.
    IdempotencyKeyReused,
    /// The uploaded body is not there.
    UnknownBody,
    /// Too many keys from this address were wrong; `Retry-After` says when to try again.
    TooManyFailedLogins,
    /// The service holds as many bytes of request bodies as it may: try again.
    Overloaded,
    /// A defect or a failure of the service; the log has more.
    Internal,
    /// The store or the object store cannot answer now: try again.
    Unavailable,
    /// The store has no room left.
    StoreFull,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 30] = [
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
        Self::TaskNotExhausted,
        Self::TaskNotWaiting,
        Self::JobEnded,
        Self::JobNotDead,
        Self::JobNotWaiting,
        Self::OperationEnded,
        Self::FirstKeyNotAdmin,
        Self::LastAdminKey,
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

    /// The HTTP status it comes with.
    pub fn status(self) -> StatusCode {
        match self {
            Self::MalformedJson | Self::BrokenBody | Self::InvalidHost => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::PolicyConflict
            | Self::PolicyInUse
            | Self::TaskEnded
            | Self::TaskNotExhausted
            | Self::TaskNotWaiting
            | Self::JobEnded
            | Self::JobNotDead
            | Self::JobNotWaiting
            | Self::OperationEnded
            | Self::FirstKeyNotAdmin
            | Self::LastAdminKey => StatusCode::CONFLICT,
            Self::RequestTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Invalid | Self::UnknownPolicy | Self::IdempotencyKeyReused | Self::UnknownBody => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::TooManyFailedLogins | Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::StoreFull => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::MalformedJson => "MALFORMED_JSON",
            Self::BrokenBody => "BROKEN_BODY",
            Self::InvalidHost => "INVALID_HOST",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::Forbidden => "FORBIDDEN",
            Self::NotFound => "NOT_FOUND",
            Self::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            Self::PolicyConflict => "POLICY_CONFLICT",
            Self::PolicyInUse => "POLICY_IN_USE",
            Self::TaskEnded => "TASK_ENDED",
            Self::TaskNotExhausted => "TASK_NOT_EXHAUSTED",
            Self::TaskNotWaiting => "TASK_NOT_WAITING",
            Self::JobEnded => "JOB_ENDED",
            Self::JobNotDead => "JOB_NOT_DEAD",
            Self::JobNotWaiting => "JOB_NOT_WAITING",
            Self::OperationEnded => "OPERATION_ENDED",
            Self::FirstKeyNotAdmin => "FIRST_KEY_NOT_ADMIN",
            Self::LastAdminKey => "LAST_ADMIN_KEY",
            Self::RequestTooSlow => "REQUEST_TOO_SLOW",
            Self::BodyTooLarge => "BODY_TOO_LARGE",
            Self::UnsupportedMediaType => "UNSUPPORTED_MEDIA_TYPE",
            Self::Invalid => "INVALID",
            Self::UnknownPolicy => "UNKNOWN_POLICY",
            Self::IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
            Self::UnknownBody => "UNKNOWN_BODY",
            Self::TooManyFailedLogins => "TOO_MANY_FAILED_LOGINS",
            Self::Overloaded => "OVERLOADED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::StoreFull => "STORE_FULL",
        }
    }

    /// Whether the same request may pass a second later; the answer then has a `Retry-After` of that long.
    pub fn passes_later(self) -> bool {
        matches!(self, Self::Unavailable | Self::TooManyFailedLogins | Self::Overloaded)
    }

    /// What it means, in a few words that never change.
    pub fn title(self) -> &'static str {
        match self {
            Self::MalformedJson => "the body is not JSON",
            Self::BrokenBody => "the body broke off",
            Self::InvalidHost => "the request does not name one host",
            Self::Unauthenticated => "an API key is needed",
            Self::Forbidden => "the API key does not allow this",
            Self::NotFound => "not found",
            Self::MethodNotAllowed => "the path does not have this method",
            Self::PolicyConflict => "the policy id has other content",
            Self::PolicyInUse => "live tasks use the policy",
            Self::TaskEnded => "the task has ended",
            Self::TaskNotExhausted => "the task is not exhausted",
            Self::TaskNotWaiting => "the task does not wait",
            Self::JobEnded => "the job has ended",
            Self::JobNotDead => "the job is not dead",
            Self::JobNotWaiting => "the job does not wait for its time",
            Self::OperationEnded => "the operation has ended",
            Self::FirstKeyNotAdmin => "the first key must be an admin key",
            Self::LastAdminKey => "the last admin key cannot be revoked",
            Self::RequestTooSlow => "the body came too slowly",
            Self::BodyTooLarge => "the body is too large",
            Self::UnsupportedMediaType => "the body has the wrong content type",
            Self::Invalid => "a value is not legal",
            Self::UnknownPolicy => "the policy is not registered",
            Self::IdempotencyKeyReused => "the idempotency key belongs to another request",
            Self::UnknownBody => "the uploaded body is not there",
            Self::TooManyFailedLogins => "too many wrong API keys came from this address",
            Self::Overloaded => "too many requests",
            Self::Internal => "the service failed",
            Self::Unavailable => "not available for now",
            Self::StoreFull => "the store is full",
        }
    }
}

/// A refusal on its way to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Why.
    pub code: Code,
    /// What is wrong here and what to do next.
    pub detail: String,
    /// The field at fault, as the caller wrote it.
    pub field: Option<Cow<'static, str>>,
}

impl Problem {
    /// A problem without a field.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None }
    }

    /// A value that is not legal.
    pub fn invalid(field: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { code: Code::Invalid, detail: detail.into(), field: Some(field.into()) }
    }

    /// Nothing of this sort under this name, as far as the caller may know.
    pub fn not_found(what: &str, id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {id:?}"))
    }

    /// The same problem, named by another code.
    pub fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// Puts `prefix` before the field, for a value within another.
    pub fn within(self, prefix: &str) -> Self {
        let field = self.field.map(|field| Cow::Owned(format!("{prefix}.{field}")));
        Self { field: field.or_else(|| Some(Cow::Owned(prefix.to_owned()))), ..self }
    }

    /// The same with another name for a field, for a route that calls it so.
    pub fn renamed(self, from: &str, to: &'static str) -> Self {
        let field = self.field.map(|field| if field == from { Cow::Borrowed(to) } else { field });
        Self { field, ..self }
    }

    /// Whether the service failed, not the caller.
    pub fn is_ours(&self) -> bool {
        self.code.status().is_server_error()
    }

    /// A failure whose cause is for the log and not for the caller.
    pub fn internal(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "a request failed");
        Self::new(Code::Internal, "the request failed for a reason that is in the service's log")
    }

    /// As it goes over the wire.
    pub fn details(&self) -> ProblemDetails {
        ProblemDetails {
            kind: format!("/docs#{}", self.code.name()),
            title: self.code.title().to_owned(),
            status: self.code.status().as_u16(),
            detail: self.detail.clone(),
            code: self.code,
            field: self.field.as_deref().map(str::to_owned),
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
    /// What the code means; the same words each time.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What is wrong here and what to do next.
    pub detail: String,
    /// Why, for programs.
    pub code: Code,
    /// The field at fault, for bad input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.details()).unwrap_or_default();
        let mut response = (self.code.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"redrive\""));
        }
        if self.code.passes_later() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.field, invalid.problem)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(invalid) => invalid.into(),
            StoreError::Unavailable(cause) | StoreError::Busy(cause) => {
                tracing::warn!(%cause, "the store is unavailable");
                Self::new(Code::Unavailable, "the store cannot answer now; try again in a second")
            }
            StoreError::Full(cause) => {
                tracing::error!(%cause, "the store is full");
                Self::new(Code::StoreFull, "the store has no room left; nothing acknowledged is lost")
            }
            StoreError::Failed(cause) => Self::internal(&cause),
            StoreError::Refused(_) | StoreError::Corrupt(_) => Self::internal(&error),
        }
    }
}

impl From<KeysError> for Problem {
    fn from(error: KeysError) -> Self {
        match error {
            KeysError::FirstKeyNotAdmin => Self::new(Code::FirstKeyNotAdmin, error.to_string()),
            KeysError::LastAdminKey => Self::new(Code::LastAdminKey, error.to_string()),
            KeysError::Contended => Self::new(Code::Unavailable, error.to_string()),
            KeysError::Store(error) => error.into(),
        }
    }
}

impl From<redrive::Error> for Problem {
    fn from(error: redrive::Error) -> Self {
        match error {
            redrive::Error::Store(error) => error.into(),
            redrive::Error::Invalid(invalid) => invalid.into(),
            other => Self::internal(&other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_it_is_named() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
            assert_eq!(serde_json::from_value::<Code>(code.name().into()).unwrap(), code);
            assert!(code.status().is_client_error() || code.status().is_server_error());
        }
    }

    #[test]
    fn a_store_that_fails_says_what_to_do_and_not_what_it_is() {
        let secret = || Box::<dyn std::error::Error + Send + Sync>::from("/var/lib/secret.db");
        for (error, status, retry) in [
            (StoreError::Unavailable(secret()), 503, true),
            (StoreError::Busy(secret()), 503, true),
            (StoreError::Full(secret()), 507, false),
            (StoreError::Failed(secret()), 500, false),
            (StoreError::Corrupt("secret".into()), 500, false),
            (StoreError::Refused("secret".into()), 500, false),
        ] {
            let problem = Problem::from(error);
            assert!(!problem.detail.contains("secret"), "{problem:?}");
            let response = problem.into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry);
        }
    }

    #[test]
    fn a_nested_field_has_its_path() {
        let problem = Problem::from(Invalid::new("maxAttempts", "must be from 1")).within("policy");
        assert_eq!(problem.within("items[3]").field.as_deref(), Some("items[3].policy.maxAttempts"));
    }
}
