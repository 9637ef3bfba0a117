//! A plain HTTP client of the site.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// The timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one site.
#[derive(Clone)]
pub(crate) struct Client {
    http: Http<HttpConnector, Full<Bytes>>,
    pub(crate) url: String,
}

/// An HTTP response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub(crate) fn number(&self) -> u16 {
        self.status.as_u16()
    }

    /// The code of the error.
    pub(crate) fn problem(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A created paste, with its token.
#[derive(Debug, Clone)]
pub(crate) struct CreatedPaste {
    pub(crate) code: String,
    pub(crate) token: String,
    pub(crate) content: String,
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        Self { http: Http::builder(TokioExecutor::new()).build_http(), url: url.to_owned() }
    }

    /// Sends a request. Returns `None` if the site cannot be reached, or ends before it has answered.
    pub(crate) async fn try_call(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Bytes,
    ) -> Option<Answer> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).unwrap();
        let called = tokio::time::timeout(RESPONSE_TIMEOUT, async {
            let response = self.http.request(request).await.ok()?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some(Answer { status: parts.status, headers: parts.headers, body })
        });
        called.await.unwrap_or_else(|_| panic!("{path} did not answer within {RESPONSE_TIMEOUT:?}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.try_call(Method::GET, path, None, Bytes::new()).await.expect("the site answers")
    }

    pub(crate) async fn head(&self, code: &str) -> u16 {
        let path = format!("/raw/{code}");
        self.try_call(Method::HEAD, &path, None, Bytes::new()).await.expect("the site answers").number()
    }

    pub(crate) async fn delete(&self, code: &str, token: Option<&str>) -> Answer {
        let path = format!("/api/v1/pastes/{code}");
        self.try_call(Method::DELETE, &path, token, Bytes::new()).await.expect("the site answers")
    }

    pub(crate) async fn post(&self, request: &Value) -> Answer {
        self.try_post(request).await.expect("the site answers")
    }

    pub(crate) async fn try_post(&self, request: &Value) -> Option<Answer> {
        self.try_call(Method::POST, "/api/v1/pastes", None, request.to_string().into()).await
    }

    /// Creates a paste. Panics if the site rejects it.
    pub(crate) async fn paste(&self, content: &str) -> CreatedPaste {
        let answer = self.post(&json!({"content": content, "expiryDays": 7})).await;
        assert_eq!(answer.number(), 201, "{:?}", answer.body);
        created_paste(&answer, content)
    }

    /// Waits until a paste is neither being uploaded nor blocked by the breaker. Returns the final status.
    pub(crate) async fn final_status(&self, code: &str, timeout: Duration) -> u16 {
        let waited = tokio::time::timeout(timeout, async {
            loop {
                match self.head(code).await {
                    503 => tokio::time::sleep(Duration::from_millis(50)).await,
                    other => return other,
                }
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{code} has no final status after {timeout:?}"))
    }
}

/// Reads the response to the creation of a paste.
pub(crate) fn created_paste(answer: &Answer, content: &str) -> CreatedPaste {
    let data = &answer.json()["data"];
    let text = |name: &str| data[name].as_str().unwrap_or_else(|| panic!("{name}: {data}")).to_owned();
    CreatedPaste { code: text("shortCode"), token: text("ownerToken"), content: content.to_owned() }
}
