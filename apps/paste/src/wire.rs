//! The JSON types of the API: requests, answers and errors.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::database::Status;

/// The body of a request to create a paste.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateRequest {
    /// The content.
    pub content: String,
    /// 1, 7 or 30.
    pub expiry_days: i32,
    /// The code that the user chose, if any.
    #[serde(default)]
    pub custom_alias: Option<String>,
}

/// The answer to a request to create a paste.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedPaste {
    /// The code of the paste.
    pub short_code: String,
    /// Whether it can be read already.
    pub status: Status,
    /// The token that removes the paste. It is shown only here.
    pub owner_token: String,
    /// When the paste expires.
    pub expires_at: String,
}

/// The form of every JSON answer.
#[derive(Debug, Serialize)]
pub struct Envelope<T> {
    /// The result, if the request succeeded.
    pub data: Option<T>,
    /// The error, if the request failed.
    pub error: Option<Problem>,
}

/// An error.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// A fixed code, for programs.
    pub code: &'static str,
    /// A sentence, for people.
    pub message: String,
}

/// The answer to a request that failed.
#[derive(Debug)]
pub struct ErrorResponse {
    /// The HTTP status.
    pub status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl ErrorResponse {
    /// An error that a retry does not solve.
    pub fn new(status: StatusCode, code: &'static str, message: impl ToString) -> Self {
        Self { status, code, message: message.to_string(), retry_after: None }
    }

    /// An invalid request.
    pub fn bad_request(code: &'static str, message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The same answer for pastes that failed, expired, were removed or never existed.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such paste")
    }

    /// The paste is still being uploaded.
    pub fn in_progress() -> Self {
        Self::try_later(
            "IN_PROGRESS",
            "the paste is still being uploaded; try again soon",
            Duration::from_secs(1),
        )
    }

    /// The object store or the database does not work at the moment.
    pub fn unavailable(retry_after: Duration) -> Self {
        Self::try_later("UNAVAILABLE", "the content is not available at the moment; try again", retry_after)
    }

    fn try_later(code: &'static str, message: &str, retry_after: Duration) -> Self {
        let retry_after = Some(retry_after);
        Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }

    /// The headers of the answer, as JSON or as a page.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(1)));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let (status, headers) = (self.status, self.headers());
        let problem = Problem { code: self.code, message: self.message };
        (status, headers, axum::Json(Envelope::<()> { data: None, error: Some(problem) })).into_response()
    }
}

impl From<redrive::Error> for ErrorResponse {
    fn from(error: redrive::Error) -> Self {
        tracing::error!(%error, "a call to the database failed");
        Self::try_later(
            "UNAVAILABLE",
            "the site is temporarily unavailable; try again",
            Duration::from_secs(1),
        )
    }
}

impl From<getrandom::Error> for ErrorResponse {
    fn from(error: getrandom::Error) -> Self {
        tracing::error!(%error, "the random source of the system failed");
        Self::try_later(
            "UNAVAILABLE",
            "the site is temporarily unavailable; try again",
            Duration::from_secs(1),
        )
    }
}

/// Formats a time in epoch ms as the API does: RFC 3339 in UTC.
pub fn timestamp_text(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}
