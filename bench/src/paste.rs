//! Measures `apps/paste` as its users meet it: requests come at a fixed rate, whether earlier ones have been answered or
//! not, and each is timed from when it was due.

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
use crate::scene;
use crate::service::child::Child;
use crate::service::client::Connection;

/// Connections at once.
const CONNECTIONS: u64 = 64;
/// Pastes that are read again and again.
const READ_PASTES: usize = 50;
/// Requests before those that count: connections are opened, caches fill.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long a paste may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// How long requests are counted in each repeat.
    pub lasting: Duration,
    /// How often.
    pub repeats: usize,
}

impl Size {
    /// What the bars are judged by; two minutes.
    pub const FULL: Self = Self { lasting: Duration::from_secs(10), repeats: 5 };
    /// Less than half a minute.
    pub const QUICK: Self = Self { lasting: Duration::from_secs(3), repeats: 3 };
}

/// What is asked at which rate, and how late the hundredth part of the answers may be.
struct Load {
    name: &'static str,
    per_s: u64,
    p99_ms: f64,
}

const CREATES: Load = Load { name: "creates", per_s: 200, p99_ms: 100.0 };
const READS: Load = Load { name: "cached reads", per_s: 3_000, p99_ms: 50.0 };

/// Measures the site at `program`, on SQLite and a folder; `said` hears what is under way.
pub fn measure(program: &Path, size: Size, mut said: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = Vec::new();
        for load in [CREATES, READS] {
            said(load.name);
            let mut bursts = Vec::new();
            for _ in 0..size.repeats {
                bursts.push(repeat(&program, &load, size.lasting).await?);
            }
            figures.extend(load.figures(&bursts));
        }
        Ok(figures)
    })
}

impl Load {
    fn figures(&self, bursts: &[Burst]) -> Vec<Figure> {
        let figure = |what: &str, unit, of: fn(&Burst) -> f64, bar| Figure {
            name: format!("{} at {}/s, {what}", self.name, self.per_s),
            unit,
            ours: Samples::of(bursts.iter().map(of)),
            other: None,
            bar,
        };
        vec![
            // Less than a hundredth is lost to where the count begins and ends.
            figure("answered", "/s", |burst| burst.per_s, Some(Bar::AtLeast(self.per_s as f64 * 0.99))),
            figure("median", "ms", |burst| burst.latencies_ms.median(), None),
            figure("p99", "ms", |burst| burst.latencies_ms.at(0.99), Some(Bar::AtMost(self.p99_ms))),
        ]
    }
}

/// What came of one repeat.
struct Burst {
    per_s: f64,
    latencies_ms: Samples,
}

/// One repeat on a site of its own.
async fn repeat(program: &Path, load: &Load, lasting: Duration) -> anyhow::Result<Burst> {
    let folder = scene::folder()?;
    let child = Child::paste(program, folder.path()).await?;
    let address = child.address();
    let burst = if load.name == CREATES.name {
        burst(address, load.per_s, lasting, Arc::new(create)).await?
    } else {
        let paths = ready_pastes(address).await?;
        let read = move |number: u64| Request {
            method: Method::GET,
            path: paths[number as usize % paths.len()].clone(),
            body: Bytes::new(),
            expected: StatusCode::OK,
        };
        burst(address, load.per_s, lasting, Arc::new(read)).await?
    };
    child.end().await?;
    folder.close()?;
    Ok(burst)
}

/// One request.
struct Request {
    method: Method,
    path: Uri,
    body: Bytes,
    expected: StatusCode,
}

/// A paste of about a kilobyte that no other is equal to.
fn create(number: u64) -> Request {
    let content = format!("paste {number} {:x}\n", uuid::Uuid::now_v7()).repeat(16);
    Request {
        method: Method::POST,
        path: Uri::from_static("/api/v1/pastes"),
        body: json!({"content": content, "expiryDays": 1}).to_string().into(),
        expected: StatusCode::CREATED,
    }
}

/// Pastes that can be read, and have been once.
async fn ready_pastes(address: SocketAddr) -> anyhow::Result<Vec<Uri>> {
    let mut connection = Connection::open(address).await?;
    let mut paths = Vec::new();
    for number in 0..READ_PASTES as u64 {
        let Request { method, path, body, expected } = create(number);
        let made = connection.call(method, &path, body, expected).await?;
        let made: serde_json::Value = serde_json::from_slice(&made)?;
        let code = made["data"]["shortCode"].as_str().context("a paste has no code")?;
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

/// Sends so many requests a second over all connections, and takes the times of those after the warm-up.
async fn burst(
    address: SocketAddr,
    per_s: u64,
    lasting: Duration,
    make: Arc<impl Fn(u64) -> Request + Send + Sync + 'static>,
) -> anyhow::Result<Burst> {
    let began = Instant::now() + Duration::from_millis(100);
    let due = move |number: u64| began + Duration::from_secs_f64(number as f64 / per_s as f64);
    let (counts_from, ends) = (began + WARM_UP, began + WARM_UP + lasting);
    let mut connections = JoinSet::new();
    for first in 0..CONNECTIONS {
        let make = make.clone();
        connections.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut taken = Vec::new();
            for number in (first..).step_by(CONNECTIONS as usize).take_while(|number| due(*number) < ends) {
                let Request { method, path, body, expected } = make(number);
                tokio::time::sleep_until(due(number)).await;
                connection.call(method, &path, body, expected).await?;
                if due(number) >= counts_from {
                    taken.push(due(number).elapsed().as_secs_f64() * 1_000.0);
                }
            }
            anyhow::Ok((taken, Instant::now()))
        });
    }
    let (mut taken, mut last) = (Vec::new(), ends);
    for connection in connections.join_all().await {
        let (times, ended) = connection?;
        taken.extend(times);
        last = last.max(ended);
    }
    let per_s = taken.len() as f64 / (last - counts_from).as_secs_f64();
    Ok(Burst { per_s, latencies_ms: Samples::of(taken) })
}
