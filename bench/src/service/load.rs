//! Sends requests over many connections, each as soon as the previous one was answered.

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
/// Requests before the measurement, to open connections and fill caches and pools.
const WARM_UP: Duration = Duration::from_millis(500);
/// The timeout of the last request of each connection.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of a load.
pub struct LoadResult {
    /// Answers per second.
    pub per_s: f64,
    /// Answers in total, including those before and after the measurement.
    pub answers: u64,
    /// The mean size of an answer.
    pub answer_bytes: f64,
    /// The cores that each process used.
    pub cores: Vec<(&'static str, f64)>,
}

/// Posts bodies to `path` for `duration`, and expects the status 201. `make` returns the body by its number.
pub async fn post(
    address: SocketAddr,
    path: &'static str,
    duration: Duration,
    process: (&'static str, u32),
    make: impl Fn(u64) -> Bytes + Send + Sync + 'static,
) -> anyhow::Result<LoadResult> {
    let count = Arc::new(LoadCounters::default());
    let make = Arc::new(make);
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        connections.spawn(repeat(address, Uri::from_static(path), count.clone(), make.clone()));
    }
    tokio::time::sleep(WARM_UP).await;
    let (meter, began, [answers, bytes]) = (Meter::start(&[process])?, Instant::now(), count.read());
    tokio::time::sleep(duration).await;
    let (elapsed, [answers_at_end, bytes_at_end], cores) = (began.elapsed(), count.read(), meter.stop()?);
    count.stop.store(true, Ordering::Relaxed);
    let ended = timeout(LAST_RESPONSE_TIMEOUT, connections.join_all()).await;
    let ended: anyhow::Result<()> = ended
        .with_context(|| format!("{path} did not answer within {LAST_RESPONSE_TIMEOUT:?}"))?
        .into_iter()
        .collect();
    ended?;
    let answers = (answers_at_end - answers) as f64;
    anyhow::ensure!(answers > 0.0, "{path} answered nothing within {duration:?}");
    Ok(LoadResult {
        answers: count.answers.load(Ordering::Relaxed),
        per_s: answers / elapsed.as_secs_f64(),
        answer_bytes: (bytes_at_end - bytes) as f64 / answers,
        cores,
    })
}

/// The requests and answers of all connections so far.
#[derive(Default)]
struct LoadCounters {
    requests: AtomicU64,
    answers: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl LoadCounters {
    fn read(&self) -> [u64; 2] {
        [&self.answers, &self.bytes].map(|count| count.load(Ordering::Relaxed))
    }
}

async fn repeat(
    address: SocketAddr,
    path: Uri,
    count: Arc<LoadCounters>,
    make: Arc<impl Fn(u64) -> Bytes>,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    while !count.stop.load(Ordering::Relaxed) {
        let body = make(count.requests.fetch_add(1, Ordering::Relaxed));
        let answer = connection.call(Method::POST, &path, body, StatusCode::CREATED).await?;
        count.answers.fetch_add(1, Ordering::Relaxed);
        count.bytes.fetch_add(answer.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
