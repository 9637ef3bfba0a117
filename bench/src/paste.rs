//! Measures `apps/paste` as a process. Requests are sent at a fixed rate, whether or not earlier ones were answered, and each is timed from
//! the moment when it was due.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::figures::{Bar, Figure, Samples};
use crate::service::child::Child;
use crate::service::client::Connection;
use crate::setup;

/// Connections at once.
const CONNECTIONS: u64 = 64;
/// The number of pastes that are read repeatedly.
const READ_PASTES: usize = 50;
/// Requests before the measurement, to open connections and fill caches.
const WARM_UP: Duration = Duration::from_secs(1);
/// The time in which a paste must become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// How long requests are counted in each repeat.
    pub duration: Duration,
    /// Repeats.
    pub repeats: usize,
}

impl Size {
    /// The size by which the bars are judged. Takes two minutes.
    pub const FULL: Self = Self { duration: Duration::from_secs(10), repeats: 5 };
    /// A short run. Takes less than half a minute.
    pub const QUICK: Self = Self { duration: Duration::from_secs(3), repeats: 3 };
}

/// A kind of request, its rate, and the bar for its p99.
struct Load {
    name: &'static str,
    per_s: u64,
    p99_ms: f64,
}

const CREATES: Load = Load { name: "creates", per_s: 200, p99_ms: 100.0 };
const READS: Load = Load { name: "cached reads", per_s: 3_000, p99_ms: 50.0 };

/// Measures the site at `program`, on SQLite and a folder. Calls `progress` with the name of each measurement.
pub fn measure(program: &Path, size: Size, mut progress: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = Vec::new();
        for load in [CREATES, READS] {
            progress(load.name);
            let mut results = Vec::new();
            for _ in 0..size.repeats {
                results.push(repeat(&program, &load, size.duration).await?);
            }
            figures.extend(load.figures(&results));
        }
        Ok(figures)
    })
}

impl Load {
    fn figures(&self, results: &[LoadResult]) -> Vec<Figure> {
        let figure = |what: &str, unit, of: fn(&LoadResult) -> f64, bar| Figure {
            name: format!("{} at {}/s, {what}", self.name, self.per_s),
            unit,
            ours: Samples::of(results.iter().map(of)),
            other: None,
            bar,
        };
        vec![
            // The count may miss requests at its start and its end, less than 1 % of all requests.
            figure("answered", "/s", |result| result.per_s, Some(Bar::AtLeast(self.per_s as f64 * 0.99))),
            figure("median", "ms", |result| result.latencies_ms.median(), None),
            figure("p99", "ms", |result| result.latencies_ms.quantile(0.99), Some(Bar::AtMost(self.p99_ms))),
        ]
    }
}

/// The result of one repeat.
struct LoadResult {
    per_s: f64,
    latencies_ms: Samples,
}

/// Measures one repeat on a new site.
async fn repeat(program: &Path, load: &Load, duration: Duration) -> anyhow::Result<LoadResult> {
    let folder = setup::folder()?;
    let child = Child::paste(program, folder.path()).await?;
    let address = child.address();
    let result = if load.name == CREATES.name {
        send_load(address, load.per_s, duration, Arc::new(create)).await?
    } else {
        let paths = ready_pastes(address).await?;
        let read = move |number: u64| Request {
            method: Method::GET,
            path: paths[number as usize % paths.len()].clone(),
            body: Bytes::new(),
            expected: StatusCode::OK,
        };
        send_load(address, load.per_s, duration, Arc::new(read)).await?
    };
    child.end().await?;
    folder.close()?;
    Ok(result)
}

/// One request.
struct Request {
    method: Method,
    path: Uri,
    body: Bytes,
    expected: StatusCode,
}

/// A unique paste of about a kilobyte.
fn create(number: u64) -> Request {
    let content = format!("paste {number} {:x}\n", uuid::Uuid::now_v7()).repeat(16);
    Request {
        method: Method::POST,
        path: Uri::from_static("/api/v1/pastes"),
        body: json!({"content": content, "expiryDays": 1}).to_string().into(),
        expected: StatusCode::CREATED,
    }
}

/// Creates pastes, waits until they are ready, and reads each once.
async fn ready_pastes(address: SocketAddr) -> anyhow::Result<Vec<Uri>> {
    let mut connection = Connection::open(address).await?;
    let mut paths = Vec::new();
    for number in 0..READ_PASTES as u64 {
        let Request { method, path, body, expected } = create(number);
        let created = connection.call(method, &path, body, expected).await?;
        let created: serde_json::Value = serde_json::from_slice(&created)?;
        let code = created["data"]["shortCode"].as_str().context("a paste has no code")?;
        paths.push(format!("/raw/{code}").parse::<Uri>()?);
    }
    for path in &paths {
        let ready = async {
            while connection.call(Method::GET, path, Bytes::new(), StatusCode::OK).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, ready).await.with_context(|| format!("{path} was never ready"))?;
    }
    Ok(paths)
}

/// Sends requests at a fixed rate over all connections, and measures those after the warm-up.
async fn send_load(
    address: SocketAddr,
    per_s: u64,
    duration: Duration,
    make: Arc<impl Fn(u64) -> Request + Send + Sync + 'static>,
) -> anyhow::Result<LoadResult> {
    let began = Instant::now() + Duration::from_millis(100);
    let due = move |number: u64| began + Duration::from_secs_f64(number as f64 / per_s as f64);
    let (counts_from, ends) = (began + WARM_UP, began + WARM_UP + duration);
    let mut connections = JoinSet::new();
    for first in 0..CONNECTIONS {
        let make = make.clone();
        connections.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut latencies_ms = Vec::new();
            for number in (first..).step_by(CONNECTIONS as usize).take_while(|number| due(*number) < ends) {
                let Request { method, path, body, expected } = make(number);
                tokio::time::sleep_until(due(number)).await;
                connection.call(method, &path, body, expected).await?;
                if due(number) >= counts_from {
                    latencies_ms.push(due(number).elapsed().as_secs_f64() * 1_000.0);
                }
            }
            anyhow::Ok((latencies_ms, Instant::now()))
        });
    }
    let (mut latencies_ms, mut last) = (Vec::new(), ends);
    for connection in connections.join_all().await {
        let (latencies, ended) = connection?;
        latencies_ms.extend(latencies);
        last = last.max(ended);
    }
    let per_s = latencies_ms.len() as f64 / (last - counts_from).as_secs_f64();
    Ok(LoadResult { per_s, latencies_ms: Samples::of(latencies_ms) })
}
