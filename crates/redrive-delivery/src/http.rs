//! One attempt over HTTP: any 2xx is success, anything else is an answer, redirects included.

use std::time::SystemTime;

use http::header::{CONTENT_LENGTH, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;

use crate::answer::{ANSWER_BYTES_MAX, Answer, Ending};
use crate::exchange::{Exchange, Outgoing, Sort, Trouble, explain};
use crate::progress::Progress;
use crate::retry_after::retry_after;
use crate::upload::Upload;

/// Sent unless the caller says otherwise.
pub(crate) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("redrive/", env!("CARGO_PKG_VERSION")));

/// The request as it goes out.
pub(crate) fn prepare(outgoing: Outgoing<'_>) -> Request<Upload> {
    let Outgoing { target, method, mut headers, body, progress, previous_attempts: _, timeout: _ } = outgoing;
    headers.entry(USER_AGENT).or_insert(AGENT);
    // Some servers answer 411 to these without a length, even when there is nothing to send.
    let wants_length = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
    if wants_length && body.length() == 0 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(body.noting(progress.clone()));
    *request.method_mut() = method;
    *request.uri_mut() = target.uri().clone();
    *request.headers_mut() = headers;
    progress.watch(capture_connection(&mut request));
    request
}

/// Reads the answer.
pub(crate) async fn answered(progress: &Progress, response: Response<Incoming>) -> Exchange {
    let (head, body) = response.into_parts();
    progress.answered(head.status.as_u16());
    let answer = Answer::read(body, ANSWER_BYTES_MAX).await;
    let asked = || retry_after(&head.headers, SystemTime::now());
    Exchange {
        excerpt: answer.excerpt(0),
        retry_after: if head.status.is_success() { None } else { asked() },
        trouble: trouble(head.status),
        note: note(&answer.ending),
        ..Exchange::so_far(progress)
    }
}

/// The status is the answer, whatever becomes of the body after it.
fn trouble(status: StatusCode) -> Option<Trouble> {
    if status.is_success() {
        return None;
    }
    let hint = if status.is_redirection() { "; redirects are not followed" } else { "" };
    Some(Trouble::new(Sort::Status(status.as_u16()), format!("the target answered {status}{hint}")))
}

/// A body that broke off is worth knowing. One that was cut at the limit is not: the target may send as much as it likes.
fn note(ending: &Ending) -> Option<String> {
    match ending {
        Ending::Whole | Ending::Cut => None,
        Ending::Broken(error) => Some(format!("the body of the answer broke off: {}", explain(error))),
    }
}
