//! The target of deliveries. It answers every request with 200 and records its time. It has one thread and a minimal HTTP server, so
//! that it takes little CPU time from the service.

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

/// The path that returns the number of requests. Cheap enough for polling.
const COUNT: &str = "/count";
/// The path that returns the statistics and resets them.
const STATISTICS: &str = "/statistics";
/// The time between two polls of the count.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The most headers of a request.
const HEADERS_MAX: usize = 32;

/// Statistics of the requests since they were last taken. Times are in epoch ms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ArrivalStatistics {
    /// The number of requests.
    pub count: u64,
    /// When the first one arrived.
    pub first_ms: f64,
    /// When the last one arrived.
    pub last_ms: f64,
    /// How late each request with a due time was, in ms.
    pub late_ms: Vec<f64>,
}

impl ArrivalStatistics {
    /// Requests per second, from the first to the last.
    pub fn per_s(&self) -> f64 {
        self.count.saturating_sub(1) as f64 / ((self.last_ms - self.first_ms) / 1e3)
    }

    fn record(&mut self, due_ms: Option<f64>) {
        let now = now_ms();
        if self.count == 0 {
            self.first_ms = now;
        }
        self.count += 1;
        self.last_ms = now;
        self.late_ms.extend(due_ms.map(|due| now - due));
    }
}

/// A sink in a process of its own, and a connection to it.
pub struct Sink {
    child: Child,
    connection: Connection,
}

impl Sink {
    /// Starts a sink.
    pub async fn start() -> anyhow::Result<Self> {
        let child = Child::role("sink").await?;
        Ok(Self { connection: Connection::open(child.address()).await?, child })
    }

    /// The target address of deliveries.
    pub fn target(&self) -> String {
        format!("http://{}/hooks/orders", self.child.address())
    }

    /// The name and the id of the process.
    pub fn name_and_pid(&self) -> (&'static str, u32) {
        self.child.name_and_pid()
    }

    /// Takes the statistics and resets them.
    pub async fn take(&mut self) -> anyhow::Result<ArrivalStatistics> {
        Ok(serde_json::from_slice(&self.get(STATISTICS).await?)?)
    }

    /// Waits until `expected` requests have arrived since the last [`Sink::take`].
    pub async fn wait_for_arrivals(&mut self, expected: u64, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let count: u64 = serde_json::from_slice(&self.get(COUNT).await?)?;
            if count >= expected {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "{count} of {expected} requests arrived within {timeout:?}"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Stops the sink.
    pub async fn end(self) -> anyhow::Result<()> {
        drop(self.connection);
        self.child.end().await
    }

    async fn get(&mut self, path: &'static str) -> anyhow::Result<Bytes> {
        self.connection.call(Method::GET, &Uri::from_static(path), Bytes::new(), StatusCode::OK).await
    }
}

/// Answers requests until standard input closes.
pub async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    child::print_address(listener.local_addr()?);
    let statistics = Rc::new(RefCell::new(ArrivalStatistics::default()));
    let answering = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(answer_all(stream, statistics.clone()));
        }
    };
    tokio::task::LocalSet::new()
        .run_until(async {
            tokio::select! {
                failed = answering => failed,
                () = child::stdin_closed() => Ok(()),
            }
        })
        .await
}

/// Answers one request after the other. A connection that breaks or sends invalid HTTP is closed.
async fn answer_all(mut stream: TcpStream, statistics: Rc<RefCell<ArrivalStatistics>>) -> anyhow::Result<()> {
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        while let Some((request, length)) = parse_request(&buffer)? {
            let answer = answer(request, &mut statistics.borrow_mut())?;
            buffer.drain(..length);
            stream.write_all(&answer).await?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn answer(request: SinkRequest, statistics: &mut ArrivalStatistics) -> anyhow::Result<Bytes> {
    let body = match request {
        SinkRequest::Delivery { due_ms } => {
            statistics.record(due_ms);
            return Ok(Bytes::from_static(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"));
        }
        SinkRequest::Count => statistics.count.to_string(),
        SinkRequest::Statistics => serde_json::to_string(&std::mem::take(statistics))?,
    };
    Ok(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into())
}

#[derive(Debug, PartialEq)]
enum SinkRequest {
    Count,
    Statistics,
    Delivery { due_ms: Option<f64> },
}

/// Parses the first request and its length. None while it is incomplete.
fn parse_request(buffer: &[u8]) -> anyhow::Result<Option<(SinkRequest, usize)>> {
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
    let parsed = match request.path.context("a request without a path")? {
        COUNT => SinkRequest::Count,
        STATISTICS => SinkRequest::Statistics,
        _ => SinkRequest::Delivery { due_ms: number(DUE.as_str())? },
    };
    Ok(Some((parsed, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_parsed_once_it_is_complete() {
        let request =
            b"POST /x HTTP/1.1\r\nContent-Length: 2\r\nx-due-ms: 7\r\n\r\nhiGET /count HTTP/1.1\r\n\r\n";
        let whole = request.windows(2).position(|bytes| bytes == b"hi").unwrap() + 2;
        assert_eq!(parse_request(&request[..whole - 1]).unwrap(), None);
        assert_eq!(
            parse_request(request).unwrap(),
            Some((SinkRequest::Delivery { due_ms: Some(7.0) }, whole))
        );
        assert_eq!(parse_request(&request[whole..]).unwrap().unwrap().0, SinkRequest::Count);
        assert!(parse_request(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn the_rate_counts_from_the_first_to_the_last_request() {
        let statistics =
            ArrivalStatistics { count: 101, first_ms: 5_000.0, last_ms: 5_500.0, late_ms: Vec::new() };
        assert_eq!(statistics.per_s(), 200.0);
    }
}
