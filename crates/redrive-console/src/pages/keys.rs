//! API keys, and the names of signing secrets.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use futures_util::future::join;
use redrive_wire::Scope;
use redrive_wire::key::{ApiKey, KeyRequest};
use redrive_wire::origin::SigningSecretInfo;
use redrive_wire::page::Page as Listed;

use super::Answer;
use crate::api::{query, segment};
use crate::context::PageContext;
use crate::error::PageError;
use crate::form::VerifiedForm;
use crate::layout::{Layout, render};
use crate::text::{RelativeTime, now_ms};

/// The number of keys on a page.
const KEYS_MAX: &str = "200";

#[derive(Template)]
#[template(path = "keys.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    next: Option<String>,
    secrets: Vec<Secret>,
    created_key: Option<CreatedKey>,
    open: bool,
    own_tenant: Option<String>,
}

struct Row {
    id: String,
    name: String,
    scope: &'static str,
    bodies: bool,
    tenant: Option<String>,
    created: RelativeTime,
}

struct Secret {
    name: String,
    created: RelativeTime,
    rotated: Option<RelativeTime>,
    has_previous: bool,
}

/// A new key.
struct CreatedKey {
    name: String,
    key: String,
}

/// `GET /console/keys`.
pub(super) async fn list(context: PageContext) -> Answer {
    show(context, None).await
}

/// `POST /console/keys`. The answer contains the key, so it is a page and not a redirect.
pub(super) async fn create(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let scope: Scope = match fields.get("scope") {
        Some(name) => {
            name.parse().map_err(|_| PageError::InvalidInput(format!("scope: unknown scope {name:?}")))?
        }
        None => Scope::Read,
    };
    let tenant = fields.get("tenant").map(str::to_owned);
    let bodies = fields.get("bodies").is_some();
    let request = KeyRequest { name: fields.text("name"), tenant, scope: Some(scope), bodies };
    let key: ApiKey = context.api.post("/keys", &request).await?;
    let created_key = CreatedKey { name: key.name, key: key.key.unwrap_or_default() };
    show(context, Some(created_key)).await
}

/// `POST /console/keys/{id}/revoke`.
pub(super) async fn revoke(context: PageContext, Path(id): Path<String>, _: VerifiedForm) -> Answer {
    context.api.send(Method::DELETE, &format!("/keys/{}", segment(&id))).await?;
    Ok(Redirect::to("/console/keys?done=revoked").into_response())
}

async fn show(context: PageContext, created_key: Option<CreatedKey>) -> Answer {
    let path = query("/keys", [("limit", KEYS_MAX), ("cursor", &context.query.text("cursor"))]);
    let keys = context.api.get::<Listed<ApiKey>>(&path);
    let secrets = context.api.get_all::<Listed<SigningSecretInfo>>("/signing-secrets");
    let (keys, secrets) = join(keys, secrets).await;
    let (keys, secrets) = match (keys, secrets, &created_key) {
        // The service was open until this first key. Now this user needs a key too.
        (Err(error), _, Some(_)) if error.needs_key() => (Vec::new(), Vec::new()),
        (keys, secrets, _) => (vec![keys?], secrets?.items),
    };
    let now = now_ms();
    let next = keys.first().and_then(|page| page.next_cursor.as_deref());
    let next = next.map(|cursor| query("/console/keys", [("cursor", cursor)]));
    render(&Page {
        layout: context.layout("Keys", "keys"),
        rows: keys.iter().flat_map(|page| &page.items).map(|key| Row::of(key, now)).collect(),
        next,
        secrets: secrets
            .iter()
            .map(|secret| Secret {
                name: secret.name.clone(),
                created: RelativeTime::new(secret.created_at, now),
                rotated: secret.rotated_at.map(|at| RelativeTime::new(at, now)),
                has_previous: secret.has_previous,
            })
            .collect(),
        created_key,
        open: context.me.open,
        own_tenant: context.me.tenant.clone(),
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
            created: RelativeTime::new(key.created_at, now),
        }
    }
}
