//! The client of a running service: where it is, with which key, and what its refusals mean here.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::print::Look;
use crate::values::read_text;
use crate::when;

/// Where a service listens when nothing else is said.
const DEFAULT_URL: &str = "http://127.0.0.1:7373";
/// The variable with the key; never a flag, since those are seen by everyone on a machine.
const KEY: &str = "REDRIVE_API_KEY";
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Clocks that differ by less are taken for the same: a date in a header has no parts of a second.
const SKEW_MS: u64 = 2_000;

/// Which service, and for whom its answers are printed.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Reach {
    /// Where the service listens [default: http://127.0.0.1:7373]
    #[arg(long, env = "REDRIVE_URL", value_name = "URL", global = true, help_heading = "Service")]
    pub(crate) url: Option<String>,
    /// A file with the API key, instead of the variable REDRIVE_API_KEY
    #[arg(long, value_name = "FILE", global = true, help_heading = "Service")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// JSON for programs instead of text for people, one document a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Reach {
    /// The service.
    pub(crate) fn service(&self) -> anyhow::Result<Service> {
        Service::new(self.url.as_deref().unwrap_or(DEFAULT_URL), self.key()?)
    }

    fn key(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.api_key_file else {
            return Ok(std::env::var(KEY).ok().filter(|key| !key.trim().is_empty()));
        };
        read_text(path).map(Some).context("--api-key-file")
    }
}

/// A running service.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    http: reqwest::Client,
    base: Url,
    headers: HeaderMap,
}

/// What follows the `?` of a path.
pub(crate) type Query = Vec<(String, String)>;

impl Service {
    fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let base = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let base = base.ok_or_else(|| {
            let shown = redrive::shown(url);
            let text = format!(
                "invalid address of a service {shown:?}: write --url or REDRIVE_URL like {DEFAULT_URL}"
            );
            Exit::Usage.because(text)
        })?;
        if !base.username().is_empty() || base.password().is_some() {
            // Not shown: what stands there is a secret.
            return Err(Exit::Usage.because(format!("an address has no password in it; {KEY} has the key")));
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let unreadable = |_| Exit::Usage.because("the API key has letters that no key has");
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(unreadable)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self { http: client(&base)?, base, headers })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The same on behalf of a tenant.
    pub(crate) fn acting_for(mut self, tenant: Option<&str>) -> anyhow::Result<Self> {
        if let Some(tenant) = tenant {
            let value = HeaderValue::try_from(tenant);
            let value =
                value.map_err(|_| Exit::Usage.because(format!("{tenant:?} is no name of a tenant")))?;
            self.headers.insert(redrive_server::auth::TENANT_HEADER, value);
        }
        Ok(self)
    }

