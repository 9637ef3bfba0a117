//! The context of a page: who requests it, what they may do, and the API on their behalf.

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use redrive_wire::Peer;
use redrive_wire::Scope;
use redrive_wire::me::Me;

use crate::api::{ApiClient, ApiRoutes};
use crate::error::PageError;
use crate::form::FormFields;
use crate::layout::{Identity, Layout};
use crate::session::{self, FormSeed, form_token};

/// A request for a page by a user whom the API knows.
pub(crate) struct PageContext {
    /// The API with the credentials of the user.
    pub(crate) api: ApiClient,
    /// The identity and permissions of the user.
    pub(crate) me: Me,
    /// The query parameters.
    pub(crate) query: FormFields,
    /// The path and query of the page.
    pub(crate) path: String,
    token: String,
}

impl PageContext {
    /// Whether the user may create, cancel, redrive and pause jobs.
    pub(crate) fn can_write(&self) -> bool {
        self.me.scope >= Scope::Write
    }

    /// Whether the user may start operations and create keys.
    pub(crate) fn is_admin(&self) -> bool {
        self.me.scope >= Scope::Admin
    }

    /// Whether the user may change policies, queues and schedules, which all tenants share.
    pub(crate) fn is_global_admin(&self) -> bool {
        self.is_admin() && self.me.tenant.is_none()
    }

    /// The layout around a page.
    pub(crate) fn layout(&self, title: impl Into<String>, page: &'static str) -> Layout {
        let identity = Identity {
            scope: self.me.scope.name(),
            tenant: self.me.tenant.clone(),
            open: self.me.open,
            node: self.me.node.clone(),
            version: self.me.version.clone(),
        };
        let notice = crate::pages::notice::of(&self.query);
        Layout { title: title.into(), page, identity: Some(identity), token: self.token.clone(), notice }
    }
}

impl FromRequestParts<ApiRoutes> for PageContext {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, api: &ApiRoutes) -> Result<Self, PageError> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let session = session::session_token(&parts.headers);
        let client = api.client(&parts.headers, parts.extensions.get::<Peer>(), session.as_deref());
        let me = client.get::<Me>("/me").await.map_err(|error| {
            if !error.needs_key() {
                return error;
            }
            if session.is_none() && is_cross_site(parts) {
                return PageError::Reload { path: path.clone() };
            }
            // A form cannot be repeated with a GET request.
            let next = if parts.method == Method::GET { path.clone() } else { "/".to_owned() };
            PageError::SignIn { next }
        })?;
        let missing =
            || PageError::UntrustedForm("The request has no cookie that binds the form to this browser.");
        let seed = parts.extensions.get::<FormSeed>().ok_or_else(missing)?;
        let query = FormFields::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Ok(Self { api: client, me, query, path, token: form_token(session.as_deref(), seed) })
    }
}

/// Whether the link to this page is on another site. Then the browser does not send its cookie.
fn is_cross_site(parts: &Parts) -> bool {
    let site = parts.headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    parts.method == Method::GET && site == Some("cross-site")
}
