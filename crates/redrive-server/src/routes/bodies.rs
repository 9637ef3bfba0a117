//! Uploads of large bodies. The task that sends a body is created afterwards.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use redrive_delivery::bodies::{BODY_BYTES_MAX, PutError};

use crate::api::{self, Api};
use crate::auth::Writer;
use crate::error::Answer;
use crate::extract::{Json, StreamedBody};
use redrive_wire::origin::UploadedBody;

/// Upload a body of up to 64 MiB.
/// Create a task with the returned `bodyRef`. A body that no task uses is removed after a day.
#[utoipa::path(put, operation_id = "putBody", path = "/v1/bodies", tag = "bodies",
    request_body(content = String, content_type = "application/octet-stream"),
    params(("Redrive-Tenant" = Option<String>, Header, description = "the tenant, for an API key that is not bound to one")),
    responses((status = 201, description = "stored", body = UploadedBody)))]
pub(super) async fn put(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    StreamedBody(stream): StreamedBody,
) -> Answer<(StatusCode, Json<UploadedBody>)> {
    let content_length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if content_length.is_some_and(|length: u64| length > BODY_BYTES_MAX) {
        return Err(PutError::TooLarge.into());
    }
    let body = api.parts.bodies.put(&*api.store, &caller.acts_for, stream, api::now()).await?;
    let uploaded = UploadedBody { body_ref: body.to_string(), bytes: body.length() };
    Ok((StatusCode::CREATED, Json(uploaded)))
}
