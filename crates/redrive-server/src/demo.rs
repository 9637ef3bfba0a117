//! A target that often fails, for the demo and for trying out policies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long the target works before it goes down.
const UP_TIME: Duration = Duration::from_secs(45);
/// How long the target stays down.
const DOWN_TIME: Duration = Duration::from_secs(15);

/// A target on loopback that fails 4 of 10 calls, and all calls for 15 s of every minute. It stops when this value is dropped.
pub struct FlakyTarget {
    url: String,
    server: JoinHandle<()>,
}

struct FlakyBehaviour {
    began: Instant,
    rng: Mutex<fastrand::Rng>,
    log: Box<dyn Fn(&str) + Send + Sync>,
}

impl FlakyTarget {
    /// Starts the target on a free port. `log` gets a line for each call.
    pub async fn start(log: impl Fn(&str) + Send + Sync + 'static) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let behaviour = FlakyBehaviour {
            began: Instant::now(),
            rng: Mutex::new(fastrand::Rng::new()),
            log: Box::new(log),
        };
        let router = Router::new().fallback(answer).with_state(Arc::new(behaviour));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the flaky target stopped");
            }
        });
        Ok(Self { url, server })
    }

    /// The address of the target.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for FlakyTarget {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(behaviour): State<Arc<FlakyBehaviour>>, headers: HeaderMap, uri: Uri) -> Response {
    let status = behaviour.status();
    let attempt = headers.get("redrive-attempt").and_then(|value| value.to_str().ok()).unwrap_or("?");
    (behaviour.log)(&format!("{:<14} attempt {attempt:>2}   {status}", uri.path()));
    match status {
        StatusCode::TOO_MANY_REQUESTS => (status, [(header::RETRY_AFTER, "1")], "slow down").into_response(),
        status if status.is_success() => (status, "thank you").into_response(),
        status => (status, "not now").into_response(),
    }
}

impl FlakyBehaviour {
    fn status(&self) -> StatusCode {
        let minute = UP_TIME + DOWN_TIME;
        let in_minute = Duration::from_millis((self.began.elapsed().as_millis() % minute.as_millis()) as u64);
        if in_minute >= UP_TIME {
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        let draw = self.rng.lock().unwrap_or_else(PoisonError::into_inner).u8(0..100);
        match draw {
            0..2 => StatusCode::TOO_MANY_REQUESTS,
            2..20 => StatusCode::INTERNAL_SERVER_ERROR,
            20..40 => StatusCode::BAD_GATEWAY,
            40.. => StatusCode::OK,
        }
    }
}
