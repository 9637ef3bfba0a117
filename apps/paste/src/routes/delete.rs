//! Removes a paste for its owner. A job removes its blob if no other paste has it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};

use super::create::AppState;
use crate::code::Code;
use crate::token::OwnerHash;
use crate::wire::ErrorResponse;

/// `DELETE /api/v1/pastes/{code}`.
pub(super) async fn delete(
    State(app): State<Arc<AppState>>,
    Path(code): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ErrorResponse> {
    let site = &app.site;
    let code = Code::parse(&code).ok_or_else(ErrorResponse::not_found)?;
    let paste = site.database.find(&code).await?.ok_or_else(ErrorResponse::not_found)?;
    let Some(token) = bearer(&headers) else {
        let missing = "send the owner's token as Authorization: Bearer";
        return Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, "TOKEN_MISSING", missing));
    };
    let owner = OwnerHash::new(token);
    if owner != paste.owner {
        return Err(ErrorResponse::new(
            StatusCode::FORBIDDEN,
            "TOKEN_WRONG",
            "this is not the owner's token",
        ));
    }
    let removal = site.removal(paste.blob.id).await?;
    match site.database.delete(&code, owner, removal).await? {
        true => Ok(StatusCode::NO_CONTENT),
        // Another request removed it first.
        false => Err(ErrorResponse::not_found()),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
