//! Measures the service as a process of its own, with load from this process over loopback.

pub mod accept_and_deliver;
pub mod bare_client;
pub mod child;
pub mod client;
pub mod cpu;
pub mod creates;
pub mod deliveries;
pub mod endpoint;
pub mod lateness;
pub mod load;
pub mod request;
pub mod running_service;
pub mod sink;
pub mod stores;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::figures::Figure;
use crate::postgres::PrivateServer;
use cpu::Cores;

/// The timeout of one part.
const PART_TIMEOUT: Duration = Duration::from_secs(300);

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// How long creates are counted in each repeat.
    pub create_duration: Duration,
    /// Tasks delivered in each repeat.
    pub tasks: usize,
    /// Repeats of creates and deliveries.
    pub repeats: usize,
    /// Seconds of due tasks in each repeat.
    pub seconds: usize,
    /// Repeats of the measurement of lateness.
    pub lateness_repeats: usize,
}

impl Size {
    /// The size by which the bars are judged. Takes less than four minutes.
    pub const FULL: Self = Self {
        create_duration: Duration::from_secs(4),
        tasks: 20_000,
        repeats: 5,
        seconds: 10,
        lateness_repeats: 3,
    };
    /// A short run. Takes less than a minute.
    pub const QUICK: Self = Self {
        create_duration: Duration::from_millis(1_500),
        tasks: 5_000,
        repeats: 3,
        seconds: 3,
        lateness_repeats: 1,
    };
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Created tasks.
    Creates,
    /// Delivered tasks.
    Deliveries,
    /// Tasks created and delivered at the same time. Measured on two stores only.
    AcceptAndDeliver,
    /// The time from due to delivered.
    Lateness,
}

/// A store to compare with SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// A private Postgres server.
    Postgres,
}

impl Part {
    /// Every part of the service on SQLite.
    pub const ON_SQLITE: [Self; 3] = [Self::Creates, Self::Deliveries, Self::Lateness];
    /// Every part that compares Postgres with SQLite.
    pub const ON_POSTGRES: [Self; 3] = [Self::Creates, Self::Deliveries, Self::AcceptAndDeliver];
}

/// Measures parts of the service at `program`, and the cores that each process used. With a store, compares the service on it with the
/// service on SQLite. Calls `progress` with the name of each part.
pub fn measure(
    program: &Path,
    size: Size,
    store: Option<StoreKind>,
    parts: &[Part],
    mut progress: impl FnMut(&str),
) -> anyhow::Result<(Vec<Figure>, Cores)> {
    // Processes run in folders of their own, so the path must be absolute.
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let server = store.map(|StoreKind::Postgres| PrivateServer::start());
    let (mut figures, mut cores) = (Vec::new(), Cores::default());
    runtime()?.block_on(async {
        for part in parts {
            progress(part.name());
            // If the timeout drops the future, its processes end too.
            let measured =
                timeout(PART_TIMEOUT, part.figures(&program, size, server.as_ref(), &mut cores)).await;
            figures.extend(
                measured.with_context(|| format!("{} took more than {PART_TIMEOUT:?}", part.name()))??,
            );
        }
        Ok((figures, cores))
    })
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Creates => "creates",
            Self::Deliveries => "deliveries",
            Self::AcceptAndDeliver => "accept and deliver",
            Self::Lateness => "lateness",
        }
    }

    async fn figures(
        self,
        program: &Path,
        size: Size,
        server: Option<&PrivateServer>,
        cores: &mut Cores,
    ) -> anyhow::Result<Vec<Figure>> {
        if let Some(server) = server {
            return Ok(vec![stores::figure(self, program, size, server, cores).await?]);
        }
        match self {
            Self::Creates => {
                Ok(vec![creates::figure(program, size.create_duration, size.repeats, cores).await?])
            }
            Self::Deliveries => deliveries::figures(program, size.tasks, size.repeats, cores).await,
            Self::AcceptAndDeliver => anyhow::bail!("{} needs --store postgres", self.name()),
            Self::Lateness => lateness::figures(program, size.seconds, size.lateness_repeats, cores).await,
        }
    }
}

/// Answers creates and stores nothing, until standard input closes.
pub fn run_probe() -> anyhow::Result<()> {
    runtime()?.block_on(endpoint::run())
}

/// Accepts deliveries, until standard input closes.
pub fn run_sink() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(sink::run())
}

/// A runtime like that of the service, so that both sides have the same threads.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
