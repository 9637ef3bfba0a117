//! What may go wrong on the way to a page, in words and with a way out.

use askama::Template;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use redrive_server::error::ProblemDetails;

use crate::api::{Api, query};
use crate::frame::{Frame, render_with};
use crate::session;
use crate::visitor::Visitor;

const LATER: &str = "Try again in a moment; this page is safe to load again.";
const ELSEWHERE: &str = "Look for it in the lists, or begin at the overview.";
const NARROW: (&str, &str) = (
    "Your key does not show this",
    "What your key may see is at the other pages. For more, ask whoever runs this service for a key with a wider scope, or one that is not bound to a tenant.",
);

/// Why there is no page.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A key is needed, or the one that came is no longer known. Leads back to this path afterwards.
    SignIn { next: String },
    /// The browser kept the cookie to itself because another site led here; it sends it on the second try.
    Again { path: String },
    /// The API has refused, and says why.
    Said(Box<ProblemDetails>),
    /// A form came that this console did not make, or from somewhere else.
    Forged(&'static str),
    /// The console has no such page.
    NoPage,
    /// The visitor's key does not allow it.
    Refused(&'static str),
    /// Something asked for here makes no sense.
    Senseless(String),
    /// The console and the API do not understand each other.
    Unreadable,
}

/// The problem in an answer.
pub(crate) fn said(body: &[u8]) -> Trouble {
    match serde_json::from_slice::<ProblemDetails>(body) {
        Ok(problem) => Trouble::Said(Box::new(problem)),
        Err(error) => Trouble::unreadable(&error),
    }
}

/// A problem in one sentence, with the field it is about.
pub(crate) fn sentence(problem: &ProblemDetails) -> String {
    match &problem.field {
        Some(field) => format!("{field}: {}", problem.detail),
        None => problem.detail.clone(),
    }
}

impl Trouble {
    /// A failure that only the log can explain.
    pub(crate) fn unreadable(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "the console could not read an answer of the API");
        Self::Unreadable
    }

    /// Whether the API refused for want of a key.
    pub(crate) fn wants_key(&self) -> bool {
        matches!(self, Self::Said(said) if said.status == 401)
    }

    /// Whether there is nothing under that name.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Said(said) if said.status == 404)
    }

    /// What happened, for a page of its own.
    fn page(&self) -> Told {
        match self {
            Self::Said(said) => Told::of(said),
            Self::Forged(why) => Told::new(
                StatusCode::FORBIDDEN,
                "This form is not accepted",
                why,
                "Go back, load the page again and repeat what you did.",
            ),
            Self::Refused(why) => Told::new(StatusCode::FORBIDDEN, NARROW.0, why, NARROW.1),
            Self::NoPage => Told::new(
                StatusCode::NOT_FOUND,
                "There is no such page",
                "The address leads nowhere in this console.",
                ELSEWHERE,
            ),
            Self::Senseless(what) => Told::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "That cannot be done like this",
                what,
                "Go back, change it and try again.",
            ),
            Self::Unreadable | Self::SignIn { .. } | Self::Again { .. } => Told::new(
                StatusCode::BAD_GATEWAY,
                "The service failed",
                "The console could not make sense of the service's answer; the service's log has more.",
                LATER,
            ),
        }
    }
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct Page<'a> {
    frame: Frame,
    text: &'a str,
    hint: &'static str,
}

#[derive(Template)]
#[template(path = "again.html")]
struct Again<'a> {
    path: &'a str,
}

/// What a page about trouble says, for whoever writes it anew.
#[derive(Debug, Clone)]
struct Told {
    status: StatusCode,
    title: &'static str,
    text: String,
    hint: &'static str,
}

impl Told {
    fn new(status: StatusCode, title: &'static str, text: &str, hint: &'static str) -> Self {
        Self { status, title, text: text.to_owned(), hint }
    }

    /// What a problem of the API comes to, for people.
    fn of(said: &ProblemDetails) -> Self {
        let status = StatusCode::from_u16(said.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let (title, hint) = match said.status {
            403 => NARROW,
            404 => ("There is nothing here", ELSEWHERE),
            409 => {
                ("It has changed meanwhile", "Go back and look again: what you saw is no longer how it is.")
            }
            400 | 422 => {
                ("That cannot be done like this", "Go back, change what is named above, and try again.")
            }
            408 | 429 => ("Not now", "Wait a few seconds, then try again."),
            503 | 507 => (
                "The store does not answer",
                "Nothing that was acknowledged is lost. Try again in a moment; if it stays so, look at the store and at the service's log.",
            ),
            _ => ("The service failed", LATER),
        };
        Self::new(status, title, &sentence(said), hint)
    }

    fn page(&self, frame: Frame) -> Response {
        let mut response = render_with(self.status, &Page { frame, text: &self.text, hint: self.hint });
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        if let Self::SignIn { next } = &self {
            let page = query("/console/sign-in", [("next", next.as_str())]);
            let mut response = Redirect::to(&page).into_response();
            // A key that is no longer known would be refused again and again.
            response.headers_mut().append(header::SET_COOKIE, session::forgotten());
            return response;
        }
        if let Self::Again { path } = &self {
            return render_with(StatusCode::OK, &Again { path });
        }
        let told = self.page();
        let mut response = told.page(Frame::bare(told.title.to_owned()));
        response.extensions_mut().insert(told);
        response
    }
}

/// Puts a page about trouble into the frame of whoever looks at it, where they are known: with their name on it, and a
/// way to sign out.
pub(crate) async fn frame(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut asked = parts.clone();
    let response = next.run(Request::from_parts(parts, body)).await;
    let Some(told) = response.extensions().get::<Told>().cloned() else { return response };
    match Visitor::from_request_parts(&mut asked, &api).await {
        Ok(visitor) => {
            let frame = Frame { notice: None, ..visitor.frame(told.title, "") };
            told.page(frame)
        }
        Err(_) => response,
    }
}
