//! What is around every page: its name, the way to the others, and who is looking.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::assets;
use crate::pages::notice::Notice;
use crate::trouble::Trouble;

/// What is around a page.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its name.
    pub(crate) title: String,
    /// Which entry of the menu it belongs to.
    pub(crate) page: &'static str,
    /// Who is looking, where that is known.
    pub(crate) who: Option<Who>,
    /// What forms on it must bring.
    pub(crate) token: String,
    /// What has just been done.
    pub(crate) notice: Option<Notice>,
}

/// Who is looking at a page.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) scope: &'static str,
    pub(crate) tenant: Option<String>,
    pub(crate) open: bool,
    pub(crate) node: String,
    pub(crate) version: String,
}

/// An entry of the menu.
pub(crate) struct Entry {
    pub(crate) page: &'static str,
    pub(crate) path: &'static str,
    pub(crate) name: &'static str,
    /// What leads there after `g` on the keyboard.
    pub(crate) key: char,
}

const MENU: [Entry; 11] = [
    Entry { page: "overview", path: "/", name: "Overview", key: 'h' },
    Entry { page: "tasks", path: "/console/tasks", name: "Tasks", key: 't' },
    Entry { page: "jobs", path: "/console/jobs", name: "Jobs", key: 'j' },
    Entry { page: "dead", path: "/console/dead", name: "Dead letters", key: 'd' },
    Entry { page: "operations", path: "/console/operations", name: "Operations", key: 'b' },
    Entry { page: "policies", path: "/console/policies", name: "Policies", key: 'p' },
    Entry { page: "origins", path: "/console/origins", name: "Origins", key: 'o' },
    Entry { page: "queues", path: "/console/queues", name: "Queues", key: 'q' },
    Entry { page: "schedules", path: "/console/schedules", name: "Schedules", key: 's' },
    Entry { page: "nodes", path: "/console/nodes", name: "Nodes", key: 'n' },
    Entry { page: "keys", path: "/console/keys", name: "Keys", key: 'k' },
];

impl Frame {
    /// Around a page for someone of whom nothing is known.
    pub(crate) fn bare(title: String) -> Self {
        Self { title, page: "", who: None, token: String::new(), notice: None }
    }

    /// The menu.
    pub(crate) fn menu(&self) -> &'static [Entry] {
        &MENU
    }

    /// Where the style sheet is.
    pub(crate) fn style(&self) -> &'static str {
        assets::STYLE.path()
    }

    /// Where the script is.
    pub(crate) fn script(&self) -> &'static str {
        assets::SCRIPT.path()
    }

    /// Where the icon is.
    pub(crate) fn icon(&self) -> &'static str {
        assets::ICON.path()
    }
}

/// A page as an answer.
pub(crate) fn render(page: &impl Template) -> Result<Response, Trouble> {
    Ok(render_with(StatusCode::OK, page))
}

/// A page as an answer with this status.
pub(crate) fn render_with(status: StatusCode, page: &impl Template) -> Response {
    const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
    match page.render() {
        Ok(html) => (status, [(header::CONTENT_TYPE, HTML)], html).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be written; the service's log has more")
                .into_response()
        }
    }
}
