//! The pages and what they are made of.

use axum::http::header;
use axum::response::{Html, IntoResponse};

/// A page around what is shown in it.
pub(super) struct Frame {
    /// What comes before.
    pub(super) before: &'static str,
    /// What comes after.
    pub(super) after: &'static str,
}

/// The page that shows a paste.
pub(super) fn paste_page() -> Frame {
    split(include_str!("../../assets/paste.html"))
}

/// The page that says why there is none.
pub(super) fn notice_page() -> Frame {
    split(include_str!("../../assets/notice.html"))
}

fn split(page: &'static str) -> Frame {
    let (before, after) = page.split_once("{{content}}").unwrap_or((page, ""));
    Frame { before, after }
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
