//! A target that fails, for a demonstration and for trying policies out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long the target works before it goes down altogether.
const UP: Duration = Duration::from_secs(45);
/// How long it stays down.
const DOWN: Duration = Duration::from_secs(15);

/// A target on loopback that fails 4 calls in 10, and all of them for 15 s of every minute. It ends with this value.
pub struct FlakyTarget {
    url: String,
    server: JoinHandle<()>,
}

struct Mood {
    began: Instant,
    rng: Mutex<fastrand::Rng>,
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl FlakyTarget {
    /// Starts it on a free port; `tell` gets a line for each call.
    pub async fn start(tell: impl Fn(&str) + Send + Sync + 'static) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let mood =
            Mood { began: Instant::now(), rng: Mutex::new(fastrand::Rng::new()), tell: Box::new(tell) };
        let router = Router::new().fallback(answer).with_state(Arc::new(mood));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the flaky target ended");
            }
        });
        Ok(Self { url, server })
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for FlakyTarget {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(mood): State<Arc<Mood>>, headers: HeaderMap, uri: Uri) -> Response {
    let status = mood.status();
    let attempt = headers.get("redrive-attempt").and_then(|value| value.to_str().ok()).unwrap_or("?");
    (mood.tell)(&format!("{:<14} attempt {attempt:>2}   {status}", uri.path()));
    match status {
        StatusCode::TOO_MANY_REQUESTS => (status, [(header::RETRY_AFTER, "1")], "slow down").into_response(),
        status if status.is_success() => (status, "thank you").into_response(),
        status => (status, "not now").into_response(),
    }
}

impl Mood {
    fn status(&self) -> StatusCode {
        let minute = UP + DOWN;
        let into = Duration::from_millis((self.began.elapsed().as_millis() % minute.as_millis()) as u64);
        if into >= UP {
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
