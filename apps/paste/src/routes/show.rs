//! Shows a paste: as text, as JSON, as a page.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::json;

use super::create::AppState;
use super::page::{PageTemplate, notice_page, paste_page};
use crate::code::Code;
use crate::database::Paste;
use crate::escape;
use crate::objects::ObjectError;
use crate::read::ContentBytes;
use crate::site::Site;
use crate::wire::{ErrorResponse, timestamp_text};

/// `GET /raw/{code}`.
pub(super) async fn raw(
    State(app): State<Arc<AppState>>,
    Path(code): Path<String>,
    request_headers: HeaderMap,
) -> Result<Response, ErrorResponse> {
    let (_, paste) = app.site.find_ready(&code).await?;
    let mut headers = text_headers(&paste);
    // A blob never changes, so a client that has it only needs to know that the paste still exists.
    if request_headers.get(header::IF_NONE_MATCH) == headers.get(header::ETAG) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let content = read(&app.site, &code, &paste).await?;
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(paste.blob.size));
    let body = match content {
        ContentBytes::Whole(content) => Body::from(content),
        ContentBytes::Stream(chunks) => Body::from_stream(chunks),
    };
    Ok((headers, body).into_response())
}

/// `HEAD /raw/{code}`: whether the paste is ready, without reading its content.
pub(super) async fn status(
    State(app): State<Arc<AppState>>,
    Path(code): Path<String>,
) -> Result<Response, ErrorResponse> {
    let (_, paste) = app.site.find_ready(&code).await?;
    Ok(text_headers(&paste).into_response())
}

fn text_headers(paste: &Paste) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    let tag = format!("\"{}\"", paste.blob.id.simple());
    headers.extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
    headers
}

/// `GET /api/v1/pastes/{code}`.
pub(super) async fn json(
    State(app): State<Arc<AppState>>,
    Path(code): Path<String>,
) -> Result<Response, ErrorResponse> {
    let (code, paste) = app.site.find_ready(&code).await?;
    let content = read(&app.site, code.as_str(), &paste).await?;
    let data = json!({
        "shortCode": code.as_str(),
        "status": paste.status,
        "createdAt": timestamp_text(paste.created_at),
        "expiresAt": timestamp_text(paste.expires_at),
    });
    // The content is streamed as the last field, so the part before it has no closing brace.
    let mut before = format!("{{\"data\":{data}");
    before.truncate(before.len() - 1);
    before.push_str(",\"content\":\"");
    let body = surround(before.into(), content.map(escape::json), Bytes::from_static(b"\"},\"error\":null}"));
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// `GET /{code}`.
pub(super) async fn page(State(app): State<Arc<AppState>>, Path(code): Path<String>) -> Response {
    let found = async {
        let (code, paste) = app.site.find_ready(&code).await?;
        Ok((read(&app.site, code.as_str(), &paste).await?, code))
    };
    match found.await {
        Ok((content, code)) => paste_response(content, &code),
        Err(error) => notice_response(&error),
    }
}

fn paste_response(content: ContentBytes, code: &Code) -> Response {
    let PageTemplate { before, after } = paste_page();
    let before = before.replace("{{code}}", code.as_str());
    let body = surround(before.into(), content.map(escape::html), Bytes::from_static(after.as_bytes()));
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}

/// The page for an error.
fn notice_response(error: &ErrorResponse) -> Response {
    let PageTemplate { before, after } = notice_page();
    let page = [before, error.message(), after].concat();
    let html = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (error.status, error.headers(), html, page).into_response()
}

/// Reads the content. Returns 404 if the paste was removed during the read.
async fn read(site: &Site, code: &str, paste: &Paste) -> Result<ContentBytes, ErrorResponse> {
    match site.read(&paste.blob).await {
        Ok(content) => Ok(content),
        Err(unavailable) => {
            let (_, current) = site.find_ready(code).await?;
            if current.blob.id == paste.blob.id {
                Err(ErrorResponse::unavailable(unavailable.retry_after))
            } else {
                Err(ErrorResponse::not_found())
            }
        }
    }
}

fn surround(before: Bytes, content: BoxStream<'static, Result<Bytes, ObjectError>>, after: Bytes) -> Body {
    let [before, after] = [before, after].map(|bytes| stream::iter([Ok(bytes)]));
    Body::from_stream(before.chain(content).chain(after))
}
