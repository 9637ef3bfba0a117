//! Shows a paste: as text, as JSON, as a page.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::json;

use super::create::Intake;
use super::page::{Frame, notice_page, paste_page};
use crate::code::Code;
use crate::database::Paste;
use crate::escape;
use crate::objects::ObjectError;
use crate::read::Readable;
use crate::site::Site;
use crate::wire::{Refusal, instant};

/// `GET /raw/{code}`.
pub(super) async fn raw(
    State(intake): State<Arc<Intake>>,
    Path(code): Path<String>,
    asked: HeaderMap,
) -> Result<Response, Refusal> {
    let (_, paste) = intake.site.ready(&code).await?;
    let mut headers = text_headers(&paste);
    // A blob never changes: whoever has it needs no more than to hear that the paste is still there.
    if asked.get(header::IF_NONE_MATCH) == headers.get(header::ETAG) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let content = read(&intake.site, &code, &paste).await?;
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(paste.blob.size));
    let body = match content {
        Readable::Whole(content) => Body::from(content),
        Readable::Stream(chunks) => Body::from_stream(chunks),
    };
    Ok((headers, body).into_response())
}

/// `HEAD /raw/{code}`: whether it is ready, without a look at the content.
pub(super) async fn status(
    State(intake): State<Arc<Intake>>,
    Path(code): Path<String>,
) -> Result<Response, Refusal> {
    let (_, paste) = intake.site.ready(&code).await?;
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
    State(intake): State<Arc<Intake>>,
    Path(code): Path<String>,
) -> Result<Response, Refusal> {
    let (code, paste) = intake.site.ready(&code).await?;
    let content = read(&intake.site, code.as_str(), &paste).await?;
    let data = json!({
        "shortCode": code.as_str(),
        "status": paste.status,
        "createdAt": instant(paste.created_at),
        "expiresAt": instant(paste.expires_at),
    });
    // The content comes last, and as it comes: what is before it ends without its brace.
    let mut before = format!("{{\"data\":{data}");
    before.truncate(before.len() - 1);
    before.push_str(",\"content\":\"");
    let body = around(before.into(), content.map(escape::json), Bytes::from_static(b"\"},\"error\":null}"));
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// `GET /{code}`.
pub(super) async fn page(State(intake): State<Arc<Intake>>, Path(code): Path<String>) -> Response {
    let shown = async {
        let (code, paste) = intake.site.ready(&code).await?;
        Ok((read(&intake.site, code.as_str(), &paste).await?, code))
    };
    match shown.await {
        Ok((content, code)) => paste_response(content, &code),
        Err(refusal) => notice_response(&refusal),
    }
}

fn paste_response(content: Readable, code: &Code) -> Response {
    let Frame { before, after } = paste_page();
    let before = before.replace("{{code}}", code.as_str());
    let body = around(before.into(), content.map(escape::html), Bytes::from_static(after.as_bytes()));
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}

/// The same page for everything that is not there.
fn notice_response(refusal: &Refusal) -> Response {
    let Frame { before, after } = notice_page();
    let page = [before, refusal.message(), after].concat();
    let html = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (refusal.status, refusal.headers(), html, page).into_response()
}

/// The content, or what to say instead. A paste that went while its object was looked for is one that is not there.
async fn read(site: &Site, code: &str, paste: &Paste) -> Result<Readable, Refusal> {
    match site.read(&paste.blob).await {
        Ok(content) => Ok(content),
        Err(not_now) => {
            let (_, now) = site.ready(code).await?;
            if now.blob.id == paste.blob.id {
                Err(Refusal::unavailable(not_now.retry_after))
            } else {
                Err(Refusal::not_found())
            }
        }
    }
}

fn around(before: Bytes, content: BoxStream<'static, Result<Bytes, ObjectError>>, after: Bytes) -> Body {
    let [before, after] = [before, after].map(|bytes| stream::iter([Ok(bytes)]));
    Body::from_stream(before.chain(content).chain(after))
}
