//! Answers the requests of one connection: checks the host, names the peer, and puts limits around both bodies.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Method, Request, Response, Version};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use tower_service::Service as _;

use super::activity::Activity;
use super::admission::Pool;
use super::host::check_host;
use super::limits::ListenLimits;
use super::response::ResponseBody;
use crate::error::{Answer, Code, Problem};
use crate::peer::Peer;
use crate::request_body::{BufferBudget, RequestBody};

/// What is answered on a reserved connection.
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
    /// Answers one request. It is in flight until the body of the response has ended.
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
                // A route that passes its body on says so here.
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
        let looks = matches!(*request.method(), Method::GET | Method::HEAD);
        match self.pool {
            Pool::Regular => Ok(()),
            Pool::Reserved if looks && RESERVED_PATHS.contains(&request.uri().path()) => Ok(()),
            Pool::Reserved => Err(Problem::new(
                Code::Unavailable,
                "the service, or your address, has as many connections as it may; close some, or try again in a second",
            )),
        }
    }
}
