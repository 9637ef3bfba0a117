//! Signing secrets of a tenant: made or replaced, shown once, named afterwards.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use redrive_delivery::secrets::VaultError;
use redrive_delivery::sign::SigningSecret;

use crate::api::{self, Api};
use crate::auth::Admin;
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named, OptionalJson};
use crate::wire::origin::{SecretRequest, ShownSecret, SigningSecrets};

/// Make a signing secret, or replace it.
///
/// The answer shows the secret, once. After a replacement both sign, until the previous one is retired.
#[utoipa::path(put, operation_id = "putSigningSecret", path = "/signing-secrets/{name}", tag = "signing secrets", request_body = Option<SecretRequest>,
    params(
        ("name" = String, Path, description = "the secret"),
        ("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for a key that is bound to none"),
    ),
    responses(
        (status = 201, description = "made", body = ShownSecret),
        (status = 200, description = "replaced; the one before signs too", body = ShownSecret),
    ))]
pub(super) async fn put(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
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

/// The names of the signing secrets.
#[utoipa::path(get, operation_id = "listSigningSecrets", path = "/signing-secrets", tag = "signing secrets",
    responses((status = 200, description = "the names", body = SigningSecrets)))]
pub(super) async fn list(Admin(caller): Admin, State(api): State<Arc<Api>>) -> Answer<Json<SigningSecrets>> {
    let names = api.parts.vault.names(&*api.store, &caller.acts_for).await?;
    Ok(Json(SigningSecrets { items: names.into_iter().map(Into::into).collect() }))
}

/// Remove a signing secret.
///
/// Attempts of tasks that name it fail from then on.
#[utoipa::path(delete, operation_id = "deleteSigningSecret", path = "/signing-secrets/{name}", tag = "signing secrets",
    params(("name" = String, Path, description = "the secret")),
    responses((status = 204, description = "removed")))]
pub(super) async fn remove(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    let removed = api.parts.vault.remove(&*api.store, &caller.acts_for, &name).await;
    removed.map_err(|error| nothing(error, &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop signing with the secret before the current one.
#[utoipa::path(delete, operation_id = "retirePreviousSigningSecret", path = "/signing-secrets/{name}/previous", tag = "signing secrets",
    params(("name" = String, Path, description = "the secret")),
    responses((status = 204, description = "retired")))]
pub(super) async fn retire(
    Admin(caller): Admin,
    State(api): State<Arc<Api>>,
    Named(name): Named<String>,
) -> Answer<StatusCode> {
    let retired = api.parts.vault.retire_previous(&*api.store, &caller.acts_for, &name).await;
    retired.map_err(|error| nothing(error, &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// A name that no secret can have names nothing.
fn nothing(error: VaultError, name: &str) -> Problem {
    match error {
        VaultError::Invalid(_) | VaultError::NotFound => Problem::not_found("signing secret", name),
        error => error.into(),
    }
}
