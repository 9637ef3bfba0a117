//! Signals: named messages to jobs.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use redrive_core::limits::STEP_BYTES_MAX;
use redrive_core::steps::{Signal, SignalResult};
use redrive_core::{IdempotencyKey, JobId, SignalName};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::jobs::job_ended;
use crate::api::Api;
use crate::auth::Writer;
use crate::creation::idempotency_key;
use crate::error::{Answer, Problem};
use crate::extract::{Json, PathParam};
use crate::jobs::no_job;
use redrive_wire::job::{Job, SignalRequest};

/// Send a signal to a job that has not ended.
///
/// The signal is stored when the answer arrives. A job that waits for it resumes; otherwise the signal stays stored until the job waits
/// for it. A repeated request with the same idempotency key sends no second signal.
#[utoipa::path(post, operation_id = "signalJob", path = "/v1/jobs/{jobId}/signals", tag = "jobs", request_body = SignalRequest,
    params(
        ("jobId" = String, Path, description = "the job"),
        ("Idempotency-Key" = Option<String>, Header, description = "makes a repeated request send the signal only once"),
    ),
    responses(
        (status = 202, description = "the signal is stored", body = Job),
        (status = 409, description = "the job has already ended"),
    ))]
pub(super) async fn send(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<JobId>,
    headers: HeaderMap,
    Json(request): Json<SignalRequest>,
) -> Answer<(StatusCode, Json<Job>)> {
    api.find_job(&caller, id).await?;
    let key = idempotency_key(&headers)?;
    let signal = signal(id, request, key.as_ref())?;
    match api.redrive.send_signal(signal).await? {
        SignalResult::Stored => Ok((StatusCode::ACCEPTED, Json(api.changed_job(&caller, id).await?))),
        SignalResult::Ended(state) => Err(job_ended(state)),
        SignalResult::NotFound => Err(no_job(id)),
    }
}

fn signal(job: JobId, request: SignalRequest, key: Option<&IdempotencyKey>) -> Answer<Signal> {
    let name = SignalName::new(request.name).map_err(|invalid| Problem::invalid("name", invalid.problem))?;
    let value = request.value.map_or_else(|| b"null".to_vec(), |json| json.get().as_bytes().to_vec());
    if value.len() > STEP_BYTES_MAX {
        let detail = format!("is {} bytes long, at most {STEP_BYTES_MAX} are allowed", value.len());
        return Err(Problem::invalid("value", detail));
    }
    Ok(Signal { job, id: key.map_or_else(Uuid::now_v7, signal_id), name, value })
}

/// The id of a signal with an idempotency key: the same key gives the same id. It is unique within a job.
fn signal_id(key: &IdempotencyKey) -> Uuid {
    let hash: [u8; 32] = Sha256::digest(key.as_str()).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_always_gives_the_same_id() {
        let id = |key: &str| signal_id(&IdempotencyKey::new(key).unwrap());
        assert_eq!(id("a"), id("a"));
        assert_ne!(id("a"), id("b"));
        assert_eq!(id("a").get_version_num(), 8);
    }
}
