//! Sessions: a browser stores a token instead of the API key.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::api::{self, Api};
use crate::auth::{Credential, Reader};
use crate::error::{Answer, Problem};
use crate::extract::Json;
use crate::sessions;
use redrive_wire::Code;
use redrive_wire::session::OpenedSession;

/// Open a session with an API key.
///
/// The token works wherever the key works, with the same permissions. The session ends after 12 hours, with the key, or with
/// `DELETE /v1/sessions/current`.
#[utoipa::path(post, operation_id = "openSession", path = "/v1/sessions", tag = "keys",
    responses((status = 201, description = "the session, with its token", body = OpenedSession)))]
pub(super) async fn open(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
) -> Answer<(StatusCode, Json<OpenedSession>)> {
    let Credential::Key(key_id) = &caller.credential else {
        return Err(Problem::new(Code::Forbidden, "only an API key can open a session; send one"));
    };
    let (session, token) = sessions::open(&*api.store, key_id, api::now()).await?;
    let expires_at = session.expires_at.as_ms();
    Ok((StatusCode::CREATED, Json(OpenedSession { session_id: session.id, token, expires_at })))
}

/// End the session that the request is sent with.
#[utoipa::path(delete, operation_id = "endSession", path = "/v1/sessions/current", tag = "keys",
    responses(
        (status = 204, description = "ended"),
        (status = 404, description = "the request was not sent with a session"),
    ))]
pub(super) async fn end(Reader(caller): Reader, State(api): State<Arc<Api>>) -> Answer<StatusCode> {
    let Credential::Session(id) = &caller.credential else {
        return Err(Problem::new(Code::NotFound, "the request was not sent with a session"));
    };
    sessions::end(&*api.store, id).await?;
    api.keyring.forget();
    Ok(StatusCode::NO_CONTENT)
}
