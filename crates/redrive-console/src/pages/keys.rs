//! API keys: make one, which is shown once, and revoke them; the names of signing secrets beside.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use futures_util::future::join;
use redrive_server::keys::Scope;
use redrive_server::wire::key::{ApiKey, KeyRequest};
use redrive_server::wire::origin::SigningSecrets;
use redrive_server::wire::page::Page as Listed;

use super::Answer;
use crate::api::{query, segment};
use crate::form::Posted;
use crate::frame::{Frame, render};
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words::{Moment, now_ms};

/// Keys on a page.
const KEYS_MAX: &str = "200";

#[derive(Template)]
#[template(path = "keys.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    secrets: Vec<Secret>,
    made: Option<Made>,
    open: bool,
    own_tenant: Option<String>,
}

struct Row {
    id: String,
    name: String,
    scope: &'static str,
    bodies: bool,
    tenant: Option<String>,
    created: Moment,
}

struct Secret {
    name: String,
    created: Moment,
    rotated: Option<Moment>,
    has_previous: bool,
}

/// A key that was just made.
struct Made {
    name: String,
    key: String,
}

/// `GET /console/keys`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    show(visitor, None).await
}

/// `POST /console/keys`. The answer shows the key itself, so it is a page and no redirect.
pub(super) async fn create(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let scope: Scope = match fields.get("scope") {
        Some(name) => {
            name.parse().map_err(|_| Trouble::Senseless(format!("scope: there is no scope {name:?}")))?
        }
        None => Scope::Read,
    };
    let tenant = fields.get("tenant").map(str::to_owned);
    let bodies = fields.get("bodies").is_some();
    let request = KeyRequest { name: fields.text("name"), tenant, scope: Some(scope), bodies };
    let key: ApiKey = visitor.api.post("/keys", &request).await?;
    let made = Made { name: key.name, key: key.key.unwrap_or_default() };
    show(visitor, Some(made)).await
}

/// `POST /console/keys/{id}/revoke`.
pub(super) async fn revoke(visitor: Visitor, Path(id): Path<String>, _: Posted) -> Answer {
    visitor.api.send(Method::DELETE, &format!("/keys/{}", segment(&id))).await?;
    Ok(Redirect::to("/console/keys?done=revoked").into_response())
}

async fn show(visitor: Visitor, made: Option<Made>) -> Answer {
    let path = query("/keys", [("limit", KEYS_MAX), ("cursor", &visitor.query.text("cursor"))]);
    let keys = visitor.api.get::<Listed<ApiKey>>(&path);
    let (keys, secrets) = join(keys, visitor.api.get::<SigningSecrets>("/signing-secrets")).await;
    let (keys, secrets) = match (keys, secrets, &made) {
        // The first key of an open service has just locked everyone out who has none, its maker too.
        (Err(trouble), _, Some(_)) if trouble.wants_key() => (Vec::new(), Vec::new()),
        (keys, secrets, _) => (vec![keys?], secrets?.items),
    };
    let now = now_ms();
    let next = keys.first().and_then(|page| page.next_cursor.as_deref());
    let next = next.map(|cursor| query("/console/keys", [("cursor", cursor)]));
    render(&Page {
        frame: visitor.frame("Keys", "keys"),
        rows: keys.iter().flat_map(|page| &page.items).map(|key| Row::of(key, now)).collect(),
        next,
        secrets: secrets
            .iter()
            .map(|secret| Secret {
                name: secret.name.clone(),
                created: Moment::seen(secret.created_at, now),
                rotated: secret.rotated_at.map(|at| Moment::seen(at, now)),
                has_previous: secret.has_previous,
            })
            .collect(),
        made,
        open: visitor.me.open,
        own_tenant: visitor.me.tenant.clone(),
    })
}

impl Row {
    fn of(key: &ApiKey, now: i64) -> Self {
        Self {
            id: key.key_id.clone(),
            name: key.name.clone(),
            scope: key.scope.name(),
            bodies: key.bodies,
            tenant: key.tenant.clone(),
            created: Moment::seen(key.created_at, now),
        }
    }
}
