//! Answers the requests of one connection. It checks the `Host` header, adds the peer, and limits both bodies.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONNECTION, HOST, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, Request, Response, Version};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use tower_service::Service as _;

use super::activity::Activity;
use super::admission::Pool;
use super::connection::ResponseBody;
use super::limits::ListenLimits;
use crate::error::{Answer, Problem};
use crate::request_body::{BufferBudget, RequestBody};
use redrive_wire::Code;
use redrive_wire::Peer;

/// The paths that a reserved connection answers.
const RESERVED_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Answers the requests of one connection.
#[derive(Clone)]
pub(super) struct Responder {
    pub(super) router: Router,
    pub(super) peer: Peer,
    pub(super) pool: Pool,
    pub(super) activity: Arc<Activity>,
    pub(super) limits: Arc<ListenLimits>,
    pub(super) budget: Arc<BufferBudget>,
}

impl Responder {
    /// Answers one request. The exchange lasts until the body of the response has ended.
    pub(super) async fn answer(
        mut self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let exchange = self.activity.begin();
        let version = request.version();
        let mut response = match self.check(&request) {
            Ok(()) => {
                let (parts, body) = request.into_parts();
                let (body, reservation) = RequestBody::guard(body, &self.limits, &self.budget);
                let mut request = Request::from_parts(parts, body);
                request.extensions_mut().insert(self.peer);
                // A route that streams its body lowers its reservation.
                request.extensions_mut().insert(reservation.clone());
                let response = self.router.call(request).await?;
                drop(reservation);
                response
            }
            Err(problem) => problem.into_response(),
        };
        if self.pool == Pool::Reserved && version <= Version::HTTP_11 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| ResponseBody::new(body, exchange)))
    }

    fn check(&self, request: &Request<Incoming>) -> Answer<()> {
        check_host(request)?;
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match self.pool {
            Pool::Regular => Ok(()),
            Pool::Reserved if is_read && RESERVED_PATHS.contains(&request.uri().path()) => Ok(()),
            Pool::Reserved => Err(Problem::new(
                Code::Unavailable,
                "the service has too many connections, in total or from your address; close some, or try again in a second",
            )),
        }
    }
}

/// Rejects a request that does not name exactly one host (RFC 9112, section 3.2).
///
/// The protection of a service without keys depends on the host. If a request had two `Host` headers, a proxy and this service could
/// each read a different one.
fn check_host<B>(request: &Request<B>) -> Answer<()> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return reject("the request has more than one Host header; send one");
    }
    let Some(host) = first else {
        return match request.version() {
            Version::HTTP_11 => reject("an HTTP/1.1 request needs a Host header"),
            _ => Ok(()),
        };
    };
    let host = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
        return reject("the Host header must be a host name or an address, with an optional port");
    };
    match request.uri().authority() {
        Some(target) if !target.as_str().eq_ignore_ascii_case(host.as_str()) => {
            reject("the Host header and the request target name different hosts")
        }
        Some(_) | None => Ok(()),
    }
}

fn reject(detail: &str) -> Answer<()> {
    Err(Problem::new(Code::InvalidHost, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, target: &str, hosts: &[&str], is_valid: bool) {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let checked = check_host(&request.body(()).unwrap());
        assert_eq!(checked.is_ok(), is_valid, "{version:?} {target} {hosts:?}: {checked:?}");
    }

    #[test]
    fn a_request_must_name_exactly_one_host() {
        for (version, target, hosts, is_valid) in [
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
            check(version, target, hosts, is_valid);
        }
    }
}
