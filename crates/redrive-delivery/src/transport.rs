//! Sends HTTP and gRPC requests over pooled connections. The guard checks the address of every connection.

mod connection;
pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod grpc;
mod http;
pub(crate) mod local;
pub(crate) mod progress;
pub(crate) mod response_body;
mod tls;
pub(crate) mod upload;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::{TlsConnector, rustls};

use crate::guard::{Guard, SharedGuard};
use crate::resolve::{Resolve, SystemResolver};
use crate::transport::dial::{Dialer, HttpVersions};
use crate::transport::exchange::{Exchange, OutgoingRequest};
use crate::transport::upload::Upload;

/// A pool of connections.
pub(crate) type Pool = Client<Dialer, Upload>;

/// How a transport connects.
#[derive(Debug, Clone)]
pub struct TransportSettings {
    /// Which addresses may be dialled at first; [`Transport::set_guard`] changes it.
    pub guard: Guard,
    /// Finds the addresses of hosts.
    pub resolver: Arc<dyn Resolve>,
    /// The time for resolving, connecting and TLS together.
    pub connect_timeout: Duration,
    /// How long an idle connection stays open.
    pub idle_timeout: Duration,
    /// The most idle connections to one origin.
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
    /// With this guard.
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }
}

/// A transport cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot be set up")]
pub struct TransportError(#[from] rustls::Error);

/// Sends HTTP and gRPC requests. Clones share their connections and their guard.
#[derive(Debug, Clone)]
pub struct Transport(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    guard: Arc<SharedGuard>,
    factory: PoolFactory,
    pools: RwLock<Pools>,
}

#[derive(Debug, Clone)]
struct Pools {
    http: Pool,
    grpc: Pool,
}

/// Creates empty pools, at the start and when the guard changes.
struct PoolFactory {
    settings: TransportSettings,
    guard: Arc<SharedGuard>,
    http1_or_http2: TlsConnector,
    http2: TlsConnector,
}

impl Transport {
    /// Reads the root certificates of the system, and starts with empty pools.
    pub fn new(settings: TransportSettings) -> Result<Self, TransportError> {
        let (http1_or_http2, http2) = tls::connectors(&settings.extra_roots)?;
        let guard = Arc::new(SharedGuard::new(settings.guard.clone()));
        let factory = PoolFactory { settings, guard: guard.clone(), http1_or_http2, http2 };
        let pools = RwLock::new(factory.pools());
        Ok(Self(Arc::new(Shared { guard, factory, pools })))
    }

    /// The current guard.
    pub fn guard(&self) -> Arc<Guard> {
        self.0.guard.current()
    }

    /// Replaces the guard. Closes idle connections, because the previous guard allowed them; requests in progress continue.
    /// Returns false if the guard is the same.
    pub fn set_guard(&self, guard: Guard) -> bool {
        // The guard is replaced before the pools: an old pool may dial under the new guard, but a new pool never under the old one.
        if !self.0.guard.replace(guard) {
            return false;
        }
        *self.0.pools.write().unwrap_or_else(PoisonError::into_inner) = self.0.factory.pools();
        true
    }

    fn pools(&self) -> Pools {
        self.0.pools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request once and reads its answer. It follows no redirects and has no time limit: the caller may drop the future
    /// at any time and then read [`OutgoingRequest::progress`].
    pub async fn send(&self, outgoing: OutgoingRequest<'_>) -> Exchange {
        let (grpc, progress) = (outgoing.target.scheme().is_grpc(), outgoing.progress.clone());
        let pools = self.pools();
        let sent = if grpc {
            pools.grpc.request(grpc::prepare(outgoing)).await
        } else {
            pools.http.request(http::prepare(outgoing)).await
        };
        match sent {
            Ok(response) if grpc => grpc::read_response(&progress, response).await,
            Ok(response) => http::read_response(&progress, response).await,
            Err(error) => Exchange::unanswered(&progress, &error),
        }
    }
}

impl PoolFactory {
    fn pools(&self) -> Pools {
        Pools {
            http: self.pool(HttpVersions::Http1OrHttp2, &self.http1_or_http2),
            grpc: self.pool(HttpVersions::Http2Only, &self.http2),
        }
    }

    fn pool(&self, versions: HttpVersions, tls: &TlsConnector) -> Pool {
        let dialer = Dialer {
            guard: self.guard.clone(),
            resolver: self.settings.resolver.clone(),
            connect_timeout: self.settings.connect_timeout,
            tls: tls.clone(),
            versions,
        };
        builder(&self.settings, versions).build(dialer)
    }
}

impl fmt::Debug for PoolFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolFactory").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn builder(settings: &TransportSettings, versions: HttpVersions) -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(settings.idle_timeout)
        .pool_max_idle_per_host(settings.idle_per_origin_max)
        .retry_canceled_requests(true)
        // These limits bound the memory that a target can use: the headers of its answer, and data that was not read yet.
        .http1_max_buf_size(64 * 1024)
        .http2_max_header_list_size(64 * 1024)
        .http2_initial_stream_window_size(64 * 1024)
        .http2_initial_connection_window_size(1024 * 1024)
        .http2_only(versions == HttpVersions::Http2Only);
    builder
}
