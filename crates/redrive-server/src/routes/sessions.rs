//! Sessions: what a browser keeps instead of the API key.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::api::{self, Api};
use crate::auth::{Credential, Reader};
use crate::error::{Answer, Code, Problem};
use crate::extract::Json;
use crate::sessions;
use crate::wire::session::OpenedSession;

/// Open a session with an API key.
///
/// The token is accepted wherever the key is, and allows the same. It ends after 12 hours, with the key, or by
/// `DELETE /sessions/current`.
#[utoipa::path(post, operation_id = "openSession", path = "/sessions", tag = "keys",
    responses((status = 201, description = "the session, with its token", body = OpenedSession)))]
pub(super) async fn open(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
) -> Answer<(StatusCode, Json<OpenedSession>)> {
    let Credential::Key(key_id) = &caller.credential else {
        return Err(Problem::new(Code::Forbidden, "a session is opened with an API key: send one"));
    };
    let (session, token) = sessions::open(&*api.store, key_id, api::now()).await?;
    let expires_at = session.expires_at.as_ms();
    Ok((StatusCode::CREATED, Json(OpenedSession { session_id: session.id, token, expires_at })))
}

/// End the session that the request is sent with.
#[utoipa::path(delete, operation_id = "endSession", path = "/sessions/current", tag = "keys",
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
