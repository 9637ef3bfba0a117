//! Whether the name servers answer at all. A name that nobody can look up says nothing about them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::local::LocalFailure;

/// How long a look-up may stay without an answer before the name servers are checked.
const ANSWER_EXPECTED: Duration = Duration::from_millis(500);
/// How long a name server has to answer a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Times that a check is sent in that time, because packets get lost.
const CHECK_SENDS: u32 = 3;
/// How long the result of a check holds, and the time between checks of servers that are down.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Questions that a name server answers by itself: the servers of the root, and localhost.
const QUESTIONS: [&[u8]; 2] = [b"\x00\x00\x02\x00\x01", b"\x09localhost\x00\x00\x01\x00\x01"];
/// A message's id, flags and counts.
const HEADER_BYTES: usize = 12;

/// The name servers of one configuration.
pub(super) struct NameServers {
    addresses: Vec<SocketAddr>,
    /// No server answered the last check; a task of its own checks again until one does.
    down: AtomicBool,
    /// The last check. The lock is held during a check, so that there is one at a time.
    checked: tokio::sync::Mutex<Option<(Instant, Result<(), LocalFailure>)>>,
}

impl NameServers {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, down: AtomicBool::new(false), checked: tokio::sync::Mutex::new(None) }
    }

    /// Waits until no name server answers any more: at once while that is known, never while they are fine.
    ///
    /// A look-up that takes long is not enough. The servers of one name may be dead, and then the local name server is
    /// silent about this name only; a task to such a name must not stop the others.
    pub(super) async fn fell_silent(self: &Arc<Self>) -> LocalFailure {
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
        let result = self.ask().await;
        *checked = Some((Instant::now(), result));
        if result == Err(LocalFailure::Resolver) && !self.down.swap(true, Ordering::AcqRel) {
            tracing::warn!(name_servers = ?self.addresses, "no name server answers");
            tokio::spawn(watch(Arc::downgrade(self)));
        }
        result
    }

    /// Asks all of them. Any answer counts, whatever it says.
    async fn ask(&self) -> Result<(), LocalFailure> {
        let mut asking: JoinSet<io::Result<()>> = JoinSet::new();
        for &address in &self.addresses {
            asking.spawn(async move {
                timeout(CHECK_TIMEOUT, ask(address))
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            });
        }
        let mut failure = LocalFailure::Resolver;
        while let Some(asked) = asking.join_next().await {
            match asked {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => failure = LocalFailure::of(&error).unwrap_or(failure),
                Err(_) => {}
            }
        }
        Err(failure)
    }
}

/// Checks servers that are down until one answers, or until nobody needs them any more.
async fn watch(servers: std::sync::Weak<NameServers>) {
    loop {
        sleep(CHECK_EVERY).await;
        let Some(servers) = servers.upgrade() else { return };
        if servers.ask().await.is_ok() {
            tracing::info!("a name server answers again");
            *servers.checked.lock().await = None;
            servers.down.store(false, Ordering::Release);
            return;
        }
    }
}

/// Sends questions until an answer comes.
async fn ask(server: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id = fastrand::u16(..).to_be_bytes();
    loop {
        for question in QUESTIONS {
            // Recursion desired, one question.
            let header = [id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            socket.send(&[&header, question].concat()).await?;
        }
        if let Ok(answered) = timeout(CHECK_TIMEOUT / CHECK_SENDS, answer(&socket, id)).await {
            return answered;
        }
    }
}

/// Waits for a response to the message with this id.
async fn answer(socket: &UdpSocket, id: [u8; 2]) -> io::Result<()> {
    let mut message = [0; 512];
    loop {
        let length = socket.recv(&mut message).await?;
        let is_response = message[2] & 0x80 != 0;
        if length >= HEADER_BYTES && message[..2] == id && is_response {
            return Ok(());
        }
    }
}
