//! The paths and fields of the reference document, as aliases of `/v1`: a request is rewritten, and so is its answer.
//!
//! | alias | route |
//! | --- | --- |
//! | `POST /retry-tasks` | `POST /v1/tasks` |
//! | `GET /retry-tasks/{taskId}` | `GET /v1/tasks/{taskId}` |
//! | `DELETE /retry-tasks/{taskId}` | `POST /v1/tasks/{taskId}/cancel` |
//! | `GET /retry-tasks/{taskId}/attempts` | `GET /v1/tasks/{taskId}/attempts` |
//! | `POST /retry-policies` | `POST /v1/policies` |
//! | `GET /retry-policies/{policyId}` | `GET /v1/policies/{policyId}` |

use std::collections::BTreeMap;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest as _, Request};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use redrive_wire::Code;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tower_service::Service as _;

use super::REQUEST_BYTES_MAX;
use crate::error::{Answer, Problem};
use crate::extract::body_problem;

/// The paths of the reference document and the paths that they stand for.
const PATHS: [(&str, &str); 2] = [("/retry-tasks", "/v1/tasks"), ("/retry-policies", "/v1/policies")];
/// The fields of the reference document and the fields that they stand for.
const FIELDS: [(&str, &str); 4] = [
    ("targetUrl", "target"),
    ("onExhaustedUrl", "onFailureUrl"),
    ("visibilityTimeoutMs", "leaseMs"),
    ("status", "state"),
];
/// Fields whose values are written in upper case.
const UPPER_CASE: [&str; 5] = ["backoffType", "jitterType", "reason", "phase", "code"];

/// Answers a request to an alias through `v1`; any other request gets 404.
pub(super) async fn serve(v1: Router, request: Request) -> Response {
    forward(v1, request).await.unwrap_or_else(Problem::into_response)
}

/// The path of an alias for the label of a metric.
pub(super) fn label(path: &str) -> &'static str {
    PATHS.iter().map(|(alias, _)| *alias).find(|alias| rest_of(path, alias).is_some()).unwrap_or("none")
}

async fn forward(mut v1: Router, request: Request) -> Answer<Response> {
    let no_path = || Problem::new(Code::NotFound, "there is no such path; GET /docs lists all paths");
    let (method, path) = route(request.method(), request.uri().path()).ok_or_else(no_path)?;
    let (mut parts, body) = request.into_parts();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    parts.uri = with_path(&parts.uri, &format!("{path}{query}")).ok_or_else(no_path)?;
    parts.method = method;
    let request = Request::from_parts(parts.clone(), body);
    let body = Bytes::from_request(request, &()).await.map_err(|rejection| body_problem(&rejection))?;
    let body = rewrite_request(&body).map_or(body, Bytes::from);
    parts.headers.remove(header::CONTENT_LENGTH);
    let request = Request::from_parts(parts, Body::from(body));
    match v1.call(request).await {
        Ok(response) => rewrite_response(response).await,
        Err(never) => match never {},
    }
}

/// The route that an alias stands for.
fn route(method: &Method, path: &str) -> Option<(Method, String)> {
    let (alias, target) = PATHS.into_iter().find(|(alias, _)| rest_of(path, alias).is_some())?;
    let rest = rest_of(path, alias)?;
    let parts: Vec<&str> = rest.split('/').skip(1).collect();
    match (alias, method.as_str(), parts.as_slice()) {
        (_, "POST", []) | (_, "GET" | "HEAD", [_]) | ("/retry-tasks", "GET" | "HEAD", [_, "attempts"]) => {
            Some((method.clone(), format!("{target}{rest}")))
        }
        ("/retry-tasks", "DELETE", [_]) => Some((Method::POST, format!("{target}{rest}/cancel"))),
        _ => None,
    }
}

/// The part of a path after the alias.
fn rest_of<'a>(path: &'a str, alias: &str) -> Option<&'a str> {
    path.strip_prefix(alias).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}

/// The body with the fields of `/v1`; `None` if it is not a JSON object, which `/v1` rejects itself. Values keep their exact text,
/// because `bodyJson` is sent byte for byte.
fn rewrite_request(body: &[u8]) -> Option<Vec<u8>> {
    let object: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).ok()?;
    let rewritten = object.into_iter().map(|(name, value)| {
        let value = match name.as_str() {
            "policy" => rewrite_request(value.get().as_bytes()).and_then(raw).unwrap_or(value),
            "backoffType" | "jitterType" => raw(value.get().to_lowercase().into_bytes()).unwrap_or(value),
            _ => value,
        };
        (v1_name(&name).to_owned(), value)
    });
    serde_json::to_vec(&rewritten.collect::<BTreeMap<_, _>>()).ok()
}

fn raw(json: Vec<u8>) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(json).ok()?).ok()
}

fn v1_name(name: &str) -> &str {
    FIELDS.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, field)| field)
}

