//! API keys: make, list, revoke. A key that is bound to a tenant manages the keys of that tenant only.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_core::Tenant;

use crate::api::{self, Api};
use crate::auth::{Admin, Caller};
use crate::error::{Answer, Code, Problem};
use crate::extract::{Json, Named, Query};
use crate::keys::{self, Key, NewKey, Scope};
use crate::wire::key::{ApiKey, KeyRequest};
use crate::wire::page::{Page, PageQuery};

/// Make a key.
///
/// The answer shows the key itself, once. The first key must have scope `admin` and no tenant. From then on every call needs
/// a key, even after keys were revoked.
#[utoipa::path(post, operation_id = "createKey", path = "/keys", tag = "keys", request_body = KeyRequest,
    responses(
        (status = 201, description = "the key, shown once", body = ApiKey),
        (status = 409, description = "the first key must be an admin key that is not bound to a tenant"),
    ))]
pub(super) async fn create(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Json(request): Json<KeyRequest>,
) -> Answer<(StatusCode, Json<ApiKey>)> {
    let tenant = request.tenant.map(Tenant::new).transpose()?;
    let tenant = within(&caller, tenant)?;
    let scope = request.scope.unwrap_or(Scope::Write);
    let new = NewKey { name: request.name, tenant, scope, bodies: request.bodies };
    let (key, text) = keys::create(&*api.store, new, api::now()).await?;
    api.keyring.forget();
    Ok((StatusCode::CREATED, Json(ApiKey::show(key, Some(text)))))
}

/// Every key, without its secret.
#[utoipa::path(get, operation_id = "listKeys", path = "/keys", tag = "keys", params(PageQuery),
    responses((status = 200, description = "a page of keys", body = Page<ApiKey>)))]
pub(super) async fn list(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<ApiKey>>> {
    let (limit, mut after) = (page.limit()?, page.after()?);
    let mut items = Vec::new();
    // Keys of other tenants are passed over, so a page may take several reads.
    while items.len() <= limit {
        let read = keys::list(&*api.store, after.as_deref(), limit + 1).await?;
        let (last, full) = (read.last().map(|key| key.id.clone()), read.len() > limit);
        items.extend(
            read.into_iter().filter(|key| is_theirs(&caller, key)).map(|key| ApiKey::show(key, None)),
        );
        if !full {
            break;
        }
        after = last;
    }
    Ok(Json(Page::cut(items, limit, |key| &key.key_id)))
}

/// Revoke a key.
///
/// It holds at once on this node and within a second on others. Its sessions and event streams end with it.
#[utoipa::path(delete, operation_id = "revokeKey", path = "/keys/{keyId}", tag = "keys",
    params(("keyId" = String, Path, description = "the key")),
    responses(
        (status = 204, description = "revoked"),
        (status = 409, description = "it is the last admin key that is not bound to a tenant"),
    ))]
pub(super) async fn revoke(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
) -> Answer<StatusCode> {
    let nothing = || Problem::not_found("key", &id);
    let key = keys::find(&*api.store, &id).await?.filter(|key| is_theirs(&caller, key));
    if key.is_none() || !keys::revoke(&*api.store, &id).await? {
        return Err(nothing());
    }
    api.keyring.forget();
    Ok(StatusCode::NO_CONTENT)
}

fn is_theirs(caller: &Caller, key: &Key) -> bool {
    caller.tenant.is_none() || caller.tenant == key.tenant
}

/// The tenant of a new key: a bound caller makes keys of its own tenant only.
fn within(caller: &Caller, asked: Option<Tenant>) -> Answer<Option<Tenant>> {
    match (&caller.tenant, asked) {
        (Some(own), Some(asked)) if *own != asked => Err(Problem::new(
            Code::Forbidden,
            "your key is bound to a tenant and makes keys for that one only",
        )),
        (Some(own), _) => Ok(Some(own.clone())),
        (None, asked) => Ok(asked),
    }
}
