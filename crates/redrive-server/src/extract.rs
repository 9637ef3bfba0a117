//! Extracts the parts of a request. An invalid part gives a problem that names the field.

use std::str::FromStr;
use std::sync::Arc;

use axum::body::BodyDataStream;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use redrive_core::JobId;
use redrive_delivery::bodies::UPLOAD_BYTES_HELD_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Answer, Problem};
use crate::request_body::{BodyReadError, Reservation};
use redrive_wire::Code;
use redrive_wire::filter::JobFilter;
use redrive_wire::page::PageQuery;

/// A JSON body of a request or an answer.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        check_content_type(request.headers())?;
        let body = Bytes::from_request(request, state).await.map_err(|rejection| body_problem(&rejection))?;
        parse(&body).map(Self)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => Problem::internal(&error).into_response(),
        }
    }
}

/// An optional JSON body.
#[derive(Debug)]
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        let content_type_check = check_content_type(request.headers());
        let body = Bytes::from_request(request, state).await.map_err(|rejection| body_problem(&rejection))?;
        match body.trim_ascii() {
            b"" | b"null" => Ok(Self(T::default())),
            body => content_type_check.and_then(|()| parse(body)).map(Self),
        }
    }
}

/// A body that is streamed to the object store.
#[derive(Debug)]
pub(crate) struct StreamedBody(pub(crate) BodyDataStream);

impl<S: Send + Sync> FromRequest<S> for StreamedBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        if let Some(reservation) = request.extensions().get::<Arc<Reservation>>() {
            reservation.hold_at_most(UPLOAD_BYTES_HELD_MAX);
        }
        Ok(Self(request.into_body().into_data_stream()))
    }
}

/// Parses JSON. If that fails, it parses again to find the invalid field.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Answer<T> {
    // serde would fill a struct from a list by position, which no schema allows.
    if json.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::invalid("body", "must be a JSON object, not a list"));
    }
    serde_json::from_slice(json).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => invalid_field::<T>(json, &error),
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => {
            Problem::new(Code::MalformedJson, format!("the body is not JSON: {error}"))
        }
    })
}

/// Names the field that does not fit `T`.
fn invalid_field<T: DeserializeOwned>(json: &[u8], error: &serde_json::Error) -> Problem {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let text = error.to_string();
    let path = serde_path_to_error::deserialize::<_, T>(&mut reader).err();
    let path = path.map(|error| error.path().to_string()).filter(|path| path != ".");
    let missing = text.split('`').nth(1).filter(|_| text.starts_with("missing field")).map(str::to_owned);
    match (path, missing) {
        (Some(path), Some(missing)) => Problem::invalid(format!("{path}.{missing}"), text),
        (Some(field), None) | (None, Some(field)) => Problem::invalid(field, text),
        (None, None) => Problem::invalid("body", text),
    }
}

fn check_content_type(headers: &HeaderMap) -> Answer<()> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let detail = format!("send the header Content-Type: application/json, not {content_type:?}");
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

/// The problem of a body that could not be read completely.
pub(crate) fn body_problem(rejection: &BytesRejection) -> Problem {
    if let Some(fault) = BodyReadError::find_in(rejection) {
        return fault.into();
    }
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = "the request is larger than this route accepts; upload a large body with PUT /v1/bodies and send its bodyRef";
        return Problem::new(Code::BodyTooLarge, detail);
    }
    Problem::new(Code::BrokenBody, "the body ended before it was complete; send it again")
}

/// The query of a request.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        read_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn read_query<T: DeserializeOwned>(query: &str) -> Answer<T> {
    let uri =
        Uri::try_from(format!("/?{query}")).map_err(|error| Problem::invalid("query", error.to_string()))?;
    axum::extract::Query::<T>::try_from_uri(&uri).map(|query| query.0).map_err(|rejection| {
        let text = rejection.body_text();
        let problem = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
        // The text is `parameter: problem`. For an unknown parameter, it has the name in backticks instead.
        let field = match problem.split_once(": ") {
            Some((field, _)) if !field.contains(' ') => field.to_owned(),
            _ => problem.split('`').nth(1).unwrap_or("query").to_owned(),
        };
        Problem::invalid(field, problem)
    })
}

