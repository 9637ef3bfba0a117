//! The client of a running service, and the exit status that each of its errors leads to.

mod error;
mod outage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::error::ClientError;
use self::error::{ConnectionFailure, Problem};
pub(crate) use self::outage::OutageTolerance;
use crate::exit::ExitStatus;
use crate::options::read_text;
use crate::output::{OutputStyle, time};

/// The path segments before every path of the API.
const API: &[&str] = &["v1"];
const DEFAULT_URL: &str = "http://127.0.0.1:7373";
/// The variable with the API key. There is no option for it, because every user of a machine can read the options of a
/// running command.
const KEY_VARIABLE: &str = "REDRIVE_API_KEY";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Smaller differences between two clocks are ignored: the date in a header has no fraction of a second.
const CLOCK_SKEW_MS_MIN: u64 = 2_000;

/// The service that a command calls, and whether it prints JSON.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ServiceOptions {
    /// The address of the service [default: http://127.0.0.1:7373]
    #[arg(long, env = "REDRIVE_URL", value_name = "URL", global = true, help_heading = "Service")]
    pub(crate) url: Option<String>,
    /// A file with the API key; the default is the variable REDRIVE_API_KEY
    #[arg(long, value_name = "FILE", global = true, help_heading = "Service")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Print JSON, one document per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl ServiceOptions {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(self.url.as_deref().unwrap_or(DEFAULT_URL), self.key()?)
    }

    fn key(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.api_key_file else {
            return Ok(std::env::var(KEY_VARIABLE).ok().filter(|key| !key.trim().is_empty()));
        };
        read_text(path).map(Some).context("--api-key-file")
    }
}

/// A client of the HTTP API.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    headers: HeaderMap,
}

/// Query parameters.
pub(crate) type Query = Vec<(String, String)>;

