//! API keys: create, list, revoke. A key that is bound to a tenant manages the keys of that tenant only.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_core::Tenant;

use crate::api::{self, Api};
use crate::auth::{Admin, Caller};
use crate::error::{Answer, Problem};
use crate::extract::{Json, PathParam, Query};
use crate::keys::{self, Key, NewKey};
use crate::present;
use redrive_wire::Code;
use redrive_wire::Scope;
use redrive_wire::key::{ApiKey, KeyRequest};
use redrive_wire::page::{Page, PageQuery};

/// Create an API key.
///
/// The answer shows the key itself, once. The first key must have scope `admin` and no tenant. From then on every call needs
/// a key, even after keys were revoked.
#[utoipa::path(post, operation_id = "createKey", path = "/v1/keys", tag = "keys", request_body = KeyRequest,
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
    let tenant = tenant_of_new_key(&caller, tenant)?;
    let scope = request.scope.unwrap_or(Scope::Write);
    let new = NewKey { name: request.name, tenant, scope, bodies: request.bodies };
    let (key, text) = keys::create(&*api.store, new, api::now()).await?;
    api.keyring.forget();
    Ok((StatusCode::CREATED, Json(present::api_key(key, Some(text)))))
}

/// API keys, newest first, without their secrets.
#[utoipa::path(get, operation_id = "listKeys", path = "/v1/keys", tag = "keys", params(PageQuery),
    responses((status = 200, description = "a page of keys", body = Page<ApiKey>)))]
pub(super) async fn list(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<ApiKey>>> {
    let visible = keys::all(&*api.store).await?.into_iter().filter(|key| is_visible(&caller, key));
    let visible = visible.map(|key| present::api_key(key, None)).collect();
    Ok(Json(Page::newest_first(visible, &page, |key: &ApiKey| (key.created_at, key.key_id.clone()))?))
}

/// Revoke an API key.
///
/// The key stops working at once on this node and within a second on others. Its sessions and event streams end too.
#[utoipa::path(delete, operation_id = "revokeKey", path = "/v1/keys/{keyId}", tag = "keys",
    params(("keyId" = String, Path, description = "the key")),
    responses(
        (status = 204, description = "revoked"),
        (status = 409, description = "this is the last admin key that is not bound to a tenant"),
    ))]
pub(super) async fn revoke(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
) -> Answer<StatusCode> {
    let nothing = || Problem::not_found("key", &id);
    let key = keys::find(&*api.store, &id).await?.filter(|key| is_visible(&caller, key));
    if key.is_none() || !keys::revoke(&*api.store, &id).await? {
        return Err(nothing());
    }
    api.keyring.forget();
    Ok(StatusCode::NO_CONTENT)
}

fn is_visible(caller: &Caller, key: &Key) -> bool {
    caller.tenant.is_none() || caller.tenant == key.tenant
}

/// The tenant of a new key. A caller that is bound to a tenant creates keys of that tenant only.
fn tenant_of_new_key(caller: &Caller, asked: Option<Tenant>) -> Answer<Option<Tenant>> {
    match (&caller.tenant, asked) {
        (Some(own), Some(asked)) if *own != asked => Err(Problem::new(
            Code::Forbidden,
            "your key is bound to a tenant, so it can create keys only for that tenant",
        )),
        (Some(own), _) => Ok(Some(own.clone())),
        (None, asked) => Ok(asked),
    }
}
