//! Error responses in the format of RFC 9457, `application/problem+json`. Each has a stable code, a text that says what to do next,
//! and the invalid field if there is one.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::{Invalid, StoreError};
use redrive_wire::{Code, ProblemDetails};

use crate::keys::KeysError;

/// The result of a route: a value, or a problem.
pub type Answer<T> = Result<T, Problem>;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem.
    pub code: Code,
    /// What is wrong, and what to do next.
    pub detail: String,
    /// The invalid field, with the name that the caller used.
    pub field: Option<Cow<'static, str>>,
}

impl Problem {
    /// A problem without a field.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None }
    }

    /// A field with an invalid value.
    pub fn invalid(field: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { code: Code::Invalid, detail: detail.into(), field: Some(field.into()) }
    }

    /// A resource of the type `what` that does not exist, or that the caller may not see.
    pub fn not_found(what: &str, id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {id:?}"))
    }

    /// Replaces the code.
    pub fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// Puts `prefix` before the name of the field, for a field of a nested object.
    pub fn within(self, prefix: &str) -> Self {
        let field = self.field.map(|field| Cow::Owned(format!("{prefix}.{field}")));
        Self { field: field.or_else(|| Some(Cow::Owned(prefix.to_owned()))), ..self }
    }

    /// Whether the service failed, and not the caller's request.
    pub fn is_server_error(&self) -> bool {
        self.code.status() >= 500
    }

    /// Logs the cause of an internal failure and returns a problem that does not show it.
    pub fn internal(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "a request failed");
        Self::new(
            Code::Internal,
            "the request failed because of an internal error; see the log of the service",
        )
    }

    /// The problem in the format of the API.
    pub fn details(&self) -> ProblemDetails {
        ProblemDetails {
            kind: format!("/docs#{}", self.code.name()),
            title: self.code.title().to_owned(),
            status: self.code.status(),
            detail: self.detail.clone(),
            code: self.code,
            field: self.field.as_deref().map(str::to_owned),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.details()).unwrap_or_default();
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"redrive\""));
        }
        if self.code.is_retryable() {
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
                Self::new(
                    Code::StoreFull,
                    "the store is full: free some space and try again; no acknowledged write is lost",
                )
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
    fn a_store_error_does_not_show_its_cause() {
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
