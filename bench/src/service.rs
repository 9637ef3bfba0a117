//! Measures the service as its users meet it: a process of its own, with the load from this one over loopback.

pub mod bare;
pub mod child;
pub mod client;
pub mod cpu;
pub mod creates;
pub mod deliveries;
pub mod endpoint;
pub mod lateness;
pub mod load;
pub mod request;
pub mod running;
pub mod sink;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::figures::Figure;
use cpu::Cores;

/// How long one part may take before it is given up.
const PART_ENDS_WITHIN: Duration = Duration::from_secs(300);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// How long creates are counted in each repeat.
    pub creating: Duration,
    /// Tasks delivered in each repeat.
    pub tasks: usize,
    /// Repeats of creates and deliveries.
    pub repeats: usize,
    /// Seconds of due tasks in each repeat.
    pub seconds: usize,
    /// Repeats of that.
    pub lateness_repeats: usize,
}

impl Size {
    /// What the bars are judged by; less than four minutes.
    pub const FULL: Self = Self {
        creating: Duration::from_secs(4),
        tasks: 20_000,
        repeats: 5,
        seconds: 10,
        lateness_repeats: 3,
    };
    /// What a newcomer waits for; less than one.
    pub const QUICK: Self = Self {
        creating: Duration::from_millis(1_500),
        tasks: 5_000,
        repeats: 3,
        seconds: 3,
        lateness_repeats: 1,
    };
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Tasks that become durable.
    Creates,
    /// Due tasks that are delivered.
    Deliveries,
    /// The time from due to delivered.
    Lateness,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Creates, Self::Deliveries, Self::Lateness];
}

/// Measures parts of the service at `program`, with the cores that each process used; `said` hears what is under way.
pub fn measure(
    program: &Path,
    size: Size,
    parts: &[Part],
    mut said: impl FnMut(&str),
) -> anyhow::Result<(Vec<Figure>, Cores)> {
    // Children run in folders of their own.
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let (mut figures, mut cores) = (Vec::new(), Cores::default());
    runtime()?.block_on(async {
        for part in parts {
            said(part.name());
            // Its processes end with it.
            let measured = timeout(PART_ENDS_WITHIN, part.figures(&program, size, &mut cores)).await;
            figures.extend(
                measured
                    .with_context(|| format!("{} took more than {PART_ENDS_WITHIN:?}", part.name()))??,
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
            Self::Lateness => "lateness",
        }
    }

    async fn figures(self, program: &Path, size: Size, cores: &mut Cores) -> anyhow::Result<Vec<Figure>> {
        match self {
            Self::Creates => Ok(vec![creates::figure(program, size.creating, size.repeats, cores).await?]),
            Self::Deliveries => deliveries::figures(program, size.tasks, size.repeats, cores).await,
            Self::Lateness => lateness::figures(program, size.seconds, size.lateness_repeats, cores).await,
        }
    }
}

/// Answers creates and stores nothing, until the input ends.
pub fn be_the_probe() -> anyhow::Result<()> {
    runtime()?.block_on(endpoint::run())
}

/// Takes deliveries, until the input ends.
pub fn be_the_sink() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(sink::run())
}

/// As the service's own, so that what it is held against has the same threads.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
