//! Refuses what did not come from this machine's own user to a service that asks for no key: what a web page of another
//! site makes a browser send, and what a proxy passes on.
//!
//! Whoever reaches such a service may do everything, and a browser on the same machine reaches it for every page it shows.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::auth::has_key;
use crate::error::{Answer, Code, Problem};
use crate::openapi::PUBLIC;

/// Headers that a proxy adds to what it passes on. A request with one of them came from elsewhere, whatever its `Host` says.
pub const FORWARDING_HEADERS: [&str; 24] = [
    "cdn-loop",
    "cf-connecting-ip",
    "cf-ray",
    "client-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "forwarded-for",
    "true-client-ip",
    "via",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-original-forwarded-for",
    "x-real-ip",
];

/// Lets a request pass that has a key, or that came from this machine and that no other site can have sent.
pub(crate) async fn refuse_foreign(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    // A browser sends no such header by itself to another site. What everyone may know has nothing to protect.
    if has_key(request.headers()) || PUBLIC.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let foreign = match api.keyring.is_open().await {
        Ok(true) => check(request.method(), request.uri(), request.headers()),
        Ok(false) => Ok(()),
        Err(error) => Err(error.into()),
    };
    match foreign {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer<()> {
    let host = host(uri, headers);
    if !host.as_deref().is_some_and(is_local) {
        let detail = "this service needs no key, so it answers under a loopback name or address alone: call it at 127.0.0.1 or localhost, or create an admin key";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if let Some(name) = FORWARDING_HEADERS.into_iter().find(|name| headers.contains_key(*name)) {
        let detail = format!(
            "a proxy passed this on (header {name}), and this service needs no key: create an admin key with `redrive key create --name NAME --scope admin` and send it"
        );
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if method.is_safe() {
        return Ok(());
    }
    let site = text(headers, "sec-fetch-site");
    let origin = text(headers, header::ORIGIN.as_str());
    let same = match origin {
        None => true,
        Some(origin) => {
            origin.split_once("://").map(|(_, origin)| origin) == authority(uri, headers).as_deref()
        }
    };
    if matches!(site, Some("cross-site" | "same-site")) || !same {
        let detail = "a page of another site sent this, and this service needs no key: make a key with POST /keys and send it";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // What cannot be read is nothing that is allowed.
    headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"))
}

/// Where the request was sent to, with the port if there is one.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let stated = uri.authority().map(|authority| authority.as_str().to_owned());
    stated.or_else(|| text(headers, header::HOST.as_str()).map(str::to_owned))
}

/// The same without the port.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let authority = authority(uri, headers)?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host),
    };
    Some(host.to_owned())
}

/// Whether a name always leads to this machine, whatever a name server says.
fn is_local(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let named = name == "localhost" || name.ends_with(".localhost");
    named || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(method: &str, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        check(&method.parse().unwrap(), &Uri::from_static("/jobs"), &map).is_err()
    }

    #[test]
    fn what_another_site_could_have_sent_is_refused() {
        let local = ("host", "127.0.0.1:7373");
        for (method, headers, is_refused) in [
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
            assert_eq!(refused(method, headers), is_refused, "{method} {headers:?}");
        }
    }

    #[test]
    fn what_a_proxy_passed_on_is_refused_by_any_of_its_headers() {
        for name in FORWARDING_HEADERS {
            assert!(refused("GET", &[("host", "localhost"), (name, "x")]), "{name}");
        }
    }
}
