//! Opens every connection: resolves the host, checks each address with the guard, connects, and starts TLS.
//!
//! The address that was checked is the address that is dialled; nothing resolves the host a second time. Each dial uses the
//! current guard. When the guard changes, the transport also drops its pools, because their connections were dialled under the
//! previous one.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::guard::{GuardError, SharedGuard, dialled};
use crate::resolve::{Resolve, ResolveError};
use crate::transport::connection::TargetConnection;
use crate::transport::local::LocalFailure;

/// How long sent data may stay unacknowledged before the connection counts as dead.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Why a connection could not be opened. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No address of the host may be dialled. The creator of the task reads this text, so it does not contain the address.
    #[error(
        "the target may not be called: its address is not allowed here; the operator of this service can allow it with `--allow-target`"
    )]
    Refused(#[from] GuardError),
    /// This node cannot open connections.
    #[error("this node could not call the target: {0}")]
    Local(LocalFailure),
    /// The host has no address.
    #[error("{host} cannot be resolved")]
    Dns {
        /// The host.
        host: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// No address of the host accepted a connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The time limit ran out.
    #[error("no connection to {host} within {} ms", after.as_millis())]
    Timeout {
        /// The host.
        host: String,
        /// The limit.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake with {host} failed")]
    Tls {
        /// The host.
        host: String,
        /// The error of the handshake.
        source: io::Error,
    },
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The address that was dialled.
    pub address: SocketAddr,
    /// The protocol of the connection.
    pub protocol: Protocol,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, with or without TLS.
    Http11,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 without TLS.
    H2c,
}

impl Protocol {
    /// Its ALPN name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http11 => "http/1.1",
            Self::H2 => "h2",
            Self::H2c => "h2c",
        }
    }
}

/// The versions of HTTP that a dialer accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpVersions {
    /// HTTP/2 if TLS negotiates it, else HTTP/1.1.
    Http1OrHttp2,
    /// HTTP/2 only.
    Http2Only,
}

/// Opens the connections of both clients.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) guard: Arc<SharedGuard>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: TlsConnector,
    pub(crate) versions: HttpVersions,
}

impl Dialer {
    async fn dial(self, uri: Uri) -> Result<TargetConnection, DialError> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let deadline = Instant::now() + self.connect_timeout;
        let connection = timeout_at(deadline, async {
            let addresses = self.permitted_addresses(&host, port).await?;
            let (stream, address) = self.connect(&host, &addresses, deadline).await?;
            if secure { self.secure(&host, stream, address).await } else { Ok(self.plain(stream, address)) }
        });
        connection.await.unwrap_or_else(|_| Err(self.timeout_error(&host)))
    }

    /// The addresses of the host that the guard allows. Others are left out.
    async fn permitted_addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let addresses = match host.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            Err(_) => self.resolver.resolve(host).await.map_err(|error| resolution_error(host, error))?,
        };
        let guard = self.guard.current();
        let mut refused = None;
        let mut permitted = Vec::with_capacity(addresses.len());
        for address in addresses {
            match guard.check(address) {
                Ok(()) => permitted.push(SocketAddr::new(dialled(address), port)),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        match refused {
            _ if !permitted.is_empty() => Ok(permitted),
            Some(refusal) => {
                // Only for the operator: a tenant must not learn what an internal name resolves to.
                tracing::warn!(host, %refusal, "refused to call a target");
                Err(refusal.into())
            }
            None => {
                let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                Err(resolution_error(host, none.into()))
            }
        }
    }

    /// Tries the addresses one after the other. Each gets its share of the remaining time, so that a dead one does not use it up.
    async fn connect(
        &self,
        host: &str,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let mut failure = self.timeout_error(host);
        for (at, &address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            match timeout(share, open(address)).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(source)) => match LocalFailure::from_connect(&source, address) {
                    // The other addresses would fail in the same way.
                    Some(failure) => return Err(DialError::Local(failure)),
                    None => failure = DialError::Connect { address, source },
                },
                Err(_) => failure = self.timeout_error(host),
            }
        }
        Err(failure)
    }

    fn plain(&self, stream: TcpStream, address: SocketAddr) -> TargetConnection {
        let protocol = match self.versions {
            HttpVersions::Http2Only => Protocol::H2c,
            HttpVersions::Http1OrHttp2 => Protocol::Http11,
        };
        TargetConnection::plain(stream, Peer { address, protocol })
    }

    async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<TargetConnection, DialError> {
        let failed = |source| DialError::Tls { host: host.to_owned(), source };
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let stream = self.tls.connect(name, stream).await.map_err(failed)?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::H2,
            Some(_) | None if self.versions == HttpVersions::Http2Only => {
                return Err(failed(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the server does not support HTTP/2",
                )));
            }
            Some(_) | None => Protocol::Http11,
        };
        Ok(TargetConnection::tls(stream, Peer { address, protocol }))
    }

    fn timeout_error(&self, host: &str) -> DialError {
        DialError::Timeout { host: host.to_owned(), after: self.connect_timeout }
    }
}

fn resolution_error(host: &str, error: ResolveError) -> DialError {
    match error {
        ResolveError::Failed(source) => DialError::Dns { host: host.to_owned(), source },
        ResolveError::Local(failure) => DialError::Local(failure),
    }
}

/// Opens a TCP connection. Small requests are sent at once, and the system detects a peer that has vanished.
///
/// Many requests share an HTTP/2 connection, so all of them would hang on a dead one. gRPC servers disconnect clients that ping
/// often, so the system detects dead peers instead: by unacknowledged data, and by TCP keepalive on idle connections.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(stream)
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TargetConnection;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<TargetConnection, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}
