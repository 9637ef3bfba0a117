//! The pages, with their style sheet and script.

use axum::http::header;
use axum::response::{Html, IntoResponse};

/// A page, split at the place of its content.
pub(super) struct PageTemplate {
    /// The part before the content.
    pub(super) before: &'static str,
    /// The part after the content.
    pub(super) after: &'static str,
}

/// The page that shows a paste.
pub(super) fn paste_page() -> PageTemplate {
    split(include_str!("../../assets/paste.html"))
}

/// The page that explains why a paste cannot be shown.
pub(super) fn notice_page() -> PageTemplate {
    split(include_str!("../../assets/notice.html"))
}

fn split(page: &'static str) -> PageTemplate {
    let (before, after) = page.split_once("{{content}}").unwrap_or((page, ""));
    PageTemplate { before, after }
}

/// `GET /`.
pub(super) async fn write() -> Html<&'static str> {
    Html(include_str!("../../assets/write.html"))
}

/// `GET /assets/site.css`.
pub(super) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("../../assets/site.css"))
}

/// `GET /assets/site.js`.
pub(super) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("../../assets/site.js"))
}
