//! Errors of pages: what a person reads, and what to do next.

use askama::Template;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use redrive_wire::ProblemDetails;

use crate::api::{ApiRoutes, query};
use crate::context::PageContext;
use crate::layout::{Layout, render_with};
use crate::session;

const TRY_AGAIN: &str = "Try again in a moment. It is safe to load this page again.";
const USE_LISTS: &str = "Search for it in the lists, or start at the overview.";
const FORBIDDEN: (&str, &str) = (
    "Your API key does not allow this",
    "Ask the operator of this service for a key with a wider scope, or for a key without a tenant.",
);

/// Why a page cannot be shown.
#[derive(Debug)]
pub(crate) enum PageError {
    /// An API key is needed, or the session is no longer valid. After signing in, the browser goes to `next`.
    SignIn { next: String },
    /// The browser did not send its cookie because the link is on another site. It sends the cookie after a reload.
    Reload { path: String },
    /// The API rejected the request.
    Api(Box<ProblemDetails>),
    /// The form is not from this console, or not for this browser.
    UntrustedForm(&'static str),
    /// The console has no such page.
    NotFound,
    /// The API key does not allow it.
    Forbidden(&'static str),
    /// A field has an invalid value.
    InvalidInput(String),
    /// The console cannot read an answer of the API.
    UnreadableAnswer,
}

/// Converts an error answer of the API.
pub(crate) fn api_error(body: &[u8]) -> PageError {
    match serde_json::from_slice::<ProblemDetails>(body) {
        Ok(problem) => PageError::Api(Box::new(problem)),
        Err(error) => PageError::unreadable_answer(&error),
    }
}

/// The detail of a problem, with the invalid field.
pub(crate) fn problem_text(problem: &ProblemDetails) -> String {
    match &problem.field {
        Some(field) => format!("{field}: {}", problem.detail),
        None => problem.detail.clone(),
    }
}

impl PageError {
    /// Logs the cause, which the page does not show.
    pub(crate) fn unreadable_answer(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "the console cannot read an answer of the API");
        Self::UnreadableAnswer
    }

    /// Whether the API needs a key.
    pub(crate) fn needs_key(&self) -> bool {
        matches!(self, Self::Api(problem) if problem.status == 401)
    }

    /// Whether the API has no such resource.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(problem) if problem.status == 404)
    }

    fn text(&self) -> ErrorText {
        match self {
            Self::Api(problem) => ErrorText::of_problem(problem),
            Self::UntrustedForm(why) => ErrorText::new(
                StatusCode::FORBIDDEN,
                "This form was not accepted",
                why,
                "Go back, load the page again and repeat the action.",
            ),
            Self::Forbidden(why) => ErrorText::new(StatusCode::FORBIDDEN, FORBIDDEN.0, why, FORBIDDEN.1),
            Self::NotFound => ErrorText::new(
                StatusCode::NOT_FOUND,
                "Page not found",
                "This console has no page at this address.",
                USE_LISTS,
            ),
            Self::InvalidInput(why) => ErrorText::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid input",
                why,
                "Go back, correct it and try again.",
            ),
            Self::UnreadableAnswer | Self::SignIn { .. } | Self::Reload { .. } => ErrorText::new(
                StatusCode::BAD_GATEWAY,
                "The service failed",
                "The console cannot read the answer of the service. See the log of the service.",
                TRY_AGAIN,
            ),
        }
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct Page<'a> {
    layout: Layout,
    text: &'a str,
    hint: &'static str,
}

#[derive(Template)]
#[template(path = "reload.html")]
struct ReloadPage<'a> {
    path: &'a str,
}

/// The text of an error page. The middleware reads it to render the page again with the layout of a signed-in user.
#[derive(Debug, Clone)]
struct ErrorText {
    status: StatusCode,
    title: &'static str,
    text: String,
    hint: &'static str,
}

impl ErrorText {
    fn new(status: StatusCode, title: &'static str, text: &str, hint: &'static str) -> Self {
        Self { status, title, text: text.to_owned(), hint }
    }

    fn of_problem(problem: &ProblemDetails) -> Self {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let (title, hint) = match problem.status {
            403 => FORBIDDEN,
            404 => ("Not found", USE_LISTS),
            409 | 412 => (
                "Not possible in the current state",
                "Go back and load the page again to see the current state.",
            ),
            400 | 422 => ("Invalid input", "Go back, correct the field that is named above, and try again."),
            408 | 429 => ("Try again later", "Wait a few seconds, then try again."),
            503 | 507 => (
                "The store does not answer",
                "Acknowledged tasks and jobs are not lost. Try again in a moment. If the error stays, check the store and the log of the service.",
            ),
            _ => ("The service failed", TRY_AGAIN),
        };
        Self::new(status, title, &problem_text(problem), hint)
    }

    fn render(&self, layout: Layout) -> Response {
        let mut response = render_with(self.status, &Page { layout, text: &self.text, hint: self.hint });
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        if let Self::SignIn { next } = &self {
            let page = query("/console/sign-in", [("next", next.as_str())]);
            let mut response = Redirect::to(&page).into_response();
            // Removes a session that is no longer valid; otherwise the next request fails in the same way.
            response.headers_mut().append(header::SET_COOKIE, session::remove_session_cookie());
            return response;
        }
        if let Self::Reload { path } = &self {
            return render_with(StatusCode::OK, &ReloadPage { path });
        }
        let text = self.text();
        let mut response = text.render(Layout::anonymous(text.title.to_owned()));
        response.extensions_mut().insert(text);
        response
    }
}

/// Renders an error page again with the layout of the signed-in user, who then keeps the menu and can sign out.
pub(crate) async fn add_layout(State(api): State<ApiRoutes>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut request_parts = parts.clone();
    let response = next.run(Request::from_parts(parts, body)).await;
    let Some(text) = response.extensions().get::<ErrorText>().cloned() else { return response };
    match PageContext::from_request_parts(&mut request_parts, &api).await {
        Ok(context) => {
            let layout = Layout { notice: None, ..context.layout(text.title, "") };
            text.render(layout)
        }
        Err(_) => response,
    }
}
