//! Requests from many connections at once, as many as are answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::Connection;
use super::cpu::Meter;

/// Connections at once.
pub const CONNECTIONS: usize = 64;
/// Requests before the count begins: connections are opened, caches and pools fill.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the last request of each connection may take.
const LAST_ANSWER: Duration = Duration::from_secs(20);

/// What came of it.
pub struct Burst {
    /// Answers per second.
    pub per_s: f64,
    /// The mean size of an answer.
    pub answer_bytes: f64,
    /// Cores that each process used meanwhile.
    pub cores: Vec<(&'static str, f64)>,
}

/// Posts what `make` makes of a running number to `path`, for `lasting`, and expects a 201 for each.
pub async fn post(
    address: SocketAddr,
    path: &'static str,
    lasting: Duration,
    watched: (&'static str, u32),
    make: impl Fn(u64) -> Bytes + Send + Sync + 'static,
) -> anyhow::Result<Burst> {
    let count = Arc::new(Count::default());
    let make = Arc::new(make);
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        connections.spawn(repeat(address, Uri::from_static(path), count.clone(), make.clone()));
    }
    tokio::time::sleep(WARM_UP).await;
    let (meter, began, [answers, bytes]) = (Meter::start(&[watched])?, Instant::now(), count.read());
    tokio::time::sleep(lasting).await;
    let (elapsed, [answers_then, bytes_then], cores) = (began.elapsed(), count.read(), meter.stop()?);
    count.enough.store(true, Ordering::Relaxed);
    let ended = timeout(LAST_ANSWER, connections.join_all()).await;
    let ended: anyhow::Result<()> =
        ended.with_context(|| format!("{path} did not answer within {LAST_ANSWER:?}"))?.into_iter().collect();
    ended?;
    let answers = (answers_then - answers) as f64;
    anyhow::ensure!(answers > 0.0, "{path} answered nothing within {lasting:?}");
    Ok(Burst {
        per_s: answers / elapsed.as_secs_f64(),
        answer_bytes: (bytes_then - bytes) as f64 / answers,
        cores,
    })
}

/// What all connections have done so far.
#[derive(Default)]
struct Count {
    asked: AtomicU64,
    answers: AtomicU64,
    bytes: AtomicU64,
    enough: AtomicBool,
}

impl Count {
    fn read(&self) -> [u64; 2] {
        [&self.answers, &self.bytes].map(|count| count.load(Ordering::Relaxed))
    }
}

async fn repeat(
    address: SocketAddr,
    path: Uri,
    count: Arc<Count>,
    make: Arc<impl Fn(u64) -> Bytes>,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    while !count.enough.load(Ordering::Relaxed) {
        let body = make(count.asked.fetch_add(1, Ordering::Relaxed));
        let answer = connection.call(Method::POST, &path, body, StatusCode::CREATED).await?;
        count.answers.fetch_add(1, Ordering::Relaxed);
        count.bytes.fetch_add(answer.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
