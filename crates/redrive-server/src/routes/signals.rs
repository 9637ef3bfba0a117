//! Signals: what jobs that wait for someone outside are told.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use redrive_core::limits::STEP_BYTES_MAX;
use redrive_core::steps::{Signal, Signalled};
use redrive_core::{IdempotencyKey, JobId, SignalName};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::jobs::ended;
use crate::api::Api;
use crate::auth::Writer;
use crate::creation::idempotency_key;
use crate::error::{Answer, Problem};
use crate::extract::{Json, Named};
use crate::jobs::no_job;
use crate::wire::job::{Job, SignalRequest};

/// Send a signal to a job that has not ended.
///
/// It is durable when the answer comes. A job that waits for it goes on; for one that does not yet, it is kept. Under the
/// same key the first one counts, even when it was taken long ago.
#[utoipa::path(post, operation_id = "signalJob", path = "/jobs/{jobId}/signals", tag = "jobs", request_body = SignalRequest,
    params(
        ("jobId" = String, Path, description = "the job"),
        ("Idempotency-Key" = Option<String>, Header, description = "makes it repeatable, within the job"),
    ),
    responses(
        (status = 202, description = "the job gets it when it comes to it", body = Job),
        (status = 409, description = "it has ended before"),
    ))]
pub(super) async fn send(
    Writer(caller): Writer,
    State(api): State<Arc<Api>>,
    Named(id): Named<JobId>,
    headers: HeaderMap,
    Json(request): Json<SignalRequest>,
) -> Answer<(StatusCode, Json<Job>)> {
    api.find_job(&caller, id).await?;
    let key = idempotency_key(&headers)?;
    let signal = signal(id, request, key.as_ref())?;
    match api.redrive.send(signal).await? {
        Signalled::Kept => Ok((StatusCode::ACCEPTED, Json(api.changed_job(&caller, id).await?))),
        Signalled::Ended(state) => Err(ended(state)),
        Signalled::NotFound => Err(no_job(id)),
    }
}

fn signal(job: JobId, request: SignalRequest, key: Option<&IdempotencyKey>) -> Answer<Signal> {
    let name = SignalName::new(request.name).map_err(|invalid| Problem::invalid("name", invalid.problem))?;
    let value = request.value.map_or_else(|| b"null".to_vec(), |json| json.get().as_bytes().to_vec());
    if value.len() > STEP_BYTES_MAX {
        let detail = format!("is {} bytes long, at most {STEP_BYTES_MAX} are allowed", value.len());
        return Err(Problem::invalid("value", detail));
    }
    Ok(Signal { job, id: key.map_or_else(Uuid::now_v7, identity), name, value })
}

/// The id of a signal that may be repeated: the same for the same key. Stores keep them apart by job.
fn identity(key: &IdempotencyKey) -> Uuid {
    let hash: [u8; 32] = Sha256::digest(key.as_str()).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_identity() {
        let of = |key: &str| identity(&IdempotencyKey::new(key).unwrap());
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
        assert_eq!(of("a").get_version_num(), 8);
    }
}