/// A filter of jobs and the page to show, from one query.
#[derive(Debug)]
pub(crate) struct FilterQuery(pub(crate) JobFilter, pub(crate) PageQuery);

impl<S: Send + Sync> FromRequestParts<S> for FilterQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let is_page = |pair: &&str| matches!(pair.split('=').next(), Some("limit" | "cursor"));
        let (page, filter): (Vec<&str>, Vec<&str>) =
            parts.uri.query().unwrap_or_default().split('&').partition(is_page);
        Ok(Self(read_query(&filter.join("&"))?, read_query(&page.join("&"))?))
    }
}

/// The header `If-Match`: the versions that a change may replace. Without the header, every version may be replaced.
#[derive(Debug)]
pub(crate) struct IfMatch(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let text = value.to_str().map_err(|_| Problem::invalid("If-Match", "must be plain text"))?;
        let is_etag = |one: &str| one == "*" || (one.len() > 2 && one.starts_with('"') && one.ends_with('"'));
        if !text.split(',').map(str::trim).all(is_etag) {
            let remedy = "must be * or the ETag of an earlier answer, with its quotes";
            return Err(Problem::invalid("If-Match", remedy));
        }
        Ok(Self(Some(text.to_owned())))
    }
}

impl IfMatch {
    /// Whether the version with this ETag may be replaced. `None` means that nothing exists yet.
    pub(crate) fn allows(&self, etag: Option<&str>) -> bool {
        match (&self.0, etag) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(asked), Some(etag)) => asked.split(',').map(str::trim).any(|one| one == "*" || one == etag),
        }
    }

    /// The problem of a change that `If-Match` does not allow.
    pub(crate) fn failed() -> Problem {
        Problem::new(
            Code::PreconditionFailed,
            "it has changed since you read it: read it again, then repeat the change",
        )
    }
}

/// A value from the path. An invalid value gives 404.
#[derive(Debug)]
pub(crate) struct PathParam<T>(pub(crate) T);

impl<T: FromStr + Send, S: Send + Sync> FromRequestParts<S> for PathParam<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let unreadable = || Problem::new(Code::NotFound, "the path does not name a resource");
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| unreadable())?;
        text.parse().map(Self).map_err(|_| Problem::not_found("resource", &text))
    }
}

/// The id of a task from the path.
#[derive(Debug)]
pub(crate) struct TaskId(pub(crate) JobId);

impl<S: Send + Sync> FromRequestParts<S> for TaskId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        PathParam::<JobId>::from_request_parts(parts, state).await.map(|PathParam(id)| Self(id))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Thing {
        max_attempts: u32,
        inner: Option<BTreeMap<String, u32>>,
    }

    fn check(json: &str, code: Code, field: Option<&str>) {
        let problem = parse::<Thing>(json.as_bytes()).unwrap_err();
        assert_eq!((problem.code, problem.field.as_deref()), (code, field), "{json}: {problem:?}");
    }

    #[test]
    fn the_problem_of_an_invalid_body_names_the_field() {
        check("", Code::MalformedJson, None);
        check("{", Code::MalformedJson, None);
        check("{]", Code::MalformedJson, None);
        check("[1,null]", Code::Invalid, Some("body"));
        check("{}", Code::Invalid, Some("maxAttempts"));
        check(r#"{"maxAttempts":"x"}"#, Code::Invalid, Some("maxAttempts"));
        check(r#"{"maxAttempts":1,"other":2}"#, Code::Invalid, Some("other"));
        check(r#"{"maxAttempts":1,"inner":{"a":-1}}"#, Code::Invalid, Some("inner.a"));
        check("7", Code::Invalid, Some("body"));
    }
}
