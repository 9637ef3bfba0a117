//! Calls the API within this process, with the credentials of the user.

use std::future::Future;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use redrive_wire::Peer;
use redrive_wire::headers::FORWARDING_HEADERS;
use redrive_wire::page::Paged;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt as _;

use crate::error::{PageError, api_error};

/// The prefix of every path of the API.
pub(crate) const PREFIX: &str = "/v1";
/// The largest page of a list.
const PAGE_LIMIT: &str = "1000";
/// The characters that are not escaped in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Headers of the browser that are forwarded to the API, besides those of proxies. The API checks the origin of a request.
const FORWARDED: [&str; 3] = ["host", "origin", "sec-fetch-site"];

/// The routes of the API.
#[derive(Clone)]
pub(crate) struct ApiRoutes(Router);

/// The API with the credentials of one user.
#[derive(Clone)]
pub(crate) struct ApiClient {
    routes: Router,
    headers: HeaderMap,
    peer: Option<Peer>,
}

impl ApiRoutes {
    pub(crate) fn new(routes: Router) -> Self {
        Self(routes)
    }

    /// Returns a client for the sender of `request` from `peer`, with a session token or an API key.
    pub(crate) fn client(
        &self,
        request: &HeaderMap,
        peer: Option<&Peer>,
        credential: Option<&str>,
    ) -> ApiClient {
        let mut headers = HeaderMap::new();
        for name in FORWARDED.into_iter().chain(FORWARDING_HEADERS) {
            if let Some(value) = request.get(name) {
                headers.insert(name, value.clone());
            }
        }
        let bearer = credential.and_then(|text| HeaderValue::try_from(format!("Bearer {text}")).ok());
        if let Some(mut bearer) = bearer {
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        ApiClient { routes: self.0.clone(), headers, peer: peer.copied() }
    }
}

impl ApiClient {
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<T, PageError>> + Send + use<T> {
        let answer = self.call(Method::GET, path, Bytes::new());
        async move { read(&answer.await?) }
    }

    /// Reads every page of a list.
    pub(crate) fn get_all<P: DeserializeOwned + Paged + Send>(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<P, PageError>> + Send + use<P> {
        let (client, path) = (self.clone(), path.to_owned());
        async move {
            let mut whole: P = client.get(&page_path(&path, None)).await?;
            while let Some(cursor) = whole.next_cursor() {
                let next = client.get(&page_path(&path, Some(cursor))).await?;
                whole.append(next);
            }
            Ok(whole)
        }
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, PageError> {
        read(&self.call(Method::POST, path, write(body)?).await?)
    }

    /// Sends a request without a body, and ignores the document in the answer.
    pub(crate) async fn send(&self, method: Method, path: &str) -> Result<(), PageError> {
        self.call(method, path, Bytes::new()).await.map(drop)
    }

    /// Sends JSON, and ignores the document in the answer.
    pub(crate) async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(), PageError> {
        self.call(method, path, write(body)?).await.map(drop)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> impl Future<Output = Result<Bytes, PageError>> + Send + use<> {
        let routes = self.routes.clone();
        let request = self.request(method, path, body);
        async move {
            let answer = match routes.oneshot(request?).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            let status = answer.status();
            let body =
                answer.into_body().collect().await.map_err(|error| PageError::unreadable_answer(&error))?;
            let body = body.to_bytes();
            if status.is_success() { Ok(body) } else { Err(api_error(&body)) }
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Body>, PageError> {
        let mut request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
        if let Some(extensions) = request.extensions_mut()
            && let Some(peer) = self.peer
        {
            extensions.insert(peer);
        }
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        request.body(Body::from(body)).map_err(|error| PageError::unreadable_answer(&error))
    }
}

/// The path of one page of a list. The path of the list may have a query.
fn page_path(list: &str, cursor: Option<&str>) -> String {
    let page = query("", [("limit", PAGE_LIMIT), ("cursor", cursor.unwrap_or_default())]);
    if list.contains('?') { format!("{list}{}", page.replacen('?', "&", 1)) } else { format!("{list}{page}") }
}

/// Escapes a name as one path segment.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// Adds query parameters to a path. Empty values are left out.
pub(crate) fn query<'a, 'b>(path: &str, pairs: impl IntoIterator<Item = (&'a str, &'b str)>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.into_iter().filter(|(_, value)| !value.is_empty()));
    match query.finish() {
        text if text.is_empty() => path.to_owned(),
        text => format!("{path}?{text}"),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, PageError> {
    serde_json::from_slice(body).map_err(|error| PageError::unreadable_answer(&error))
}

fn write(body: &impl Serialize) -> Result<Bytes, PageError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| PageError::unreadable_answer(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_escaped() {
        assert_eq!(segment("a/../b?c#d%"), "a%2F..%2Fb%3Fc%23d%25");
        assert_eq!(query("/jobs", [("text", "a&b=c d"), ("kind", "")]), "/jobs?text=a%26b%3Dc+d");
        assert_eq!(query("/jobs", [("kind", "")]), "/jobs");
        assert_eq!(page_path("/queues", None), "/queues?limit=1000");
        assert_eq!(page_path("/groups?kind=a", Some("b+")), "/groups?kind=a&limit=1000&cursor=b%2B");
    }
}
