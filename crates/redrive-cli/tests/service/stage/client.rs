//! A caller of the service, over HTTP.

use std::fmt::Display;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Error};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::eventually;

type Body = BoxBody<Bytes, std::io::Error>;

/// Speaks to one service, over pooled connections.
#[derive(Clone)]
pub(crate) struct Client {
    http: legacy::Client<HttpConnector, Body>,
    base: String,
    headers: HeaderMap,
}

/// What the service answered.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    /// The answer's JSON; fails unless it came with `status`.
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

impl Client {
    pub(crate) fn new(address: impl Display) -> Self {
        let http = legacy::Client::builder(TokioExecutor::new()).build_http();
        Self { http, base: format!("http://{address}"), headers: HeaderMap::new() }
    }

    /// The same, with an API key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        self.with_header("authorization", &format!("Bearer {key}"))
    }

    /// The same, with a header on every request.
    pub(crate) fn with_header(&self, name: &'static str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.insert(name, value.parse().unwrap());
        client
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, json: &Value) -> Got {
        self.call(Method::POST, path, Some(json)).await
    }

    pub(crate) async fn put(&self, path: &str, json: &Value) -> Got {
        self.call(Method::PUT, path, Some(json)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Got {
        self.call(Method::DELETE, path, None).await
    }

    /// Creates a task and gives its id.
    pub(crate) async fn create(&self, task: &Value) -> String {
        id(&self.post("/retry-tasks", task).await.json(201))
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        self.get(&format!("/retry-tasks/{id}")).await.json(200)
    }

    /// The task, once it has ended.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        eventually(&format!("task {id} ends"), async || {
            let task = self.task(id).await;
            ["SUCCEEDED", "EXHAUSTED", "CANCELLED"].iter().any(|end| task["status"] == *end).then_some(task)
        })
        .await
    }

    pub(crate) async fn attempts(&self, id: &str) -> Vec<Value> {
        let mut page = self.get(&format!("/retry-tasks/{id}/attempts?limit=1000")).await.json(200);
        items(&mut page)
    }

    /// Every item of a list, page by page; `path` has a query already.
    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut page = self.get(&format!("{path}&limit=1000{cursor}")).await.json(200);
            all.append(&mut items(&mut page));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    pub(crate) async fn try_post(&self, path: &str, json: &Value) -> Result<Got, String> {
        let request = self.request(Method::POST, path, Some(json));
        let response = self.http.request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(Got { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Sends a body of whatever kind and hands back the answer unread.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base).parse().unwrap();
        self.http.request(self.dressed(request)).await
    }

    async fn call(&self, method: Method, path: &str, json: Option<&Value>) -> Got {
        let response = self.http.request(self.request(method.clone(), path, json)).await;
        let (head, body) = response.unwrap_or_else(|e| panic!("{method} {path}: {e:?}")).into_parts();
        let body = body.collect().await.unwrap_or_else(|e| panic!("{method} {path}: {e:?}")).to_bytes();
        Got { status: head.status.as_u16(), headers: head.headers, body }
    }

    fn request(&self, method: Method, path: &str, json: Option<&Value>) -> Request<Body> {
        let bytes = json.map(|json| Bytes::from(json.to_string())).unwrap_or_default();
        let mut request = Request::new(Full::new(bytes).map_err(|never| match never {}).boxed());
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base).parse().unwrap();
        if json.is_some() {
            request.headers_mut().insert("content-type", "application/json".parse().unwrap());
        }
        self.dressed(request)
    }

    fn dressed(&self, mut request: Request<Body>) -> Request<Body> {
        request.headers_mut().extend(self.headers.clone());
        request
    }
}

/// The id of a task that was created.
pub(crate) fn id(task: &Value) -> String {
    task["taskId"].as_str().unwrap_or_else(|| panic!("no task: {task}")).to_owned()
}

fn items(page: &mut Value) -> Vec<Value> {
    page["items"].as_array_mut().map(std::mem::take).unwrap_or_else(|| panic!("no page: {page}"))
}
