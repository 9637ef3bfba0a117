//! Calls the API's routes in this process, with the credentials of the visitor and no more.

use std::future::Future;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use redrive_server::Peer;
use redrive_server::origin_check::FORWARDING_HEADERS;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt as _;

use crate::trouble::{Trouble, said};

/// What a segment of a path may hold as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What of the visitor's request is handed on, beside what a proxy added: it says where the request came from, and the API
/// judges by it too.
const HANDED_ON: [&str; 3] = ["host", "origin", "sec-fetch-site"];

/// The API's routes.
#[derive(Clone)]
pub(crate) struct Api(Router);

/// The API's routes as one visitor may call them.
#[derive(Clone)]
pub(crate) struct Caller {
    routes: Router,
    headers: HeaderMap,
    peer: Option<Peer>,
}

impl Api {
    pub(crate) fn new(routes: Router) -> Self {
        Self(routes)
    }

    /// For whoever sent `request` from `peer`, with a session or a key if they have one.
    pub(crate) fn caller(
        &self,
        request: &HeaderMap,
        peer: Option<&Peer>,
        credential: Option<&str>,
    ) -> Caller {
        let mut headers = HeaderMap::new();
        for name in HANDED_ON.into_iter().chain(FORWARDING_HEADERS) {
            if let Some(value) = request.get(name) {
                headers.insert(name, value.clone());
            }
        }
        let bearer = credential.and_then(|text| HeaderValue::try_from(format!("Bearer {text}")).ok());
        if let Some(mut bearer) = bearer {
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        Caller { routes: self.0.clone(), headers, peer: peer.copied() }
    }
}

impl Caller {
    /// What a path shows.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<T, Trouble>> + Send + use<T> {
        let answer = self.call(Method::GET, path, Bytes::new());
        async move { read(&answer.await?) }
    }

    /// What a path answers to JSON.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Trouble> {
        read(&self.call(Method::POST, path, write(body)?).await?)
    }

    /// Asks for something to be done; what it says beside is left alone.
    pub(crate) async fn send(&self, method: Method, path: &str) -> Result<(), Trouble> {
        self.call(method, path, Bytes::new()).await.map(drop)
    }

    /// Like [`Caller::send`], with JSON.
    pub(crate) async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(), Trouble> {
        self.call(method, path, write(body)?).await.map(drop)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> impl Future<Output = Result<Bytes, Trouble>> + Send + use<> {
        let routes = self.routes.clone();
        let request = self.request(method, path, body);
        async move {
            let answer = match routes.oneshot(request?).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(|error| Trouble::unreadable(&error))?;
            let body = body.to_bytes();
            if status.is_success() { Ok(body) } else { Err(said(&body)) }
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Body>, Trouble> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(extensions) = request.extensions_mut()
            && let Some(peer) = self.peer
        {
            extensions.insert(peer);
        }
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        request.body(Body::from(body)).map_err(|error| Trouble::unreadable(&error))
    }
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// A path with a query; what is empty is left out.
pub(crate) fn query<'a, 'b>(path: &str, pairs: impl IntoIterator<Item = (&'a str, &'b str)>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.into_iter().filter(|(_, value)| !value.is_empty()));
    match query.finish() {
        text if text.is_empty() => path.to_owned(),
        text => format!("{path}?{text}"),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Trouble> {
    serde_json::from_slice(body).map_err(|error| Trouble::unreadable(&error))
}

fn write(body: &impl Serialize) -> Result<Bytes, Trouble> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Trouble::unreadable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_segment_and_values_their_parameter() {
        assert_eq!(segment("a/../b?c#d%"), "a%2F..%2Fb%3Fc%23d%25");
        assert_eq!(query("/jobs", [("text", "a&b=c d"), ("kind", "")]), "/jobs?text=a%26b%3Dc+d");
        assert_eq!(query("/jobs", [("kind", "")]), "/jobs");
    }
}
