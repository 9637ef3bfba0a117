//! Sends requests over pooled connections, each of which the guard has let through.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::dial::{Dialer, Resolve, Speak, SystemResolver};
use crate::exchange::{Exchange, Outgoing};
use crate::guard::Guard;
use crate::upload::Upload;
use crate::{grpc, http, tls};

/// A pool of connections.
pub(crate) type Pool = Client<Dialer, Upload>;

/// How a transport connects.
#[derive(Debug, Clone)]
pub struct TransportSettings {
    /// Which addresses may be dialled.
    pub guard: Guard,
    /// Finds addresses.
    pub resolver: Arc<dyn Resolve>,
    /// The time for resolving, connecting and TLS together.
    pub connect_timeout: Duration,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// Idle connections kept for one origin.
    pub idle_per_origin_max: usize,
    /// Certificates to trust besides the system's.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl Default for TransportSettings {
    /// The public internet by the system's resolver; 2 s to connect; up to 64 idle connections for 30 s.
    fn default() -> Self {
        Self {
            guard: Guard::public_only(),
            resolver: Arc::new(SystemResolver),
            connect_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(30),
            idle_per_origin_max: 64,
            extra_roots: Vec::new(),
        }
    }
}

impl TransportSettings {
    /// Lets this guard decide which addresses may be dialled.
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }
}

/// A transport cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot be set up")]
pub struct TransportError(#[from] rustls::Error);

/// Sends HTTP and gRPC requests. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Transport {
    http: Pool,
    grpc: Pool,
}

impl Transport {
    /// Reads the system's roots and begins with empty pools.
    pub fn new(settings: TransportSettings) -> Result<Self, TransportError> {
        let (either, http2) = tls::connectors(&settings.extra_roots)?;
        let pool = |speak, tls| {
            let dialer = Dialer {
                guard: Arc::new(settings.guard.clone()),
                resolver: settings.resolver.clone(),
                connect_timeout: settings.connect_timeout,
                tls,
                speak,
            };
            builder(&settings, speak).build(dialer)
        };
        Ok(Self { http: pool(Speak::Either, either), grpc: pool(Speak::Http2, http2) })
    }

    /// Sends a request once and reads its answer. Follows no redirect; limits no time: that is the caller's part, who
    /// may drop this at any moment and read [`Outgoing::progress`].
    pub async fn send(&self, outgoing: Outgoing<'_>) -> Exchange {
        let (grpc, progress) = (outgoing.target.scheme().is_grpc(), outgoing.progress.clone());
        let sent = if grpc {
            self.grpc.request(grpc::prepare(outgoing)).await
        } else {
            self.http.request(http::prepare(outgoing)).await
        };
        match sent {
            Ok(response) if grpc => grpc::answered(&progress, response).await,
            Ok(response) => http::answered(&progress, response).await,
            Err(error) => Exchange::unanswered(&progress, &error),
        }
    }
}

fn builder(settings: &TransportSettings, speak: Speak) -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(settings.idle_timeout)
        .pool_max_idle_per_host(settings.idle_per_origin_max)
        .retry_canceled_requests(true)
        // A target cannot make us hold much: headers of an answer, and what it sends ahead of our reading.
        .http1_max_buf_size(64 * 1024)
        .http2_max_header_list_size(64 * 1024)
        .http2_initial_stream_window_size(64 * 1024)
        .http2_initial_connection_window_size(1024 * 1024)
        .http2_only(speak == Speak::Http2);
    builder
}
