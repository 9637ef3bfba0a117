//! Signing in with an API key, and signing out.

use askama::Template;
use axum::Extension;
use axum::extract::FromRequest as _;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use redrive_wire::Peer;
use redrive_wire::session::OpenedSession;

use super::Answer;
use crate::api::ApiRoutes;
use crate::form::{FormFields, VerifiedForm};
use crate::layout::{Layout, render, render_with};
use crate::session::{self, FormSeed, form_token, is_https};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct Page {
    layout: Layout,
    next: String,
    rejected: Option<&'static str>,
}

/// `GET /console/sign-in`.
pub(super) async fn show(headers: HeaderMap, Extension(seed): Extension<FormSeed>, uri: Uri) -> Answer {
    let query = FormFields::parse(uri.query().unwrap_or_default().as_bytes());
    let mut layout = layout(&headers, &seed);
    layout.notice = super::notice::of(&query);
    render(&Page { layout, next: local_path(query.get("next")).to_owned(), rejected: None })
}

/// `POST /console/sign-in`.
pub(super) async fn sign_in(
    State(api): State<ApiRoutes>,
    Extension(seed): Extension<FormSeed>,
    request: Request,
) -> Answer {
    let (secure, headers) = (is_https(&request), request.headers().clone());
    let peer = request.extensions().get::<Peer>().copied();
    let VerifiedForm(fields) = VerifiedForm::from_request(request, &()).await?;
    let next = local_path(fields.get("next")).to_owned();
    let key = fields.get("key").unwrap_or_default();
    let client = api.client(&headers, peer.as_ref(), Some(key));
    match client.post::<OpenedSession>("/sessions", &()).await {
        Ok(opened) => {
            let mut response = Redirect::to(&next).into_response();
            response
                .headers_mut()
                .append(header::SET_COOKIE, session::set_session_cookie(opened.token, secure));
            response.headers_mut().append(header::SET_COOKIE, session::remove_old_key_cookie());
            Ok(response)
        }
        Err(error) if error.needs_key() => {
            let rejected = Some("This API key is unknown or was revoked.");
            let page = Page { layout: layout(&headers, &seed), next, rejected };
            Ok(render_with(StatusCode::UNAUTHORIZED, &page))
        }
        Err(error) => Err(error),
    }
}

/// `POST /console/sign-out`.
pub(super) async fn sign_out(
    State(api): State<ApiRoutes>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    _: VerifiedForm,
) -> Response {
    // The session may have ended already. The browser forgets it in any case.
    let peer = peer.map(|Extension(peer)| peer);
    let client = api.client(&headers, peer.as_ref(), session::session_token(&headers).as_deref());
    let _ = client.send(Method::DELETE, "/sessions/current").await;
    let mut response = Redirect::to("/console/sign-in?done=signed-out").into_response();
    response.headers_mut().append(header::SET_COOKIE, session::remove_session_cookie());
    response
}

fn layout(headers: &HeaderMap, seed: &FormSeed) -> Layout {
    let mut layout = Layout::anonymous("Sign in".to_owned());
    layout.token = form_token(session::session_token(headers).as_deref(), seed);
    layout
}

/// Returns a path of this service, and `/` for the address of another site.
fn local_path(next: Option<&str>) -> &str {
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
    fn the_next_page_is_on_this_site() {
        for (next, path) in [
            ("/console/jobs?a=b", "/console/jobs?a=b"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\t/evil.example", "/"),
            ("", "/"),
        ] {
            assert_eq!(local_path(Some(next)), path);
        }
    }
}
