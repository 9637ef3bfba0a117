//! The target of deliveries: answers 200 to everything at once, and stamps what arrives. As little of HTTP as will do,
//! on one thread, so that it takes little from what is measured.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::child::{self, Child};
use super::client::Connection;
use super::lateness::now_ms;
use super::request::DUE;

/// Where the sink tells how many have arrived; cheap enough to be asked often.
const COUNT: &str = "/count";
/// Where the sink tells all it knows, and begins anew.
const TALLY: &str = "/tally";
/// Time from one look at the count to the next.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Headers of a request at most.
const HEADERS_MAX: usize = 32;

/// What has arrived since the last time it was asked for. Times are in epoch ms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Requests.
    pub count: u64,
    /// When the first came.
    pub first_ms: f64,
    /// When the last came.
    pub last_ms: f64,
    /// How late each was that said when it was due, in ms.
    pub late_ms: Vec<f64>,
}

impl Tally {
    /// Requests per second from the first to the last.
    pub fn per_s(&self) -> f64 {
        self.count.saturating_sub(1) as f64 / ((self.last_ms - self.first_ms) / 1e3)
    }

    fn note(&mut self, due_ms: Option<f64>) {
        let now = now_ms();
        if self.count == 0 {
            self.first_ms = now;
        }
        self.count += 1;
        self.last_ms = now;
        self.late_ms.extend(due_ms.map(|due| now - due));
    }
}

/// A sink in a process of its own, and a connection to ask it.
pub struct Sink {
    child: Child,
    connection: Connection,
}

impl Sink {
    /// Starts it.
    pub async fn start() -> anyhow::Result<Self> {
        let child = Child::role("sink").await?;
        Ok(Self { connection: Connection::open(child.address()).await?, child })
    }

    /// Where deliveries go.
    pub fn target(&self) -> String {
        format!("http://{}/hooks/orders", self.child.address())
    }

    /// Its name and id.
    pub fn watched(&self) -> (&'static str, u32) {
        self.child.watched()
    }

    /// What has arrived since this was last asked for.
    pub async fn take(&mut self) -> anyhow::Result<Tally> {
        Ok(serde_json::from_slice(&self.ask(TALLY).await?)?)
    }

    /// Waits until as many as `expected` have arrived since the last [`Sink::take`].
    pub async fn until(&mut self, expected: u64, within: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let count: u64 = serde_json::from_slice(&self.ask(COUNT).await?)?;
            if count >= expected {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "{count} of {expected} arrived within {within:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends it.
    pub async fn end(self) -> anyhow::Result<()> {
        drop(self.connection);
        self.child.end().await
    }

    async fn ask(&mut self, path: &'static str) -> anyhow::Result<Bytes> {
        self.connection.call(Method::GET, &Uri::from_static(path), Bytes::new(), StatusCode::OK).await
    }
}

/// Answers until the input ends.
pub async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    child::say(listener.local_addr()?);
    let tally = Rc::new(RefCell::new(Tally::default()));
    let answering = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(answer_all(stream, tally.clone()));
        }
    };
    tokio::task::LocalSet::new()
        .run_until(async {
            tokio::select! {
                failed = answering => failed,
                () = child::input_ended() => Ok(()),
            }
        })
        .await
}

/// Answers one request after the other. A connection that breaks or speaks no HTTP is closed; its client tells.
async fn answer_all(mut stream: TcpStream, tally: Rc<RefCell<Tally>>) -> anyhow::Result<()> {
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        while let Some((asked, length)) = read(&buffer)? {
            let answer = answer(asked, &mut tally.borrow_mut())?;
            buffer.drain(..length);
            stream.write_all(&answer).await?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn answer(asked: Asked, tally: &mut Tally) -> anyhow::Result<Bytes> {
    let told = match asked {
        Asked::Delivery { due_ms } => {
            tally.note(due_ms);
            return Ok(Bytes::from_static(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"));
        }
        Asked::Count => tally.count.to_string(),
        Asked::Tally => serde_json::to_string(&std::mem::take(tally))?,
    };
    Ok(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{told}", told.len()).into())
}

#[derive(Debug, PartialEq)]
enum Asked {
    Count,
    Tally,
    Delivery { due_ms: Option<f64> },
}

/// The request at the front and its length; none while it has not come whole.
fn read(buffer: &[u8]) -> anyhow::Result<Option<(Asked, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(buffer)? else { return Ok(None) };
    let number = |name: &str| -> anyhow::Result<Option<f64>> {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| Ok(std::str::from_utf8(header.value)?.parse()?)).transpose()
    };
    let length = head + number("content-length")?.unwrap_or_default() as usize;
    if buffer.len() < length {
        return Ok(None);
    }
    let asked = match request.path.context("a request without a path")? {
        COUNT => Asked::Count,
        TALLY => Asked::Tally,
        _ => Asked::Delivery { due_ms: number(DUE.as_str())? },
    };
    Ok(Some((asked, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_once_it_is_whole() {
        let request =
            b"POST /x HTTP/1.1\r\nContent-Length: 2\r\nx-due-ms: 7\r\n\r\nhiGET /count HTTP/1.1\r\n\r\n";
        let whole = request.windows(2).position(|bytes| bytes == b"hi").unwrap() + 2;
        assert_eq!(read(&request[..whole - 1]).unwrap(), None);
        assert_eq!(read(request).unwrap(), Some((Asked::Delivery { due_ms: Some(7.0) }, whole)));
        assert_eq!(read(&request[whole..]).unwrap().unwrap().0, Asked::Count);
        assert!(read(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn the_rate_is_that_between_the_first_and_the_last() {
        let tally = Tally { count: 101, first_ms: 5_000.0, last_ms: 5_500.0, late_ms: Vec::new() };
        assert_eq!(tally.per_s(), 200.0);
    }
}
