//! What goes over the wire: the envelope of every JSON answer, and refusals in its words.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::database::Status;

/// What a paste is asked for with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    /// What is pasted.
    pub content: String,
    /// 1, 7 or 30.
    pub expiry_days: i32,
    /// The code that is wanted.
    #[serde(default)]
    pub custom_alias: Option<String>,
}

/// What whoever pasted gets.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Made {
    /// What the paste is called.
    pub short_code: String,
    /// Whether it can be read already.
    pub status: Status,
    /// What it can be removed with; shown this once.
    pub owner_token: String,
    /// Until when it is there.
    pub expires_at: String,
}

/// The one form of every JSON answer.
#[derive(Debug, Serialize)]
pub struct Envelope<T> {
    /// What was asked for.
    pub data: Option<T>,
    /// Why there is none.
    pub error: Option<Problem>,
}

/// Why something is not as it was asked for.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// A request that is not done.
#[derive(Debug)]
pub struct Refusal {
    /// With which number.
    pub status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// One that another try does not cure.
    pub fn new(status: StatusCode, code: &'static str, message: impl ToString) -> Self {
        Self { status, code, message: message.to_string(), retry_after: None }
    }

    /// What was sent is not what is wanted.
    pub fn bad(code: &'static str, message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The one answer for pastes that failed, expired, were removed or never were.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such paste")
    }

    /// The paste is still on its way.
    pub fn in_progress() -> Self {
        Self::later(
            "IN_PROGRESS",
            "the paste is still being uploaded; try again soon",
            Duration::from_secs(1),
        )
    }

    /// Something that it needs does not work for now.
    pub fn unavailable(retry_after: Duration) -> Self {
        Self::later("UNAVAILABLE", "the content cannot be had for now; try again", retry_after)
    }

    fn later(code: &'static str, message: &str, retry_after: Duration) -> Self {
        let retry_after = Some(retry_after);
        Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }

    /// The headers that go with it, whatever its form.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(1)));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers
    }

    /// Its sentence.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, headers) = (self.status, self.headers());
        let problem = Problem { code: self.code, message: self.message };
        (status, headers, axum::Json(Envelope::<()> { data: None, error: Some(problem) })).into_response()
    }
}

impl From<redrive::Error> for Refusal {
    fn from(error: redrive::Error) -> Self {
        tracing::error!(%error, "the database did not do what it was asked to");
        Self::later("UNAVAILABLE", "this cannot be done for now; try again", Duration::from_secs(1))
    }
}

impl From<getrandom::Error> for Refusal {
    fn from(error: getrandom::Error) -> Self {
        tracing::error!(%error, "the system has no randomness");
        Self::later("UNAVAILABLE", "this cannot be done for now; try again", Duration::from_secs(1))
    }
}

/// An instant as the API writes it.
pub fn instant(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}
