//! Checks whether the name servers answer at all. A single name without an answer does not show that.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::transport::local::LocalFailure;

/// How long a query may take before the name servers are checked.
const ANSWER_EXPECTED: Duration = Duration::from_millis(500);
/// How long a name server has to answer a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a check is sent in that time, because packets get lost.
const CHECK_SENDS: u32 = 3;
/// How long the result of a check is valid, and the time between checks of servers that are down.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Queries that a name server answers by itself: the root servers, and localhost.
const QUERIES: [&[u8]; 2] = [b"\x00\x00\x02\x00\x01", b"\x09localhost\x00\x00\x01\x00\x01"];
/// The size of id, flags and counts of a message.
const HEADER_BYTES: usize = 12;

/// The name servers of one configuration.
pub(super) struct NameServers {
    addresses: Vec<SocketAddr>,
    /// Whether no server answered the last check. Then a background task checks again until one answers.
    down: AtomicBool,
    /// The last check. The lock is held during a check, so that only one runs at a time.
    checked: tokio::sync::Mutex<Option<(Instant, Result<(), LocalFailure>)>>,
}

impl NameServers {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, down: AtomicBool::new(false), checked: tokio::sync::Mutex::new(None) }
    }

    /// Returns when no name server answers: at once if that is known, never while one answers.
    ///
    /// A slow query alone does not show that. If the servers of one domain are dead, the local name server does not answer queries for
    /// that domain, and a task to it must not stop other tasks.
    pub(super) async fn wait_until_down(self: &Arc<Self>) -> LocalFailure {
        if self.down.load(Ordering::Acquire) {
            return LocalFailure::Resolver;
        }
        sleep(ANSWER_EXPECTED).await;
        match self.check().await {
            Err(failure) => failure,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Whether any name server answers, as of at most [`CHECK_EVERY`] ago.
    pub(super) async fn check(self: &Arc<Self>) -> Result<(), LocalFailure> {
        let mut checked = self.checked.lock().await;
        if let Some((at, result)) = *checked
            && at.elapsed() < CHECK_EVERY
        {
            return result;
        }
        let result = self.probe_all().await;
        *checked = Some((Instant::now(), result));
        if result == Err(LocalFailure::Resolver) && !self.down.swap(true, Ordering::AcqRel) {
            tracing::warn!(name_servers = ?self.addresses, "no name server answers");
            tokio::spawn(check_until_one_answers(Arc::downgrade(self)));
        }
        result
    }

    /// Sends a check to all name servers. Any answer counts.
    async fn probe_all(&self) -> Result<(), LocalFailure> {
        let mut probes: JoinSet<io::Result<()>> = JoinSet::new();
        for &address in &self.addresses {
            probes.spawn(async move {
                timeout(CHECK_TIMEOUT, probe(address))
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            });
        }
        let mut failure = LocalFailure::Resolver;
        while let Some(probed) = probes.join_next().await {
            match probed {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => failure = LocalFailure::from_io(&error).unwrap_or(failure),
                Err(_) => {}
            }
        }
        Err(failure)
    }
}

/// Checks servers that are down until one answers, or until the configuration is dropped.
async fn check_until_one_answers(servers: std::sync::Weak<NameServers>) {
    loop {
        sleep(CHECK_EVERY).await;
        let Some(servers) = servers.upgrade() else { return };
        if servers.probe_all().await.is_ok() {
            tracing::info!("a name server answers again");
            *servers.checked.lock().await = None;
            servers.down.store(false, Ordering::Release);
            return;
        }
    }
}

/// Sends queries until an answer comes.
async fn probe(server: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id = fastrand::u16(..).to_be_bytes();
    loop {
        for query in QUERIES {
            // Recursion desired, one question.
            let header = [id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            socket.send(&[&header, query].concat()).await?;
        }
        if let Ok(answered) = timeout(CHECK_TIMEOUT / CHECK_SENDS, receive(&socket, id)).await {
            return answered;
        }
    }
}

/// Waits for a response to the query with this id.
async fn receive(socket: &UdpSocket, id: [u8; 2]) -> io::Result<()> {
    let mut message = [0; 512];
    loop {
        let length = socket.recv(&mut message).await?;
        let is_response = message[2] & 0x80 != 0;
        if length >= HEADER_BYTES && message[..2] == id && is_response {
            return Ok(());
        }
    }
}
