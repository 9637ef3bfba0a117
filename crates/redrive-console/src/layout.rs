//! The layout around every page: title, menu, and the signed-in user.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::assets;
use crate::error::PageError;
use crate::pages::notice::Notice;

/// The layout around a page.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The title of the page.
    pub(crate) title: String,
    /// The current entry of the menu.
    pub(crate) page: &'static str,
    /// The signed-in user.
    pub(crate) identity: Option<Identity>,
    /// The token that forms must contain.
    pub(crate) token: String,
    /// The result of the last action.
    pub(crate) notice: Option<Notice>,
}

/// The signed-in user, and the node that answered.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) scope: &'static str,
    pub(crate) tenant: Option<String>,
    pub(crate) open: bool,
    pub(crate) node: String,
    pub(crate) version: String,
}

/// An entry of the menu.
pub(crate) struct MenuEntry {
    pub(crate) page: &'static str,
    pub(crate) path: &'static str,
    pub(crate) name: &'static str,
    /// The key that opens the page after `g`.
    pub(crate) key: char,
}

const MENU: [MenuEntry; 11] = [
    MenuEntry { page: "overview", path: "/", name: "Overview", key: 'h' },
    MenuEntry { page: "tasks", path: "/console/tasks", name: "Tasks", key: 't' },
    MenuEntry { page: "jobs", path: "/console/jobs", name: "Jobs", key: 'j' },
    MenuEntry { page: "dead", path: "/console/dead", name: "Dead letters", key: 'd' },
    MenuEntry { page: "operations", path: "/console/operations", name: "Operations", key: 'b' },
    MenuEntry { page: "policies", path: "/console/policies", name: "Policies", key: 'p' },
    MenuEntry { page: "origins", path: "/console/origins", name: "Origins", key: 'o' },
    MenuEntry { page: "queues", path: "/console/queues", name: "Queues", key: 'q' },
    MenuEntry { page: "schedules", path: "/console/schedules", name: "Schedules", key: 's' },
    MenuEntry { page: "nodes", path: "/console/nodes", name: "Nodes", key: 'n' },
    MenuEntry { page: "keys", path: "/console/keys", name: "Keys", key: 'k' },
];

impl Layout {
    /// The layout for a user who is not signed in.
    pub(crate) fn anonymous(title: String) -> Self {
        Self { title, page: "", identity: None, token: String::new(), notice: None }
    }

    pub(crate) fn menu(&self) -> &'static [MenuEntry] {
        &MENU
    }

    pub(crate) fn style(&self) -> &'static str {
        assets::STYLE.path()
    }

    pub(crate) fn script(&self) -> &'static str {
        assets::SCRIPT.path()
    }

    pub(crate) fn icon(&self) -> &'static str {
        assets::ICON.path()
    }
}

/// Renders a page.
pub(crate) fn render(page: &impl Template) -> Result<Response, PageError> {
    Ok(render_with(StatusCode::OK, page))
}

/// Renders a page with this status.
pub(crate) fn render_with(status: StatusCode, page: &impl Template) -> Response {
    const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
    match page.render() {
        Ok(html) => (status, [(header::CONTENT_TYPE, HTML)], html).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            (StatusCode::INTERNAL_SERVER_ERROR, "cannot render the page: see the log of the service")
                .into_response()
        }
    }
}
