//! Errors of the client: what each one means to a person, and which exit status it leads to.

use serde::Deserialize;

use super::KEY_VARIABLE;
use crate::exit::ExitStatus;

/// A problem document of the service.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Problem {
    code: String,
    detail: String,
    /// The invalid field of the request.
    field: Option<String>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The service does not answer.
    #[error("{}", unreachable_text(url, cause, *failure))]
    Unreachable { url: String, cause: String, failure: ConnectionFailure },
    /// The service rejected the request.
    #[error("{}", rejected_text(*status, problem, *key_sent, url))]
    Rejected { status: u16, key_sent: bool, url: String, problem: Problem },
    /// The answer is not one of a redrive service.
    #[error("{url} is not a redrive service, or has another version ({cause}): set --url or REDRIVE_URL")]
    UnexpectedAnswer { url: String, cause: String },
}

/// How a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionFailure {
    NotConnected,
    Timeout,
    /// The connection ended before the end of the answer.
    Interrupted,
}

impl ClientError {
    pub(crate) fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Unreachable { .. } => ExitStatus::Unreachable,
            Self::UnexpectedAnswer { .. } => ExitStatus::Failed,
            Self::Rejected { problem, .. } if is_unknown_path(problem) => ExitStatus::Failed,
            Self::Rejected { status, problem, .. } => match (*status, problem.code.as_str()) {
                (404, _) => ExitStatus::NotFound,
                (401 | 403 | 409 | 412, _) | (_, "idempotency_key_reused") => ExitStatus::Rejected,
                (400 | 413 | 415 | 422, _) => ExitStatus::Usage,
                (408 | 429 | 503, _) => ExitStatus::Unreachable,
                _ => ExitStatus::Failed,
            },
        }
    }

    /// Whether the API key lacks a permission.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Rejected { status: 403, .. })
    }
}

/// Whether the service does not know the path. A service of an older version does not know newer paths.
fn is_unknown_path(problem: &Problem) -> bool {
    problem.code == "method_not_allowed" || problem.detail.starts_with("there is no such path")
}

fn unreachable_text(url: &str, cause: &str, failure: ConnectionFailure) -> String {
    match failure {
        ConnectionFailure::Timeout => {
            format!("{url} does not answer in time: see the log of the service, or {url}/readyz")
        }
        ConnectionFailure::Interrupted => {
            format!("the connection to {url} ended before the end of the answer ({cause}): try again")
        }
        ConnectionFailure::NotConnected if url.starts_with("https:") => {
            format!("cannot connect to {url} ({cause}): check --url or REDRIVE_URL")
        }
        ConnectionFailure::NotConnected => format!(
            "nothing answers at {url} ({cause}): start a service with `redrive serve`, or set --url or REDRIVE_URL"
        ),
    }
}

fn rejected_text(status: u16, problem: &Problem, key_sent: bool, url: &str) -> String {
    let detail = &problem.detail;
    match (status, &problem.field) {
        _ if is_unknown_path(problem) => {
            format!("the service at {url} does not know this request: is it older than this command?")
        }
        (401, _) if !key_sent => format!(
            "an API key is needed: set {KEY_VARIABLE} or --api-key-file; `redrive key create` creates a key"
        ),
        (401, _) => format!("{detail}: set {KEY_VARIABLE} or --api-key-file to a key of {url}"),
        (403, _) => format!("{detail}: set {KEY_VARIABLE} to a key with that permission"),
        (_, Some(field)) => format!("{field}: {detail}"),
        _ => detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(status: u16, code: &str, detail: &str) -> ClientError {
        let problem = Problem { code: code.to_owned(), detail: detail.to_owned(), field: None };
        ClientError::Rejected { status, key_sent: false, url: "http://x".to_owned(), problem }
    }

    #[test]
    fn each_problem_code_has_its_exit_status() {
        for code in redrive_wire::Code::ALL {
            let exit = rejected(code.status(), code.name(), "x").exit_status();
            let expected = match code.status() {
                404 => ExitStatus::NotFound,
                405 | 500 | 507 => ExitStatus::Failed,
                408 | 429 | 503 => ExitStatus::Unreachable,
                401 | 403 | 409 | 412 => ExitStatus::Rejected,
                _ if code.name() == "idempotency_key_reused" => ExitStatus::Rejected,
                _ => ExitStatus::Usage,
            };
            assert_eq!(exit, expected, "{code:?}");
        }
        let old = rejected(404, "not_found", "there is no such path; GET /docs lists all paths");
        assert_eq!(old.exit_status(), ExitStatus::Failed);
        assert!(old.to_string().contains("older"), "{old}");
    }
}