async fn rewrite_response(response: Response) -> Answer<Response> {
    let (mut parts, body) = response.into_parts();
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(alias_of) {
        parts.headers.insert(header::LOCATION, location);
    }
    let body = to_bytes(body, 16 * REQUEST_BYTES_MAX).await.map_err(|error| Problem::internal(&error))?;
    let Ok(Value::Object(object)) = serde_json::from_slice(&body) else {
        return Ok(Response::from_parts(parts, Body::from(body)));
    };
    let body = serde_json::to_vec(&rewrite_answer(object)).map_err(|error| Problem::internal(&error))?;
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(body)))
}

fn alias_of(location: &HeaderValue) -> Option<HeaderValue> {
    let path = location.to_str().ok()?;
    let (alias, target) = PATHS.into_iter().find(|(_, target)| rest_of(path, target).is_some())?;
    HeaderValue::from_str(&format!("{alias}{}", rest_of(path, target)?)).ok()
}

/// An answer with the fields and the upper-case values of the reference document.
fn rewrite_answer(object: Map<String, Value>) -> Map<String, Value> {
    let is_problem = object.contains_key("detail") && object.contains_key("code");
    let rewritten = object.into_iter().filter(|(name, _)| name != "waitingFor").map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("items", Value::Array(items)) => items.into_iter().map(rewrite_item).collect(),
            ("state" | "ledTo", Value::String(state)) => status(&state).into(),
            ("field", Value::String(field)) if is_problem => alias_field(&field).into(),
            (name, Value::String(text)) if UPPER_CASE.contains(&name) => text.to_uppercase().into(),
            (_, value) => value,
        };
        // The `status` of a problem is an HTTP status.
        let alias = FIELDS.iter().find(|(_, field)| *field == name).filter(|_| !is_problem);
        (alias.map_or(name, |(alias, _)| (*alias).to_owned()), value)
    });
    rewritten.collect()
}

fn rewrite_item(item: Value) -> Value {
    match item {
        Value::Object(object) => Value::Object(rewrite_answer(object)),
        other => other,
    }
}

/// The invalid field under the name that the caller used: the last part of its path is renamed.
fn alias_field(field: &str) -> String {
    let (path, name) = field.rsplit_once('.').map_or(("", field), |(path, name)| (path, name));
    let alias = FIELDS.iter().find(|(_, field)| *field == name).map_or(name, |(alias, _)| alias);
    if path.is_empty() { alias.to_owned() } else { format!("{path}.{alias}") }
}

/// The status of the reference document for a state of `/v1`.
fn status(state: &str) -> &'static str {
    match state {
        "running" => "IN_FLIGHT",
        "succeeded" => "SUCCEEDED",
        "dead" => "EXHAUSTED",
        "cancelled" => "CANCELLED",
        _ => "PENDING",
    }
}

#[cfg(test)]
mod tests {
    use redrive_wire::state::JobState;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_alias_leads_to_its_route_and_other_paths_to_none() {
        for (method, path, expected) in [
            ("POST", "/retry-tasks", Some("POST /v1/tasks")),
            ("GET", "/retry-tasks/a", Some("GET /v1/tasks/a")),
            ("DELETE", "/retry-tasks/a", Some("POST /v1/tasks/a/cancel")),
            ("GET", "/retry-tasks/a/attempts", Some("GET /v1/tasks/a/attempts")),
            ("POST", "/retry-policies", Some("POST /v1/policies")),
            ("GET", "/retry-policies/p", Some("GET /v1/policies/p")),
            ("DELETE", "/retry-policies/p", None),
            ("POST", "/retry-tasks/a/redrive", None),
            ("POST", "/retry-tasksx", None),
            ("POST", "/other", None),
        ] {
            let route =
                route(&method.parse().unwrap(), path).map(|(method, path)| format!("{method} {path}"));
            assert_eq!(route.as_deref(), expected, "{method} {path}");
        }
    }

    #[test]
    fn fields_and_values_are_rewritten_both_ways() {
        let request = br#"{"targetUrl":"http://a/","bodyJson":{"n":1.10},"policy":{"jitterType":"FULL","visibilityTimeoutMs":5}}"#;
        let rewritten = String::from_utf8(rewrite_request(request).unwrap()).unwrap();
        assert!(rewritten.contains(r#""bodyJson":{"n":1.10}"#), "{rewritten}");
        let read: Value = serde_json::from_str(&rewritten).unwrap();
        assert_eq!(read["policy"], json!({"jitterType": "full", "leaseMs": 5}));
        let answer = json!({"state": "dead", "reason": "body_lost", "target": "http://a/", "waitingFor": {}});
        let Value::Object(answer) = answer else { unreachable!("it is an object") };
        let expected = json!({"status": "EXHAUSTED", "reason": "BODY_LOST", "targetUrl": "http://a/"});
        assert_eq!(Value::Object(rewrite_answer(answer)), expected);
        assert_eq!(alias_field("policy.onFailureUrl"), "policy.onExhaustedUrl");
    }

    #[test]
    fn each_state_has_a_status() {
        let statuses: Vec<_> = JobState::ALL.into_iter().map(|state| status(state.name())).collect();
        let expected = ["PENDING", "PENDING", "IN_FLIGHT", "PENDING", "SUCCEEDED", "EXHAUSTED", "CANCELLED"];
        assert_eq!(statuses, expected);
    }
}
