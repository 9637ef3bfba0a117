//! Takes requests apart; what does not fit is a problem that names the field.

use std::str::FromStr;
use std::sync::Arc;

use axum::body::BodyDataStream;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use redrive_core::JobId;
use redrive_delivery::bodies::UPLOAD_BYTES_HELD_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Answer, Code, Problem};
use crate::request_body::{BodyFault, Reservation};

/// A JSON body, as it came or on its way out.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        check_content_type(request.headers())?;
        let body = Bytes::from_request(request, state).await.map_err(|rejection| unread(&rejection))?;
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

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        let typed = check_content_type(request.headers());
        let body = Bytes::from_request(request, state).await.map_err(|rejection| unread(&rejection))?;
        match body.trim_ascii() {
            b"" | b"null" => Ok(Self(T::default())),
            body => typed.and_then(|()| parse(body)).map(Self),
        }
    }
}

/// A body that goes to the object store as it arrives.
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

/// Parses JSON; only when that fails does it look again for the field at fault.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Answer<T> {
    // A list would fill a struct by position, which no schema allows.
    if json.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::invalid("body", "must be a JSON object, is a list"));
    }
    serde_json::from_slice(json).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => misfit::<T>(json, &error),
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => {
            Problem::new(Code::MalformedJson, format!("the body is not JSON: {error}"))
        }
    })
}

fn misfit<T: DeserializeOwned>(json: &[u8], error: &serde_json::Error) -> Problem {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let text = error.to_string();
    let path = serde_path_to_error::deserialize::<_, T>(&mut reader).err();
    let path = path.map(|error| error.path().to_string()).filter(|path| path != ".");
    let named = || text.split('`').nth(1).filter(|_| text.starts_with("missing field")).map(str::to_owned);
    match (path, named()) {
        (Some(path), Some(missing)) => Problem::invalid(format!("{path}.{missing}"), text),
        (Some(field), None) | (None, Some(field)) => Problem::invalid(field, text),
        (None, None) => Problem::invalid("body", text),
    }
}

fn check_content_type(headers: &HeaderMap) -> Answer<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = given.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let detail = format!("send the header Content-Type: application/json, not {given:?}");
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

/// A body that could not be read to its end.
fn unread(rejection: &BytesRejection) -> Problem {
    if let Some(fault) = BodyFault::behind(rejection) {
        return fault.into();
    }
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = "the request is larger than this route takes; upload a large body with PUT /bodies and send its bodyRef";
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
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|rejection| {
            let text = rejection.body_text();
            let problem = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            // The path of a parameter stands before the problem; an unknown one is named in it.
            let field = match problem.split_once(": ") {
                Some((field, _)) if !field.contains(' ') => field.to_owned(),
                _ => problem.split('`').nth(1).unwrap_or("query").to_owned(),
            };
            Problem::invalid(field, problem)
        })
    }
}

/// A value from the path. One that cannot be a name here names nothing: 404.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<T: FromStr + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let nothing = || Problem::new(Code::NotFound, "the path names nothing");
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| nothing())?;
        text.parse().map(Self).map_err(|_| Problem::not_found("such thing as", &text))
    }
}

/// The id of a task from the path.
#[derive(Debug)]
pub(crate) struct TaskId(pub(crate) JobId);

impl<S: Send + Sync> FromRequestParts<S> for TaskId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        Named::<JobId>::from_request_parts(parts, state).await.map(|Named(id)| Self(id))
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
    fn a_body_that_does_not_fit_names_the_field() {
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
