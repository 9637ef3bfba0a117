//! The probe for creates: an endpoint that parses the same JSON, answers as much, and stores nothing.

use axum::http::{HeaderName, StatusCode, header};
use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use redrive_server::wire::status::Status;
use redrive_server::wire::task::{Task, TaskRequest};
use tokio::net::TcpListener;

use super::child;
use super::lateness::now_ms;

/// Answers until the input ends.
pub async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    child::say(listener.local_addr()?);
    // As the service does, so that neither waits for packets to fill.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let serving = axum::serve(listener, Router::new().route("/retry-tasks", post(create)));
    tokio::select! {
        served = async move { serving.await } => Ok(served?),
        () = child::input_ended() => Ok(()),
    }
}

async fn create(Json(request): Json<TaskRequest>) -> (StatusCode, [(HeaderName, String); 1], Json<Task>) {
    let now = now_ms() as i64;
    let task = Task {
        task_id: uuid::Uuid::now_v7().to_string(),
        idempotency_key: request.idempotency_key.unwrap_or_default(),
        target_url: request.target_url,
        method: request.method.unwrap_or_else(|| "POST".to_owned()),
        headers: {
            let mut headers = request.headers.unwrap_or_default();
            headers.insert("content-type".to_owned(), "application/json".to_owned());
            headers
        },
        policy_id: "default".to_owned(),
        policy_version: 1,
        status: Some(Status::Pending),
        max_attempts: Some(5),
        next_attempt_at: Some(now.saturating_add_unsigned(request.delay_ms.unwrap_or_default())),
        created_at: now,
        priority: request.priority.unwrap_or(5),
        ..Task::default()
    };
    let location = format!("/retry-tasks/{}", task.task_id);
    (StatusCode::CREATED, [(header::LOCATION, location)], Json(task))
}
