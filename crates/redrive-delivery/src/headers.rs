//! Which headers a task may have. The rules prevent request smuggling and forged headers of redrive.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use redrive_core::Invalid;

use crate::target::Scheme;

/// The most headers of a task.
pub const HEADERS_ITEMS_MAX: usize = 64;
/// The most bytes of all names and values together.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// Headers that the connection or redrive sets. A task cannot set them.
pub const RESERVED_HEADERS: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "via",
];
/// Headers that start with one of these belong to the connection or to redrive too.
pub const RESERVED_PREFIXES: [&str; 2] = ["proxy-", "redrive-"];
const SIGNATURE_PREFIX: &str = "webhook-";

/// Checks the headers of a task for a target of this scheme. Names become lower case.
pub fn read(headers: &[(&str, &str)], scheme: Scheme) -> Result<HeaderMap, Invalid> {
    if headers.len() > HEADERS_ITEMS_MAX {
        return Err(problem(format!("must be at most {HEADERS_ITEMS_MAX}")));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        return Err(problem(format!(
            "must be at most {HEADERS_BYTES_MAX} bytes of names and values together"
        )));
    }
    let mut map = HeaderMap::with_capacity(headers.len() + 8);
    for (name, value) in headers {
        let name = read_name(name, scheme)?;
        let value = read_value(&name, value)?;
        check_grpc(&name, &value, scheme)?;
        map.append(name, value);
    }
    Ok(map)
}

/// Refuses the headers that a signature sets. A task with a signing secret must not have them.
pub(crate) fn refuse_signature_headers<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), Invalid> {
    let is_set_by_signature = |name: &&str| name.to_ascii_lowercase().starts_with(SIGNATURE_PREFIX);
    match names.find(is_set_by_signature) {
        Some(name) => Err(problem(format!("{name} is set by the signature: leave it out"))),
        None => Ok(()),
    }
}

fn read_name(name: &str, scheme: Scheme) -> Result<HeaderName, Invalid> {
    let shown = || name.escape_debug().to_string();
    let read = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| problem(format!("\"{}\" is not a header name", shown())))?;
    let lower = read.as_str();
    let reserved = RESERVED_HEADERS.contains(&lower)
        || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
        || (scheme.is_grpc() && lower.starts_with("grpc-"));
    if reserved {
        return Err(problem(format!("{} is set by redrive or by the connection: leave it out", shown())));
    }
    Ok(read)
}

fn read_value(name: &HeaderName, value: &str) -> Result<HeaderValue, Invalid> {
    if value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']) {
        return Err(problem(format!("the value of {name} must not begin or end with a space or tab")));
    }
    let visible = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    let read = HeaderValue::from_str(value).ok().filter(|_| value.bytes().all(visible));
    read.ok_or_else(|| {
        problem(format!(
            "the value of {name} must be visible ASCII: no line breaks or other control characters"
        ))
    })
}

fn check_grpc(name: &HeaderName, value: &HeaderValue, scheme: Scheme) -> Result<(), Invalid> {
    let text = value.as_bytes();
    let is_grpc = text == b"application/grpc" || text.starts_with(b"application/grpc+");
    if scheme.is_grpc() && name == http::header::CONTENT_TYPE && !is_grpc {
        return Err(problem("content-type must be application/grpc or application/grpc+… for a gRPC target"));
    }
    Ok(())
}