    /// The same with a header more.
    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> anyhow::Result<Self> {
        let value = HeaderValue::try_from(value);
        let value = value.map_err(|_| Exit::Usage.because(format!("{name} must be plain text")))?;
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Looks something up.
    pub(crate) async fn get(&self, path: &[&str], query: &Query) -> Result<Answer, CallError> {
        self.call(Method::GET, path, query, None).await
    }

    /// Does something that needs no more words.
    pub(crate) async fn act(&self, path: &[&str]) -> Result<Answer, CallError> {
        self.call(Method::POST, path, &Query::new(), None).await
    }

    /// Sends JSON, as it is written.
    pub(crate) async fn post(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Answer> {
        Ok(self.call(Method::POST, path, &Query::new(), Some(json_body(body)?)).await?)
    }

    /// Replaces something.
    pub(crate) async fn put(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Answer> {
        Ok(self.call(Method::PUT, path, &Query::new(), Some(json_body(body)?)).await?)
    }

    /// Sends bytes as they are.
    pub(crate) async fn upload(&self, path: &[&str], bytes: Bytes) -> Result<Answer, CallError> {
        self.call(Method::PUT, path, &Query::new(), Some((bytes, "application/octet-stream"))).await
    }

    /// Removes or stops something.
    pub(crate) async fn delete(&self, path: &[&str]) -> Result<Answer, CallError> {
        self.call(Method::DELETE, path, &Query::new(), None).await
    }

    /// An answer without an end, such as events.
    pub(crate) async fn stream(&self, path: &[&str], query: &Query) -> Result<reqwest::Response, CallError> {
        let request = self.http.get(self.at(path, query)).headers(self.headers.clone());
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, body) = (response.status(), response.bytes().await.unwrap_or_default());
        Err(self.refused(status, &body))
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Option<(Bytes, &'static str)>,
    ) -> Result<Answer, CallError> {
        let mut request = self.http.request(method, self.at(path, query)).headers(self.headers.clone());
        if let Some((bytes, kind)) = body {
            request = request.header(CONTENT_TYPE, kind).body(bytes);
        }
        let response =
            request.timeout(ANSWER_TIMEOUT).send().await.map_err(|error| self.unreachable(error))?;
        let (status, now) = (response.status(), now(response.headers()));
        let body = response.bytes().await.map_err(|error| self.unreachable(error))?;
        if status.is_success() {
            return Ok(Answer { status, now, body, from: self.address().to_owned() });
        }
        Err(self.refused(status, &body))
    }

    /// Names may have any letters: each is a segment of its own.
    fn at(&self, path: &[&str], query: &Query) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn unreachable(&self, error: reqwest::Error) -> CallError {
        let silence = if error.is_timeout() {
            Silence::TooLong
        } else if error.is_body() || error.is_decode() {
            Silence::BrokeOff
        } else {
            Silence::Nobody
        };
        CallError::Unreachable { url: self.address().to_owned(), cause: root_cause(&error), silence }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> CallError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) => CallError::Refused {
                status: status.as_u16(),
                keyed: self.headers.contains_key(AUTHORIZATION),
                url: self.address().to_owned(),
                refusal,
            },
            Err(_) => CallError::Strange { url: self.address().to_owned(), what: format!("status {status}") },
        }
    }
}

fn json_body(value: &impl Serialize) -> anyhow::Result<(Bytes, &'static str)> {
    Ok((Bytes::from(serde_json::to_vec(value)?), "application/json"))
}

fn client(base: &Url) -> anyhow::Result<reqwest::Client> {
    // The client has no crypto provider of its own and panics without one. One that is there stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
        // A key must not follow a redirect to somewhere else.
        .redirect(reqwest::redirect::Policy::none());
    if is_loopback(base) {
        client = client.no_proxy();
    }
    client.build().context("no HTTP client can be made")
}

/// What is on this machine is not behind a proxy.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The service's time: this machine's, unless the answer's date says that its clock is wrong.
fn now(headers: &HeaderMap) -> i64 {
    let here = when::now_here();
    let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let there = date.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    match there.and_then(|there| i64::try_from(there.as_millis()).ok()) {
        Some(there) if there.abs_diff(here) > SKEW_MS => there,
        _ => here,
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// What the service answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// The service's time, in epoch ms.
    pub(crate) now: i64,
    body: Bytes,
    from: String,
}

impl Answer {
    /// The document.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        serde_json::from_slice(&self.body)
            .map_err(|error| CallError::Strange { url: self.from.clone(), what: error.to_string() })
    }

    /// The document as the service wrote it.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// How to print it.
    pub(crate) fn look(&self) -> Look {
        Look::of_stdout(self.now)
    }
}

/// A problem as the service words it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Refusal {
    /// Why, for programs.
    pub(crate) code: String,
    /// What is wrong and what to do next.
    pub(crate) detail: String,
    /// The field at fault.
    pub(crate) field: Option<String>,
}

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing answers.
    #[error("{}", unreachable_text(url, cause, *silence))]
    Unreachable {
        /// Where nothing answers.
        url: String,
        /// Why not.
        cause: String,
        /// How it shows.
        silence: Silence,
    },
    /// The service does not do it.
    #[error("{}", refused_text(*status, refusal, *keyed, url))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Whether a key was sent.
        keyed: bool,
        /// Which service.
        url: String,
        /// Its words.
        refusal: Refusal,
    },
    /// What answers is something else.
    #[error(
        "what answers at {url} is no redrive service, or one of another version ({what}); REDRIVE_URL says where to look"
    )]
    Strange {
        /// Where it answers.
        url: String,
        /// What is strange about it.
        what: String,
    },
}

impl CallError {
    /// How the command ends.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Strange { .. } => Exit::Failed,
            Self::Refused { refusal, .. } if is_unknown_path(refusal) => Exit::Failed,
            Self::Refused { status, refusal, .. } => match (*status, refusal.code.as_str()) {
                (404, _) => Exit::NotFound,
                (401 | 403 | 409, _) | (_, "IDEMPOTENCY_KEY_REUSED") => Exit::Refused,
                (400 | 413 | 415 | 422, _) => Exit::Usage,
                (408 | 429 | 503, _) => Exit::Unreachable,
                _ => Exit::Failed,
            },
        }
    }

    /// Whether the service knows the caller and says that this is not for them.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { status: 403, .. })
    }
}

