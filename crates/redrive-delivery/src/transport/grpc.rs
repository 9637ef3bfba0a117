//! One attempt over gRPC: a unary call on HTTP/2. It is written by hand because the message is opaque bytes without a schema.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use percent_encoding::percent_decode;
use redrive_core::limits::HORIZON;

use crate::transport::exchange::{
    Exchange, OutgoingRequest, TransportFailure, TransportFailureKind, explain,
};
use crate::transport::http::AGENT;
use crate::transport::progress::Progress;
use crate::transport::response_body::{ReadEnd, ResponseBody, sanitise};
use crate::transport::upload::Upload;

/// The most bytes of an answer that are read. The status comes after the message, so the message must be read even though most of
/// it is dropped. This is the default limit of gRPC clients.
pub const GRPC_ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const FRAME_BYTES: usize = 5;
const UNKNOWN: u16 = 2;
const RESOURCE_EXHAUSTED: u16 = 8;
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The HTTP request for a gRPC call, with the message in its frame.
pub(crate) fn prepare(outgoing: OutgoingRequest<'_>) -> Request<Upload> {
    let OutgoingRequest { target, method: _, mut headers, body, previous_attempts, timeout, progress } =
        outgoing;
    headers.entry(USER_AGENT).or_insert(AGENT);
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if previous_attempts > 0 {
        headers.insert(PREVIOUS_ATTEMPTS, previous_attempts.into());
    }
    if let Some(timeout) = timeout.and_then(|timeout| HeaderValue::from_str(&timeout_text(timeout)).ok()) {
        headers.insert(TIMEOUT, timeout);
    }
    let length = u32::try_from(body.length()).unwrap_or(u32::MAX).to_be_bytes();
    let frame = [0, length[0], length[1], length[2], length[3]];
    let mut request = Request::new(body.with_prefix(&frame).with_progress(progress.clone()));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = target.uri().clone();
    *request.headers_mut() = headers;
    progress.set_connection(capture_connection(&mut request));
    request
}

/// Reads the answer, with the status at its end.
pub(crate) async fn read_response(progress: &Progress, response: Response<Incoming>) -> Exchange {
    let (head, body) = response.into_parts();
    // A gRPC server answers 200 even to calls that fail; the code at the end is the status. Any other HTTP status comes from a
    // proxy in between, and is recorded.
    if head.status == StatusCode::OK {
        progress.set_answered_without_status();
    } else {
        progress.set_answered(head.status.as_u16());
    }
    let answer = ResponseBody::read(body, GRPC_ANSWER_BYTES_MAX).await;
    // A call that fails at once has its status in the headers.
    let last = match &answer.trailers {
        Some(trailers) if !head.headers.contains_key(STATUS) => trailers,
        Some(_) | None => &head.headers,
    };
    let exchange = Exchange::from_progress(progress);
    match read_status(head.status, last, &answer.end) {
        Err(broken) => Exchange { failure: Some(broken), ..exchange },
        Ok((0, _)) => Exchange { grpc_code: Some(0), excerpt: answer.excerpt(FRAME_BYTES), ..exchange },
        Ok((code, message)) => {
            let (retry_after, no_retry) = pushback(last.get(PUSHBACK).or(head.headers.get(PUSHBACK)));
            // The message of the target goes into the excerpt, which only keys with access to bodies may read. Every key may read
            // the error.
            let own_message = Some(&message).filter(|_| !last.contains_key(STATUS));
            let note = own_message.map(|note| format!(": {note}")).unwrap_or_default();
            let text = format!("the target answered {}{note}", name(code));
            let excerpt = Some(message).filter(|message| !message.is_empty());
            let failure = Some(TransportFailure::new(TransportFailureKind::Grpc(code), text));
            Exchange { grpc_code: Some(code), excerpt, retry_after, no_retry, failure, ..exchange }
        }
    }
}