fn problem(text: impl Into<String>) -> Invalid {
    Invalid::new("headers", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, value: &str, scheme: Scheme) -> bool {
        match read(&[(name, value)], scheme) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.field, "headers");
                assert!(!error.problem.contains(['\r', '\n', '\0']), "{:?}", error.problem);
                true
            }
        }
    }

    #[test]
    fn headers_that_could_smuggle_a_request_are_refused() {
        for (name, value) in [
            ("X-A", "b\r\nHost: evil"),
            ("X-A", "b\nHost: evil"),
            ("X-A", "b\rHost: evil"),
            ("X-A", "b\0"),
            ("X-A", "b\u{7f}"),
            ("X-A", "b\u{1b}[31m"),
            ("X-A", "b\u{85}c"),
            ("X-A", "b\u{2028}c"),
            ("X-A", "naïve"),
            ("X-A", "嘊嘍Host: evil"),
            ("X-A", "\r\n"),
            ("X-A", "\r\n folded"),
            ("X-A", " padded"),
            ("X-A", "padded\t"),
            ("", "b"),
            ("X A", "b"),
            (" X-A", "b"),
            ("X-A ", "b"),
            ("X-A:", "b"),
            ("X-A\r\nHost", "b"),
            ("X-A\n", "b"),
            ("X\0A", "b"),
            ("X-Ä", "b"),
            (":authority", "evil"),
            (":path", "/evil"),
            ("(comment)", "b"),
            ("Host", "evil"),
            ("HOST", "evil"),
            ("hOsT", "evil"),
            ("Content-Length", "0"),
            ("Transfer-Encoding", "chunked"),
            ("transfer-encoding", "identity"),
            ("TE", "trailers"),
            ("Trailer", "X"),
            ("Trailers", "X"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
            ("Connection", "close"),
            ("Connection", "X-A"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic x"),
            ("proxy-authenticate", "x"),
            ("Expect", "100-continue"),
            ("Via", "1.1 x"),
            ("Idempotency-Key", "mine"),
            ("IDEMPOTENCY-KEY", "mine"),
            ("Redrive-Attempt", "1"),
            ("redrive-task-id", "x"),
            ("Redrive-Anything", "x"),
        ] {
            for scheme in [Scheme::Http, Scheme::Https, Scheme::Grpc, Scheme::Grpcs] {
                assert!(refused(name, value, scheme), "{name:?}: {value:?}");
            }
        }
    }

    #[test]
    fn ordinary_headers_are_accepted() {
        for (name, value) in [
            ("Content-Type", "application/json"),
            ("Authorization", "Bearer a.b.c"),
            ("X-Empty", ""),
            ("X-Quoted", "\"a, b\"; c=\td"),
            ("Accept", "*/*"),
            ("Cookie", "a=b"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("grpc-anything", "over http"),
            ("Redrive", "without a dash"),
        ] {
            assert!(!refused(name, value, Scheme::Https), "{name}: {value}");
        }
        let twice = [("X-A", "1"), ("x-a", "2")];
        assert_eq!(read(&twice, Scheme::Http).unwrap().get_all("x-a").iter().count(), 2);
    }

    #[test]
    fn headers_that_grpc_sets_are_refused() {
        for (name, value) in [
            ("grpc-timeout", "1S"),
            ("grpc-previous-rpc-attempts", "0"),
            ("Grpc-Encoding", "gzip"),
            ("grpc-status", "0"),
            ("content-type", "application/json"),
            ("content-type", "application/grpcx"),
        ] {
            assert!(refused(name, value, Scheme::Grpc), "{name}: {value}");
        }
        assert!(!refused("content-type", "application/grpc+proto", Scheme::Grpc));
        assert!(!refused("X-Token-Bin", "AAEC", Scheme::Grpcs));
    }

    #[test]
    fn the_number_and_size_of_headers_are_limited() {
        let fits = |count: usize, value: &str| {
            let names: Vec<String> = (0..count).map(|at| format!("x-{at:04}")).collect();
            let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value)).collect();
            read(&headers, Scheme::Http).is_ok()
        };
        assert!(fits(HEADERS_ITEMS_MAX, "v"));
        assert!(!fits(HEADERS_ITEMS_MAX + 1, "v"));
        assert!(fits(1, &"v".repeat(HEADERS_BYTES_MAX - 6)));
        assert!(!fits(1, &"v".repeat(HEADERS_BYTES_MAX - 5)));
    }
}
