//! A web application that does slow work in jobs. One process has the routes, the worker and the store.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use redrive::{Context, JobError, JobId, Redrive, ResultError, Task, shutdown_signal};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct SendReceipt {
    order: u64,
}

/// The state of the job handlers.
struct Mailer {
    sender: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let app = Router::new()
        .route("/orders/{order}/receipt", post(enqueue))
        .route("/receipts/{id}", get(receipt))
        .with_state(redrive.clone());
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let worker = redrive.worker().state(Mailer { sender: "shop@example.org".to_owned() }).on(send);
    let (served, worked) = tokio::join!(
        axum::serve(listener, app).with_graceful_shutdown(shutdown_signal()).into_future(),
        worker.run_until(shutdown_signal()),
    );
    served?;
    println!("{} receipts were sent", worked?.succeeded);
    Ok(())
}

/// Answers once the job is stored. A second request for the same order returns the same job.
async fn enqueue(
    State(redrive): State<Redrive>,
    Path(order): Path<u64>,
) -> Result<(StatusCode, Json<JobId>), (StatusCode, String)> {
    let enqueued = redrive.enqueue(SendReceipt { order }).key(&format!("receipt-{order}")).await;
    let id = enqueued.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?.id();
    Ok((StatusCode::ACCEPTED, Json(id)))
}

/// Returns the result of the job.
async fn receipt(State(redrive): State<Redrive>, Path(id): Path<JobId>) -> (StatusCode, String) {
    match redrive.output::<SendReceipt>(id).await {
        Ok(Some(receipt)) => (StatusCode::OK, receipt),
        Ok(None) => (StatusCode::ACCEPTED, "not yet".to_owned()),
        Err(error @ ResultError::NotFound(_)) => (StatusCode::NOT_FOUND, error.to_string()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn send(job: SendReceipt, cx: Context) -> Result<String, JobError> {
    let mailer: Arc<Mailer> = cx.state()?;
    Ok(format!("{} has sent the receipt for order {}", mailer.sender, job.order))
}
