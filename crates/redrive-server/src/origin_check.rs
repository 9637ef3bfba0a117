//! Protects a service without keys: rejects requests that a page of another site made a browser send, and requests that a proxy
//! forwarded.
//!
//! Such a service accepts every call that reaches it, and every page in a browser on the same machine can reach it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::auth::has_key;
use crate::error::{Answer, Problem};
use crate::openapi::PUBLIC;
use redrive_wire::Code;
use redrive_wire::headers::FORWARDING_HEADERS;

/// Accepts a request with a key, or one that was sent from this machine and that no other site can have caused.
pub(crate) async fn reject_foreign(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    // A browser never adds these headers to a request to another site. Public paths need no protection.
    if has_key(request.headers()) || PUBLIC.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let checked = match api.keyring.is_open().await {
        Ok(true) => check(request.method(), request.uri(), request.headers()),
        Ok(false) => Ok(()),
        Err(error) => Err(error.into()),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer<()> {
    let host = host(uri, headers);
    if !host.as_deref().is_some_and(is_local) {
        let detail = "this service has no API keys, so it answers only requests for a loopback host: call it at 127.0.0.1 or localhost, or create an admin key";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if let Some(name) = FORWARDING_HEADERS.into_iter().find(|name| headers.contains_key(*name)) {
        let detail = format!(
            "a proxy forwarded this request (header {name}), and this service has no API keys: create an admin key with `redrive key create --name NAME --scope admin` and send it"
        );
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if method.is_safe() {
        return Ok(());
    }
    let site = text(headers, "sec-fetch-site");
    let origin = text(headers, header::ORIGIN.as_str());
    let is_same_origin = match origin {
        None => true,
        Some(origin) => {
            origin.split_once("://").map(|(_, origin)| origin) == authority(uri, headers).as_deref()
        }
    };
    if matches!(site, Some("cross-site" | "same-site")) || !is_same_origin {
        let detail = "a page of another site sent this request, and this service has no API keys: create a key with POST /v1/keys and send it";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // A value that is not text matches no allowed value.
    headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"))
}

/// The host that the request names, with the port if there is one.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let stated = uri.authority().map(|authority| authority.as_str().to_owned());
    stated.or_else(|| text(headers, header::HOST.as_str()).map(str::to_owned))
}

/// The host that the request names, without the port.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let authority = authority(uri, headers)?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host),
    };
    Some(host.to_owned())
}

/// Whether a host is always this machine, so that no name server can point it elsewhere.
fn is_local(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_localhost = name == "localhost" || name.ends_with(".localhost");
    is_localhost || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rejected(method: &str, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        check(&method.parse().unwrap(), &Uri::from_static("/jobs"), &map).is_err()
    }

    #[test]
    fn requests_that_another_site_could_have_caused_are_rejected() {
        let local = ("host", "127.0.0.1:7373");
        for (method, headers, expected) in [
            ("GET", &[][..], true),
            ("GET", &[("host", "")], true),
            ("GET", &[("host", "localhost:7373")], false),
            ("GET", &[("host", "LOCALHOST.")], false),
            ("GET", &[("host", "[::1]:7373")], false),
            ("GET", &[("host", "127.8.8.8")], false),
            ("GET", &[("host", "console.localhost:7373")], false),
            ("GET", &[("host", "evil.example:7373")], true),
            ("GET", &[("host", "localhost.evil.example")], true),
            ("GET", &[("host", "10.0.0.1")], true),
            ("GET", &[local, ("sec-fetch-site", "cross-site")], false),
            ("GET", &[local, ("origin", "https://evil.example")], false),
            ("POST", &[local], false),
            ("POST", &[local, ("sec-fetch-site", "none")], false),
            ("POST", &[local, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:7373")], false),
            ("POST", &[local, ("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:80")], true),
            ("POST", &[local, ("sec-fetch-site", "cross-site")], true),
            ("POST", &[local, ("origin", "https://evil.example")], true),
            ("DELETE", &[local, ("origin", "null")], true),
            ("PUT", &[local, ("origin", "http://127.0.0.1:8080")], true),
            ("POST", &[("host", "evil.example")], true),
            ("GET", &[local, ("x-forwarded-for", "203.0.113.7")], true),
            ("GET", &[("host", "localhost"), ("forwarded", "for=203.0.113.7")], true),
        ] {
            assert_eq!(is_rejected(method, headers), expected, "{method} {headers:?}");
        }
    }

    #[test]
    fn a_forwarded_request_is_rejected_by_any_header_of_a_proxy() {
        for name in FORWARDING_HEADERS {
            assert!(is_rejected("GET", &[("host", "localhost"), (name, "x")]), "{name}");
        }
    }
}
