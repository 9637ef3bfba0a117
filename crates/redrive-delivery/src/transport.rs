//! Sends requests over pooled connections, each of which the guard has let through.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::{TlsConnector, rustls};

use crate::dial::{Dialer, Speak};
use crate::exchange::{Exchange, Outgoing};
use crate::guard::{Guard, SharedGuard};
use crate::resolve::{Resolve, SystemResolver};
use crate::upload::Upload;
use crate::{grpc, http, tls};

/// A pool of connections.
pub(crate) type Pool = Client<Dialer, Upload>;

/// How a transport connects.
#[derive(Debug, Clone)]
pub struct TransportSettings {
    /// Which addresses may be dialled, to begin with.
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
            resolver: Arc::new(SystemResolver::new()),
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

/// Sends HTTP and gRPC requests. Clones share their connections and their guard.
#[derive(Debug, Clone)]
pub struct Transport(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    guard: Arc<SharedGuard>,
    maker: PoolMaker,
    pools: RwLock<Pools>,
}

#[derive(Debug, Clone)]
struct Pools {
    http: Pool,
    grpc: Pool,
}

/// Makes empty pools, at the start and when the guard changes.
struct PoolMaker {
    settings: TransportSettings,
    guard: Arc<SharedGuard>,
    either: TlsConnector,
    http2: TlsConnector,
}

impl Transport {
    /// Reads the system's roots and begins with empty pools.
    pub fn new(settings: TransportSettings) -> Result<Self, TransportError> {
        let (either, http2) = tls::connectors(&settings.extra_roots)?;
        let guard = Arc::new(SharedGuard::new(settings.guard.clone()));
        let maker = PoolMaker { settings, guard: guard.clone(), either, http2 };
        let pools = RwLock::new(maker.pools());
        Ok(Self(Arc::new(Shared { guard, maker, pools })))
    }

    /// The guard that holds now.
    pub fn guard(&self) -> Arc<Guard> {
        self.0.guard.current()
    }

    /// Lets another guard decide from now on. Idle connections are closed, because the guard before let them through;
    /// requests under way go on. Returns false if the guard was the same already.
    pub fn set_guard(&self, guard: Guard) -> bool {
        // The guard comes first: a pool made before it could still be used to dial under it, never the other way.
        if !self.0.guard.replace(guard) {
            return false;
        }
        *self.0.pools.write().unwrap_or_else(PoisonError::into_inner) = self.0.maker.pools();
        true
    }

    fn pools(&self) -> Pools {
        self.0.pools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request once and reads its answer. Follows no redirect; limits no time: that is the caller's part, who
    /// may drop this at any moment and read [`Outgoing::progress`].
    pub async fn send(&self, outgoing: Outgoing<'_>) -> Exchange {
        let (grpc, progress) = (outgoing.target.scheme().is_grpc(), outgoing.progress.clone());
        let pools = self.pools();
        let sent = if grpc {
            pools.grpc.request(grpc::prepare(outgoing)).await
        } else {
            pools.http.request(http::prepare(outgoing)).await
        };
        match sent {
            Ok(response) if grpc => grpc::answered(&progress, response).await,
            Ok(response) => http::answered(&progress, response).await,
            Err(error) => Exchange::unanswered(&progress, &error),
        }
    }
}

impl PoolMaker {
    fn pools(&self) -> Pools {
        Pools { http: self.pool(Speak::Either, &self.either), grpc: self.pool(Speak::Http2, &self.http2) }
    }

    fn pool(&self, speak: Speak, tls: &TlsConnector) -> Pool {
        let dialer = Dialer {
            guard: self.guard.clone(),
            resolver: self.settings.resolver.clone(),
            connect_timeout: self.settings.connect_timeout,
            tls: tls.clone(),
            speak,
        };
        builder(&self.settings, speak).build(dialer)
    }
}

impl fmt::Debug for PoolMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMaker").field("settings", &self.settings).finish_non_exhaustive()
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
