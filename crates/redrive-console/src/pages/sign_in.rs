//! Signing in with an API key, and out again.

use askama::Template;
use axum::Extension;
use axum::extract::FromRequest as _;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use redrive_server::Peer;
use redrive_server::wire::session::OpenedSession;

use super::Answer;
use crate::api::Api;
use crate::form::{Fields, Posted};
use crate::frame::{Frame, render, render_with};
use crate::session::{self, Seed, came_by_https, form_token};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct Page {
    frame: Frame,
    next: String,
    refused: Option<String>,
}

/// `GET /console/sign-in`.
pub(super) async fn show(headers: HeaderMap, Extension(seed): Extension<Seed>, uri: Uri) -> Answer {
    let query = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let mut frame = frame(&headers, &seed);
    frame.notice = super::notice::of(&query);
    render(&Page { frame, next: inside(query.get("next")).to_owned(), refused: None })
}

/// `POST /console/sign-in`.
pub(super) async fn enter(
    State(api): State<Api>,
    Extension(seed): Extension<Seed>,
    request: Request,
) -> Answer {
    let (secure, headers) = (came_by_https(&request), request.headers().clone());
    let peer = request.extensions().get::<Peer>().copied();
    let Posted(fields) = Posted::from_request(request, &()).await?;
    let next = inside(fields.get("next")).to_owned();
    let key = fields.get("key").unwrap_or_default();
    let caller = api.caller(&headers, peer.as_ref(), Some(key));
    match caller.post::<OpenedSession>("/sessions", &()).await {
        Ok(opened) => {
            let mut response = Redirect::to(&next).into_response();
            response.headers_mut().append(header::SET_COOKIE, session::remembered(&opened.token, secure));
            response.headers_mut().append(header::SET_COOKIE, session::forgotten_key());
            Ok(response)
        }
        Err(trouble) if trouble.wants_key() => {
            let refused = Some("This API key is not known, or was revoked.".to_owned());
            let page = Page { frame: frame(&headers, &seed), next, refused };
            Ok(render_with(StatusCode::UNAUTHORIZED, &page))
        }
        Err(trouble) => Err(trouble),
    }
}

/// `POST /console/sign-out`.
pub(super) async fn leave(
    State(api): State<Api>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    _: Posted,
) -> Response {
    // One that has ended by itself is as good: the browser forgets it in any case.
    let peer = peer.map(|Extension(peer)| peer);
    let caller = api.caller(&headers, peer.as_ref(), session::token(&headers));
    let _ = caller.send(Method::DELETE, "/sessions/current").await;
    let mut response = Redirect::to("/console/sign-in?done=signed-out").into_response();
    response.headers_mut().append(header::SET_COOKIE, session::forgotten());
    response
}

fn frame(headers: &HeaderMap, seed: &Seed) -> Frame {
    let mut frame = Frame::bare("Sign in".to_owned());
    frame.token = form_token(session::token(headers), seed);
    frame
}

/// A path of this service; anything else would lead away.
fn inside(next: Option<&str>) -> &str {
    let is_path = |path: &&str| {
        path.starts_with('/')
            && !path[1..].starts_with(['/', '\\'])
            && !path.contains(|character: char| character.is_control())
    };
    next.filter(is_path).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_led_away() {
        for (next, path) in [
            ("/console/jobs?a=b", "/console/jobs?a=b"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\t/evil.example", "/"),
            ("", "/"),
        ] {
            assert_eq!(inside(Some(next)), path);
        }
    }
}
