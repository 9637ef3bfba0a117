//! Opens every connection: resolve, check each address by the guard, connect, TLS.
//!
//! The address that was checked is the address that is dialled: there is no second look-up in between. Each dial asks
//! the guard that holds at that moment; a transport whose guard changes also starts with empty pools, because a pooled
//! connection was dialled under the guard before.

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

use crate::guard::{Refused, SharedGuard, dialled};
use crate::local::LocalFailure;
use crate::resolve::{Resolve, ResolveError};
use crate::wire::Wire;

/// How long what was sent may stay unacknowledged before the connection counts as dead.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No address of the host may be dialled. The text is for whoever created the task: it does not say what the host
    /// resolves to.
    #[error(
        "the target may not be called: its address is not allowed here; the operator of this service can allow it with `--allow-target`"
    )]
    Refused(#[from] Refused),
    /// This node cannot open connections.
    #[error("this node could not call the target: {0}")]
    Local(LocalFailure),
    /// The host has no address.
    #[error("{host} cannot be resolved")]
    Dns {
        /// The host.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No address of the host took the connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// It took too long.
    #[error("no connection to {host} within {} ms", after.as_millis())]
    Timeout {
        /// The host.
        host: String,
        /// How long it was given.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("no TLS with {host}")]
    Tls {
        /// The host.
        host: String,
        /// What was wrong.
        source: io::Error,
    },
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The address that was dialled.
    pub address: SocketAddr,
    /// What is spoken there.
    pub protocol: Protocol,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, with or without TLS.
    Http11,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 in the clear.
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

/// Which versions of HTTP a dialer looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speak {
    /// HTTP/2 where TLS agrees on it, else HTTP/1.1.
    Either,
    /// HTTP/2 and nothing else.
    Http2,
}

/// The connector below both clients.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) guard: Arc<SharedGuard>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: TlsConnector,
    pub(crate) speak: Speak,
}

impl Dialer {
    async fn dial(self, uri: Uri) -> Result<Wire, DialError> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let deadline = Instant::now() + self.connect_timeout;
        let dialled = timeout_at(deadline, async {
            let addresses = self.permitted(&host, port).await?;
            let (stream, address) = self.connect(&host, &addresses, deadline).await?;
            if secure { self.secure(&host, stream, address).await } else { Ok(self.plain(stream, address)) }
        });
        dialled.await.unwrap_or_else(|_| Err(self.too_late(&host)))
    }

    /// The addresses of the host that may be dialled. A host that also has others is dialled at these only.
    async fn permitted(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let addresses = match host.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            Err(_) => self.resolver.resolve(host).await.map_err(|error| unresolved(host, error))?,
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
                // For the operator alone: a tenant must not learn what an internal name resolves to.
                tracing::warn!(host, %refusal, "target refused");
                Err(refusal.into())
            }
            None => {
                let none = io::Error::new(io::ErrorKind::NotFound, "it has no address");
                Err(unresolved(host, none.into()))
            }
        }
    }

    /// Tries the addresses in turn. Each gets its share of the time left, so that a dead one does not use it up.
    async fn connect(
        &self,
        host: &str,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let mut trouble = self.too_late(host);
        for (at, &address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            match timeout(share, open(address)).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(source)) => match LocalFailure::of_connect(&source, address) {
                    // The other addresses would fail in the same way.
                    Some(failure) => return Err(DialError::Local(failure)),
                    None => trouble = DialError::Connect { address, source },
                },
                Err(_) => trouble = self.too_late(host),
            }
        }
        Err(trouble)
    }

    fn plain(&self, stream: TcpStream, address: SocketAddr) -> Wire {
        let protocol = match self.speak {
            Speak::Http2 => Protocol::H2c,
            Speak::Either => Protocol::Http11,
        };
        Wire::plain(stream, Peer { address, protocol })
    }

    async fn secure(&self, host: &str, stream: TcpStream, address: SocketAddr) -> Result<Wire, DialError> {
        let failed = |source| DialError::Tls { host: host.to_owned(), source };
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned())
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let stream = self.tls.connect(name, stream).await.map_err(failed)?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::H2,
            Some(_) | None if self.speak == Speak::Http2 => {
                return Err(failed(io::Error::new(io::ErrorKind::Unsupported, "it does not speak HTTP/2")));
            }
            Some(_) | None => Protocol::Http11,
        };
        Ok(Wire::tls(stream, Peer { address, protocol }))
    }

    fn too_late(&self, host: &str) -> DialError {
        DialError::Timeout { host: host.to_owned(), after: self.connect_timeout }
    }
}

fn unresolved(host: &str, error: ResolveError) -> DialError {
    match error {
        ResolveError::Failed(source) => DialError::Dns { host: host.to_owned(), source },
        ResolveError::Local(failure) => DialError::Local(failure),
    }
}

/// Small requests leave at once instead of waiting for more, and a peer that vanished is noticed by the system.
///
/// Requests share an HTTP/2 connection, so all of them would hang on a dead one. gRPC servers hang up on clients that
/// ping often, so the system has to find out: by what is not acknowledged, and by asking when nothing is sent.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let asking = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&asking)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(stream)
}

impl tower_service::Service<Uri> for Dialer {
    type Response = Wire;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Wire, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}