impl Client {
    fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let base = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let base = base.ok_or_else(|| {
            let shown = redrive::mask_password(url);
            let text = format!(
                "invalid service address {shown:?}: set --url or REDRIVE_URL, for example {DEFAULT_URL}"
            );
            ExitStatus::Usage.error(text)
        })?;
        if !base.username().is_empty() || base.password().is_some() {
            // The address is not part of the message, because it contains a secret.
            let text =
                format!("the service address must not contain a password: put the API key in {KEY_VARIABLE}");
            return Err(ExitStatus::Usage.error(text));
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let invalid = |_| ExitStatus::Usage.error("the API key contains invalid characters");
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(invalid)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self { http: http_client(&base)?, base, headers })
    }

    /// The address of the service.
    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Acts on behalf of a tenant.
    pub(crate) fn acting_for(mut self, tenant: Option<&str>) -> anyhow::Result<Self> {
        if let Some(tenant) = tenant {
            let value = HeaderValue::try_from(tenant);
            let value = value.map_err(|_| ExitStatus::Usage.error(format!("invalid tenant {tenant:?}")))?;
            self.headers.insert(redrive_wire::headers::TENANT_HEADER, value);
        }
        Ok(self)
    }

    /// Sends a further header with every request.
    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> anyhow::Result<Self> {
        let value = HeaderValue::try_from(value);
        let value = value.map_err(|_| ExitStatus::Usage.error(format!("{name} must be plain text")))?;
        self.headers.insert(name, value);
        Ok(self)
    }

    pub(crate) async fn get(&self, path: &[&str], query: &Query) -> Result<Answer, ClientError> {
        self.call(Method::GET, path, query, None).await
    }

    /// Checks whether the service is ready. `/readyz` is not below the path of the API.
    pub(crate) async fn check_ready(&self) -> Result<(), ClientError> {
        self.call_at(Method::GET, self.url(&["readyz"]), None).await.map(drop)
    }

    /// Sends a POST request without a body.
    pub(crate) async fn post_empty(&self, path: &[&str]) -> Result<Answer, ClientError> {
        self.call(Method::POST, path, &Query::new(), None).await
    }

    pub(crate) async fn post(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Answer> {
        Ok(self.call(Method::POST, path, &Query::new(), Some(json_body(body)?)).await?)
    }

    pub(crate) async fn put(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Answer> {
        Ok(self.call(Method::PUT, path, &Query::new(), Some(json_body(body)?)).await?)
    }

    /// Sends bytes unchanged.
    pub(crate) async fn upload(&self, path: &[&str], bytes: Bytes) -> Result<Answer, ClientError> {
        self.call(Method::PUT, path, &Query::new(), Some((bytes, "application/octet-stream"))).await
    }

    pub(crate) async fn delete(&self, path: &[&str]) -> Result<Answer, ClientError> {
        self.call(Method::DELETE, path, &Query::new(), None).await
    }

    /// Starts to read an endless answer, such as the events.
    pub(crate) async fn stream(
        &self,
        path: &[&str],
        query: &Query,
    ) -> Result<reqwest::Response, ClientError> {
        let request = self.http.get(self.at(path, query)).headers(self.headers.clone());
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, body) = (response.status(), response.bytes().await.unwrap_or_default());
        Err(self.rejected(status, &body))
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Option<(Bytes, &'static str)>,
    ) -> Result<Answer, ClientError> {
        self.call_at(method, self.at(path, query), body).await
    }

    async fn call_at(
        &self,
        method: Method,
        url: Url,
        body: Option<(Bytes, &'static str)>,
    ) -> Result<Answer, ClientError> {
        let mut request = self.http.request(method, url).headers(self.headers.clone());
        if let Some((bytes, kind)) = body {
            request = request.header(CONTENT_TYPE, kind).body(bytes);
        }
        let response =
            request.timeout(ANSWER_TIMEOUT).send().await.map_err(|error| self.unreachable(error))?;
        let (status, now) = (response.status(), service_time(response.headers()));
        let body = response.bytes().await.map_err(|error| self.unreachable(error))?;
        if status.is_success() {
            return Ok(Answer { status, now, body, url: self.address().to_owned() });
        }
        Err(self.rejected(status, &body))
    }

    /// The URL of an API path.
    fn at(&self, path: &[&str], query: &Query) -> Url {
        let mut url = self.url(&[API, path].concat());
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Each part of the path is one segment: a name may contain any character.
    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    fn unreachable(&self, error: reqwest::Error) -> ClientError {
        let failure = if error.is_timeout() {
            ConnectionFailure::Timeout
        } else if error.is_body() || error.is_decode() {
            ConnectionFailure::Interrupted
        } else {
            ConnectionFailure::NotConnected
        };
        ClientError::Unreachable { url: self.address().to_owned(), cause: root_cause(&error), failure }
    }

    fn rejected(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => ClientError::Rejected {
                status: status.as_u16(),
                key_sent: self.headers.contains_key(AUTHORIZATION),
                url: self.address().to_owned(),
                problem,
            },
            Err(_) => ClientError::UnexpectedAnswer {
                url: self.address().to_owned(),
                cause: format!("status {status}"),
            },
        }
    }
}

fn json_body(value: &impl Serialize) -> anyhow::Result<(Bytes, &'static str)> {
    Ok((Bytes::from(serde_json::to_vec(value)?), "application/json"))
}

fn http_client(base: &Url) -> anyhow::Result<reqwest::Client> {
    // reqwest panics without a crypto provider. This does nothing if one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
        // A redirect must not send the API key to another host.
        .redirect(reqwest::redirect::Policy::none());
    if is_loopback(base) {
        client = client.no_proxy();
    }
    client.build().context("cannot create an HTTP client")
}

/// Whether the service is on this machine. Then no proxy is used.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The time of the service. The clock of this machine is used unless the date of the answer shows that it is wrong.
fn service_time(headers: &HeaderMap) -> i64 {
    let local = time::now();
    let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let remote = date.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    match remote.and_then(|remote| i64::try_from(remote.as_millis()).ok()) {
        Some(remote) if remote.abs_diff(local) > CLOCK_SKEW_MS_MIN => remote,
        _ => local,
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A successful answer of the service.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The time of the service in epoch ms.
    pub(crate) now: i64,
    body: Bytes,
    url: String,
}

impl Answer {
    /// Parses the JSON document.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let unexpected = |error: serde_json::Error| ClientError::UnexpectedAnswer {
            url: self.url.clone(),
            cause: error.to_string(),
        };
        serde_json::from_slice(&self.body).map_err(unexpected)
    }

    /// The JSON text of the document, unchanged.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// How the answer is printed.
    pub(crate) fn style(&self) -> OutputStyle {
        OutputStyle::of_stdout(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_the_path_of_the_address_is_kept() {
        let client = Client::new("https://host/base/", None).unwrap();
        let url = client.at(&["queues", "a/b c", "pause"], &vec![("cursor".to_owned(), "x&y".to_owned())]);
        assert_eq!(url.as_str(), "https://host/base/v1/queues/a%2Fb%20c/pause?cursor=x%26y");
        assert_eq!(client.address(), "https://host/base");
        for wrong in ["", "host:7373", "ftp://x", "7373"] {
            assert!(Client::new(wrong, None).unwrap_err().to_string().contains("REDRIVE_URL"), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let error = Client::new("http://me:hunter2@127.0.0.1", None).unwrap_err().to_string();
        assert!(error.contains("REDRIVE_API_KEY") && !error.contains("hunter2"), "{error}");
        let client = Client::new("http://127.0.0.1:1", Some("rdk_secret\n".to_owned())).unwrap();
        assert!(!format!("{client:?}").contains("rdk_secret"));
        assert!(is_loopback(&client.base));
        assert!(!is_loopback(&Url::parse("http://127.0.0.1.example").unwrap()));
        assert!(is_loopback(&Url::parse("http://[::1]:7373").unwrap()));
    }

    #[test]
    fn a_wrong_local_clock_is_replaced_by_the_date_of_the_answer() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, HeaderValue::from_static("Thu, 01 Jan 1970 00:00:10 GMT"));
        assert_eq!(service_time(&headers), 10_000);
        headers.insert(DATE, httpdate::fmt_http_date(std::time::SystemTime::now()).parse().unwrap());
        assert!(service_time(&headers).abs_diff(time::now()) < 60_000);
    }
}
