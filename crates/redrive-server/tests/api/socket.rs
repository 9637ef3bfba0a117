//! A service on a real socket with configurable limits, and clients that write raw bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Outcome;
use redrive_server::keys::{self, NewKey};
use redrive_server::{Config, ListenLimits, Roles, Service};
use redrive_store_sqlite::SqliteStore;
use redrive_wire::Scope;
use redrive_worker::Context;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::stage::parts;

/// The timeout of every wait in these tests. It is long enough for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// A limit of the listener that a test waits for.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

/// A service that listens on loopback until it is dropped.
pub(crate) struct ListeningService {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<SqliteStore>,
    _closing: DropGuard,
}

impl ListeningService {
    pub(crate) async fn start(limits: ListenLimits) -> Self {
        Self::on(Arc::new(SqliteStore::open_in_memory().unwrap()), limits).await
    }

    /// Starts a service that has an admin key.
    pub(crate) async fn with_key(limits: ListenLimits) -> (Self, String) {
        let store = Arc::new(SqliteStore::open_in_memory().unwrap());
        let key = admin_key(&store).await;
        (Self::on(store, limits).await, key)
    }

    async fn on(store: Arc<SqliteStore>, limits: ListenLimits) -> Self {
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            roles: Roles { api: true, worker: false },
            limits,
            ..Config::default()
        };
        let service = Service::start_with(config, store.clone(), parts(), done).await.unwrap();
        let address = service.address().unwrap();
        let closing = CancellationToken::new();
        tokio::spawn(service.run_until(closing.clone().cancelled_owned()));
        Self { address, store, _closing: closing.drop_guard() }
    }

    /// A client at 127.0.0.1.
    pub(crate) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// A client at 127.0.0.`host`.
    pub(crate) async fn connect_from(&self, host: u8) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
        Client(socket.connect(self.address).await.unwrap())
    }

    /// Sends a request on a new connection from 127.0.0.1.
    pub(crate) async fn get(&self, path: &str) -> HttpAnswer {
        self.connect().await.ask("GET", path, &[], b"").await
    }

    /// Repeats a request until the response has this status.
    pub(crate) async fn get_until(&self, path: &str, status: u16) {
        let asking = async {
            while self.get(path).await.status != status {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, asking).await.unwrap_or_else(|_| panic!("GET {path} did not return {status}"));
    }
}

pub(crate) async fn admin_key(store: &SqliteStore) -> String {
    let new = NewKey::new("test", Scope::Admin);
    keys::create(store, new, Default::default()).await.unwrap().1
}

/// An HTTP response as the client received it.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The status and the code of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body)
            .unwrap_or_else(|_| panic!("the body is not a problem: {self:?}"));
        (self.status, body["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// A connection to the service.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Sends a whole request and reads the response.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpAnswer {
        self.begin(method, path, headers, body.len()).await;
        // The server may have answered and closed the connection before it read the whole body.
        let _ = self.0.write_all(body).await;
        self.answer().await
    }

    /// Sends the head of a request.
    pub(crate) async fn begin(&mut self, method: &str, path: &str, headers: &[(&str, &str)], length: usize) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if length > 0 {
            head += &format!("Content-Length: {length}\r\nContent-Type: application/json\r\n");
        }
        self.write((head + "\r\n").as_bytes()).await;
    }

    /// Reads one response. Its body must have a Content-Length.
    pub(crate) async fn answer(&mut self) -> HttpAnswer {
        timeout(TIMEOUT, self.read_answer()).await.expect("a response")
    }

    async fn read_answer(&mut self) -> HttpAnswer {
        let mut read = Vec::new();
        let end = loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.read_more(&mut read).await;
        };
        let head = String::from_utf8_lossy(&read[..end]).into_owned();
        let status =
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        let mut got = HttpAnswer { status, head, body: String::new() };
        let length: usize = got.header("content-length").map_or(0, |length| length.parse().unwrap());
        while read.len() < end + length {
            self.read_more(&mut read).await;
        }
        got.body = String::from_utf8_lossy(&read[end..end + length]).into_owned();
        got
    }

    async fn read_more(&mut self, read: &mut Vec<u8>) {
        let count = self.0.read_buf(read).await.unwrap();
        assert!(count > 0, "the connection ended: {:?}", String::from_utf8_lossy(read));
    }

    /// Waits until the server closes the connection, and returns what it sent before.
    pub(crate) async fn wait_until_closed(&mut self, what: &str) -> String {
        let mut rest = Vec::new();
        let ended = timeout(TIMEOUT, self.0.read_to_end(&mut rest)).await;
        // A reset also closes the connection.
        let _ = ended.unwrap_or_else(|_| panic!("{what}: the connection is still open"));
        String::from_utf8_lossy(&rest).into_owned()
    }
}
