//! Large bodies, uploaded before the task that sends them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use redrive_delivery::bodies::{BODY_BYTES_MAX, PutError};

use crate::api::{self, Api};
use crate::auth::Writer;
use crate::error::Answer;
use crate::extract::{Json, StreamedBody};
use crate::wire::origin::UploadedBody;

/// Upload a body of up to 64 MiB.
///
/// Send its `bodyRef` with a task. One that no task uses is removed after a day.
#[utoipa::path(put, operation_id = "putBody", path = "/bodies", tag = "bodies",
    request_body(content = String, content_type = "application/octet-stream"),
    params(("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for a key that is bound to none")),
    responses((status = 201, description = "kept", body = UploadedBody)))]
pub(super) async fn put(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    StreamedBody(stream): StreamedBody,
) -> Answer<(StatusCode, Json<UploadedBody>)> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > BODY_BYTES_MAX) {
        return Err(PutError::TooLarge.into());
    }
    let kept = api.parts.bodies.put(&*api.store, &caller.acts_for, stream, api::now()).await?;
    let uploaded = UploadedBody { body_ref: kept.to_string(), bytes: kept.length() };
    Ok((StatusCode::CREATED, Json(uploaded)))
}
