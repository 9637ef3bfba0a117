//! Signing secrets of a tenant. A secret is shown once, when it is created or replaced.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_delivery::secrets::VaultError;
use redrive_delivery::sign::SigningSecret;

use crate::api::{self, Api};
use crate::auth::Admin;
use crate::error::{Answer, Problem};
use crate::extract::{Json, OptionalJson, PathParam, Query};
use crate::present;
use redrive_wire::origin::{SecretRequest, ShownSecret, SigningSecretInfo};
use redrive_wire::page::{Page, PageQuery};

/// Create or replace a signing secret.
///
/// Only this answer shows the secret. After a replacement, deliveries are signed with both secrets until the previous one is retired.
#[utoipa::path(put, operation_id = "putSigningSecret", path = "/v1/signing-secrets/{name}", tag = "signing secrets", request_body = Option<SecretRequest>,
    params(
        ("name" = String, Path, description = "the secret"),
        ("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for an API key that is not bound to one"),
    ),
    responses(
        (status = 201, description = "created", body = ShownSecret),
        (status = 200, description = "replaced; the previous secret still signs", body = ShownSecret),
    ))]
pub(super) async fn put(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
    OptionalJson(request): OptionalJson<SecretRequest>,
) -> Answer<(StatusCode, Json<ShownSecret>)> {
    let given = request.secret.as_deref().map(SigningSecret::parse).transpose()?;
    let (vault, tenant, now) = (&api.parts.vault, &caller.acts_for, api::now());
    let (status, secret) = match vault.create(&*api.store, tenant, &name, given.clone(), now).await {
        Ok(secret) => (StatusCode::CREATED, secret),
        Err(VaultError::Exists) => {
            (StatusCode::OK, vault.rotate(&*api.store, tenant, &name, given, now).await?)
        }
        Err(error) => return Err(error.into()),
    };
    Ok((status, Json(ShownSecret { name, secret: secret.to_string() })))
}

/// The signing secrets of a tenant, newest first, without the secrets themselves.
#[utoipa::path(get, operation_id = "listSigningSecrets", path = "/v1/signing-secrets", tag = "signing secrets",
    params(
        ("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for an API key that is not bound to one"),
        PageQuery,
    ),
    responses((status = 200, description = "a page of signing secrets", body = Page<SigningSecretInfo>)))]
pub(super) async fn list(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<Page<SigningSecretInfo>>> {
    let secrets = api.parts.vault.names(&*api.store, &caller.acts_for).await?;
    let secrets = secrets.into_iter().map(present::signing_secret).collect();
    let position = |secret: &SigningSecretInfo| (secret.created_at, secret.name.clone());
    Ok(Json(Page::newest_first(secrets, &query, position)?))
}

/// Remove a signing secret.
/// Later attempts of tasks that use it fail.
#[utoipa::path(delete, operation_id = "deleteSigningSecret", path = "/v1/signing-secrets/{name}", tag = "signing secrets",
    params(("name" = String, Path, description = "the secret")),
    responses((status = 204, description = "removed")))]
pub(super) async fn remove(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<StatusCode> {
    let removed = api.parts.vault.remove(&*api.store, &caller.acts_for, &name).await;
    removed.map_err(|error| secret_problem(error, &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop signing with the previous secret.
#[utoipa::path(delete, operation_id = "retirePreviousSigningSecret", path = "/v1/signing-secrets/{name}/previous", tag = "signing secrets",
    params(("name" = String, Path, description = "the secret")),
    responses((status = 204, description = "retired")))]
pub(super) async fn retire(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    PathParam(name): PathParam<String>,
) -> Answer<StatusCode> {
    let retired = api.parts.vault.retire_previous(&*api.store, &caller.acts_for, &name).await;
    retired.map_err(|error| secret_problem(error, &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The problem of a secret. A name that no secret can have gives 404, like an unknown one.
fn secret_problem(error: VaultError, name: &str) -> Problem {
    match error {
        VaultError::Invalid(_) | VaultError::NotFound => Problem::not_found("signing secret", name),
        error => error.into(),
    }
}