/// The gRPC code and its message, or why there is none.
fn read_status(http: StatusCode, last: &HeaderMap, end: &ReadEnd) -> Result<(u16, String), TransportFailure> {
    if let Some(status) = last.get(STATUS) {
        let code = status.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
        let message =
            last.get(MESSAGE).map(|message| percent_decode(message.as_bytes()).collect::<Vec<u8>>());
        return Ok((code, sanitise(&message.unwrap_or_default())));
    }
    match end {
        ReadEnd::Broken(error) if http == StatusCode::OK => {
            let message = format!("the answer ended before its grpc-status: {}", explain(error));
            Err(TransportFailure::new(TransportFailureKind::Connection, message))
        }
        ReadEnd::Cut => {
            Ok((RESOURCE_EXHAUSTED, format!("the answer is larger than {GRPC_ANSWER_BYTES_MAX} bytes")))
        }
        ReadEnd::Whole | ReadEnd::Broken(_) => {
            Ok((code_of(http), format!("HTTP status {http} without a grpc-status")))
        }
    }
}

/// The gRPC code for an HTTP status of a proxy that answered instead of the server, as the gRPC specification maps it.
fn code_of(http: StatusCode) -> u16 {
    match http.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => UNKNOWN,
    }
}

/// The pause that the target asks for, and whether it forbids retries: a negative or unreadable value does.
fn pushback(value: Option<&HeaderValue>) -> (Option<Duration>, bool) {
    let Some(value) = value else { return (None, false) };
    let ms =
        value.to_str().ok().and_then(|value| value.parse::<i64>().ok()).and_then(|ms| u64::try_from(ms).ok());
    (ms.map(|ms| Duration::from_millis(ms).min(HORIZON)), ms.is_none())
}

/// The value of grpc-timeout: at most eight digits and a unit. Rounded down, but not to zero, so that the target's limit ends before
/// the caller's.
fn timeout_text(timeout: Duration) -> String {
    let ms = timeout.as_millis().max(1);
    if ms < 100_000_000 { format!("{ms}m") } else { format!("{}S", timeout.as_secs().min(99_999_999)) }
}

/// The name of a gRPC code, such as `UNAVAILABLE`.
pub fn name(code: u16) -> String {
    NAMES.get(usize::from(code)).map_or_else(|| format!("gRPC code {code}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_fit_eight_digits() {
        for (timeout, text) in [
            (Duration::ZERO, "1m"),
            (Duration::from_micros(1500), "1m"),
            (Duration::from_secs(30), "30000m"),
            (Duration::from_millis(99_999_999), "99999999m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(timeout_text(timeout), text);
        }
    }

    #[test]
    fn pushback_is_a_wait_or_forbids_retries() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (value, expected) in [
            (None, (None, false)),
            (Some("0"), (ms(0), false)),
            (Some("1500"), (ms(1500), false)),
            (Some("9223372036854775807"), (Some(HORIZON), false)),
            (Some("-1"), (None, true)),
            (Some("soon"), (None, true)),
            (Some(""), (None, true)),
            (Some("99999999999999999999"), (None, true)),
        ] {
            let header = value.map(|value| HeaderValue::from_str(value).unwrap());
            assert_eq!(pushback(header.as_ref()), expected, "{value:?}");
        }
    }

    #[test]
    fn a_missing_status_is_read_from_http() {
        for (http, code) in [
            (200, 2),
            (400, 13),
            (401, 16),
            (403, 7),
            (404, 12),
            (429, 14),
            (502, 14),
            (503, 14),
            (504, 14),
            (500, 2),
        ] {
            let http = StatusCode::from_u16(http).unwrap();
            assert_eq!(read_status(http, &HeaderMap::new(), &ReadEnd::Whole).unwrap().0, code, "{http}");
        }
    }

    #[test]
    fn a_message_is_decoded_and_sanitised() {
        let mut headers = HeaderMap::new();
        headers.insert(STATUS, HeaderValue::from_static("5"));
        headers.insert(MESSAGE, HeaderValue::from_static("no %E2%98%83 %1b[31m %zz"));
        let (code, message) = read_status(StatusCode::OK, &headers, &ReadEnd::Whole).unwrap();
        assert_eq!((code, message.as_str()), (5, "no ☃ \u{fffd}[31m %zz"));
        headers.insert(STATUS, HeaderValue::from_static("many"));
        assert_eq!(read_status(StatusCode::OK, &headers, &ReadEnd::Whole).unwrap().0, UNKNOWN);
    }
}
