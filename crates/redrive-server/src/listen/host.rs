//! Refuses a request that does not say clearly which host it is for.
//!
//! What protects an open service goes by the host. A proxy that reads the other one of two `Host` headers must not be
//! able to lead around it.

use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{Request, Version};

use crate::error::{Answer, Code, Problem};

/// Checks that there is one host: RFC 9112, section 3.2.
pub(super) fn check_host<B>(request: &Request<B>) -> Answer<()> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return refuse("the request has more than one Host header; send one");
    }
    let Some(host) = first else {
        return match request.version() {
            Version::HTTP_11 => refuse("an HTTP/1.1 request needs a Host header"),
            _ => Ok(()),
        };
    };
    let host = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
        return refuse("the Host header must hold a name or an address, and a port if need be");
    };
    match request.uri().authority() {
        Some(target) if !target.as_str().eq_ignore_ascii_case(host.as_str()) => {
            refuse("the Host header names another host than the request target")
        }
        Some(_) | None => Ok(()),
    }
}

fn refuse(detail: &str) -> Answer<()> {
    Err(Problem::new(Code::InvalidHost, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, target: &str, hosts: &[&str], is_fine: bool) {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let checked = check_host(&request.body(()).unwrap());
        assert_eq!(checked.is_ok(), is_fine, "{version:?} {target} {hosts:?}: {checked:?}");
    }

    #[test]
    fn a_request_names_one_host() {
        for (version, target, hosts, is_fine) in [
            (Version::HTTP_11, "/", &["localhost:7373"][..], true),
            (Version::HTTP_11, "/", &["[::1]:7373"], true),
            (Version::HTTP_11, "/", &[], false),
            (Version::HTTP_11, "/", &[""], false),
            (Version::HTTP_11, "/", &["a b"], false),
            (Version::HTTP_11, "/", &["user@localhost"], false),
            (Version::HTTP_11, "/", &["localhost", "localhost"], false),
            (Version::HTTP_11, "/", &["localhost", "evil.example"], false),
            (Version::HTTP_11, "http://a.example/", &["A.example"], true),
            (Version::HTTP_11, "http://a.example/", &["localhost"], false),
            (Version::HTTP_11, "http://a.example/", &[], false),
            (Version::HTTP_10, "/", &[], true),
            (Version::HTTP_10, "/", &["a", "b"], false),
            (Version::HTTP_2, "http://a.example/", &[], true),
            (Version::HTTP_2, "http://a.example/", &["b.example"], false),
            (Version::HTTP_2, "http://a.example/", &["a.example", "a.example"], false),
        ] {
            check(version, target, hosts, is_fine);
        }
    }
}