/// An older service has fewer paths.
fn is_unknown_path(refusal: &Refusal) -> bool {
    refusal.code == "METHOD_NOT_ALLOWED" || refusal.detail.starts_with("there is no such path")
}

/// How it shows that a service cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No connection comes about.
    Nobody,
    /// It was waited for in vain.
    TooLong,
    /// The connection ended within the answer.
    BrokeOff,
}

fn unreachable_text(url: &str, cause: &str, silence: Silence) -> String {
    match silence {
        Silence::TooLong => {
            format!("{url} does not answer in time: look at the service's log, or at /readyz there")
        }
        Silence::BrokeOff => {
            format!("the answer of {url} broke off ({cause}): try again, or look at its log")
        }
        Silence::Nobody if url.starts_with("https:") => {
            format!("nothing answers at {url} as it should ({cause}): REDRIVE_URL says where to look")
        }
        Silence::Nobody => format!(
            "nothing answers at {url}: is `redrive serve` running? REDRIVE_URL says where to look ({cause})"
        ),
    }
}

fn refused_text(status: u16, refusal: &Refusal, keyed: bool, url: &str) -> String {
    let detail = &refusal.detail;
    match (status, &refusal.field) {
        _ if is_unknown_path(refusal) => {
            format!("the service at {url} does not know this request: is it older than this command?")
        }
        (401, _) if !keyed => format!(
            "this needs a key: set {KEY}, or name a file with --api-key-file; `redrive key create` makes one"
        ),
        (401, _) => format!("{detail}; {KEY} or --api-key-file must hold a key of {url}"),
        (403, _) => format!("{detail}; set {KEY} to a key that may"),
        (_, Some(field)) => format!("{field}: {detail}"),
        _ => detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str, detail: &str) -> CallError {
        let refusal = Refusal { code: code.to_owned(), detail: detail.to_owned(), field: None };
        CallError::Refused { status, keyed: false, url: "http://x".to_owned(), refusal }
    }

    #[test]
    fn each_refusal_has_its_exit_code() {
        for code in redrive_server::Code::ALL {
            let exit = refused(code.status().as_u16(), code.name(), "x").exit();
            let expected = match code.status().as_u16() {
                404 => Exit::NotFound,
                405 | 500 | 507 => Exit::Failed,
                408 | 429 | 503 => Exit::Unreachable,
                401 | 403 | 409 => Exit::Refused,
                _ if code.name() == "IDEMPOTENCY_KEY_REUSED" => Exit::Refused,
                _ => Exit::Usage,
            };
            assert_eq!(exit, expected, "{code:?}");
        }
        let old = refused(404, "NOT_FOUND", "there is no such path; GET /docs lists them");
        assert_eq!(old.exit(), Exit::Failed);
        assert!(old.to_string().contains("older"), "{old}");
    }

    #[test]
    fn names_are_segments_and_a_prefix_stays() {
        let service = Service::new("https://host/base/", None).unwrap();
        let url = service.at(&["queues", "a/b c", "pause"], &vec![("cursor".to_owned(), "x&y".to_owned())]);
        assert_eq!(url.as_str(), "https://host/base/queues/a%2Fb%20c/pause?cursor=x%26y");
        assert_eq!(service.address(), "https://host/base");
        for wrong in ["", "host:7373", "ftp://x", "7373"] {
            assert!(Service::new(wrong, None).unwrap_err().to_string().contains("REDRIVE_URL"), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let error = Service::new("http://me:hunter2@127.0.0.1", None).unwrap_err().to_string();
        assert!(error.contains("REDRIVE_API_KEY") && !error.contains("hunter2"), "{error}");
        let service = Service::new("http://127.0.0.1:1", Some("rdk_secret\n".to_owned())).unwrap();
        assert!(!format!("{service:?}").contains("rdk_secret"));
        assert!(is_loopback(&service.base));
        assert!(!is_loopback(&Url::parse("http://127.0.0.1.example").unwrap()));
        assert!(is_loopback(&Url::parse("http://[::1]:7373").unwrap()));
    }

    #[test]
    fn a_wrong_clock_here_is_noticed() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, HeaderValue::from_static("Thu, 01 Jan 1970 00:00:10 GMT"));
        assert_eq!(now(&headers), 10_000);
        headers.insert(DATE, httpdate::fmt_http_date(std::time::SystemTime::now()).parse().unwrap());
        assert!(now(&headers).abs_diff(when::now_here()) < 60_000);
    }
}
