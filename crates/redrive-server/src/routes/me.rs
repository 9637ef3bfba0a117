//! The permissions of the caller.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::Reader;
use crate::error::Answer;
use crate::extract::Json;
use redrive_wire::Scope;
use redrive_wire::me::Me;

/// The permissions of the caller, and the name of this node.
#[utoipa::path(get, operation_id = "getMe", path = "/v1/me", tag = "service",
    responses((status = 200, description = "the caller and the node", body = Me)))]
pub(super) async fn me(Reader(caller): Reader, State(api): State<Arc<Api>>) -> Answer<Json<Me>> {
    let sees_nodes = caller.tenant.is_none() && caller.scope >= Scope::Admin;
    Ok(Json(Me {
        loopback_targets: api.loopback.status().filter(|_| sees_nodes),
        scope: caller.scope,
        bodies: caller.bodies,
        tenant: caller.tenant.map(|tenant| tenant.to_string()),
        open: api.keyring.is_open().await?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: api.node.to_string(),
    }))
}
