//! Who looks at a page, and what they may do.

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use redrive_server::Peer;
use redrive_server::keys::Scope;
use redrive_server::wire::me::Me;

use crate::api::{Api, Caller};
use crate::form::Fields;
use crate::frame::{Frame, Who};
use crate::session::{self, Seed, form_token};
use crate::trouble::Trouble;

/// Whoever looks at a page, known to the API.
pub(crate) struct Visitor {
    /// The API as they may call it.
    pub(crate) api: Caller,
    /// What the API says of them.
    pub(crate) me: Me,
    /// What their query says.
    pub(crate) query: Fields,
    /// The address they asked for, to lead back to.
    pub(crate) path: String,
    token: String,
}

impl Visitor {
    /// Whether they may create, cancel, redrive and pause what is theirs.
    pub(crate) fn writes(&self) -> bool {
        self.me.scope >= Scope::Write
    }

    /// Whether they may operate on many at once, and make keys.
    pub(crate) fn administers(&self) -> bool {
        self.me.scope >= Scope::Admin
    }

    /// Whether they may change what all tenants share.
    pub(crate) fn administers_all(&self) -> bool {
        self.administers() && self.me.tenant.is_none()
    }

    /// What is around a page for them.
    pub(crate) fn frame(&self, title: impl Into<String>, page: &'static str) -> Frame {
        let who = Who {
            scope: self.me.scope.name(),
            tenant: self.me.tenant.clone(),
            open: self.me.open,
            node: self.me.node.clone(),
            version: self.me.version.clone(),
        };
        let notice = crate::pages::notice::of(&self.query);
        Frame { title: title.into(), page, who: Some(who), token: self.token.clone(), notice }
    }
}

impl FromRequestParts<Api> for Visitor {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Trouble> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let session = session::token(&parts.headers);
        let caller = api.caller(&parts.headers, parts.extensions.get::<Peer>(), session);
        let me = caller.get::<Me>("/me").await.map_err(|trouble| {
            if !trouble.wants_key() {
                return trouble;
            }
            if session.is_none() && from_elsewhere(parts) {
                return Trouble::Again { path: path.clone() };
            }
            // A form cannot be sent again by looking at a page.
            let next = if parts.method == Method::GET { path.clone() } else { "/".to_owned() };
            Trouble::SignIn { next }
        })?;
        let missing = || Trouble::Forged("It came without what binds it to this browser.");
        let seed = parts.extensions.get::<Seed>().ok_or_else(missing)?;
        let query = Fields::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Ok(Self { api: caller, me, query, path, token: form_token(session, seed) })
    }
}

/// Whether another site led here: a browser keeps its cookie to itself then.
fn from_elsewhere(parts: &Parts) -> bool {
    let site = parts.headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    parts.method == Method::GET && site == Some("cross-site")
}
