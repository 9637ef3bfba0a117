//! The probe for creates: an endpoint that parses the same JSON, sends answers of the same size, and stores nothing.

use axum::http::{HeaderName, StatusCode, header};
use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use redrive_wire::state::JobState;
use redrive_wire::task::{Task, TaskRequest};
use tokio::net::TcpListener;

use super::child;
use super::lateness::now_ms;

/// Answers requests until standard input closes.
pub async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    child::print_address(listener.local_addr()?);
    // The service also sets TCP_NODELAY, so that neither side waits for full packets.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let serving = axum::serve(listener, Router::new().route("/v1/tasks", post(create)));
    tokio::select! {
        served = async move { serving.await } => Ok(served?),
        () = child::stdin_closed() => Ok(()),
    }
}

async fn create(Json(request): Json<TaskRequest>) -> (StatusCode, [(HeaderName, String); 1], Json<Task>) {
    let now = now_ms() as i64;
    let task = Task {
        task_id: uuid::Uuid::now_v7().to_string(),
        idempotency_key: request.idempotency_key.unwrap_or_default(),
        target: request.target,
        method: request.method.unwrap_or_else(|| "POST".to_owned()),
        headers: {
            let mut headers = request.headers.unwrap_or_default();
            headers.insert("content-type".to_owned(), "application/json".to_owned());
            headers
        },
        policy_id: "default".to_owned(),
        policy_version: 1,
        state: JobState::Pending,
        max_attempts: Some(5),
        next_attempt_at: Some(now.saturating_add_unsigned(request.delay_ms.unwrap_or_default())),
        created_at: now,
        priority: request.priority.unwrap_or(5),
        ..Task::default()
    };
    let location = format!("/v1/tasks/{}", task.task_id);
    (StatusCode::CREATED, [(header::LOCATION, location)], Json(task))
}
