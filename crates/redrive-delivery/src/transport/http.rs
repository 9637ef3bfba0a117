//! One attempt over HTTP. Any 2xx is a success; every other status is a failure, redirects included.

use std::time::SystemTime;

use http::header::{CONTENT_LENGTH, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;

use crate::retry_after::retry_after;
use crate::transport::exchange::{
    Exchange, OutgoingRequest, TransportFailure, TransportFailureKind, explain,
};
use crate::transport::progress::Progress;
use crate::transport::response_body::{RESPONSE_BYTES_MAX, ReadEnd, ResponseBody};
use crate::transport::upload::Upload;

/// The `User-Agent` unless the caller sets one.
pub(crate) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("redrive/", env!("CARGO_PKG_VERSION")));

/// The HTTP request.
pub(crate) fn prepare(outgoing: OutgoingRequest<'_>) -> Request<Upload> {
    let OutgoingRequest { target, method, mut headers, body, progress, previous_attempts: _, timeout: _ } =
        outgoing;
    headers.entry(USER_AGENT).or_insert(AGENT);
    // Some servers answer 411 to these methods without a length, even if the body is empty.
    let wants_length = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
    if wants_length && body.length() == 0 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(body.with_progress(progress.clone()));
    *request.method_mut() = method;
    *request.uri_mut() = target.uri().clone();
    *request.headers_mut() = headers;
    progress.set_connection(capture_connection(&mut request));
    request
}

/// Reads the answer.
pub(crate) async fn read_response(progress: &Progress, response: Response<Incoming>) -> Exchange {
    let (head, body) = response.into_parts();
    progress.set_answered(head.status.as_u16());
    let answer = ResponseBody::read(body, RESPONSE_BYTES_MAX).await;
    let requested = || retry_after(&head.headers, SystemTime::now());
    Exchange {
        excerpt: answer.excerpt(0),
        retry_after: if head.status.is_success() { None } else { requested() },
        failure: failure(head.status),
        note: note(&answer.end),
        ..Exchange::from_progress(progress)
    }
}

/// Only the status decides, even if the body breaks off after it.
fn failure(status: StatusCode) -> Option<TransportFailure> {
    if status.is_success() {
        return None;
    }
    let hint = if status.is_redirection() { "; redirects are not followed" } else { "" };
    Some(TransportFailure::new(
        TransportFailureKind::Status(status.as_u16()),
        format!("the target answered {status}{hint}"),
    ))
}

/// A remark if the body broke off. There is none if it was cut at the limit, because the target may send as much as it likes.
fn note(end: &ReadEnd) -> Option<String> {
    match end {
        ReadEnd::Whole | ReadEnd::Cut => None,
        ReadEnd::Broken(error) => Some(format!("the body of the answer broke off: {}", explain(error))),
    }
}
