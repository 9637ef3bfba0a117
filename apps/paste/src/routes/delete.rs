//! Removes a paste for its owner; what nobody needs any more goes by a job.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};

use super::create::Intake;
use crate::code::Code;
use crate::token::OwnerHash;
use crate::wire::Refusal;

/// `DELETE /api/v1/pastes/{code}`.
pub(super) async fn delete(
    State(intake): State<Arc<Intake>>,
    Path(code): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Refusal> {
    let site = &intake.site;
    let code = Code::parse(&code).ok_or_else(Refusal::not_found)?;
    let paste = site.database.find(&code).await?.ok_or_else(Refusal::not_found)?;
    let Some(token) = bearer(&headers) else {
        let missing = "send the owner's token as Authorization: Bearer";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "TOKEN_MISSING", missing));
    };
    let owner = OwnerHash::of(token);
    if owner != paste.owner {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "TOKEN_WRONG", "this is not the owner's token"));
    }
    let removal = site.removal(paste.blob.id).await?;
    match site.database.delete(&code, owner, removal).await? {
        true => Ok(StatusCode::NO_CONTENT),
        // Someone else was faster.
        false => Err(Refusal::not_found()),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
