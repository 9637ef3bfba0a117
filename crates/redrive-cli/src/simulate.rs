//! `redrive simulate`: what a target sees while clients retry, in simulated time and with the engine's own policies.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use redrive_core::Policy;
use redrive_core::limits::ATTEMPTS_MAX;
use redrive_simulate::draw::{of_contention, of_outage, people, seconds};
use redrive_simulate::{Contender, Contention, Drawing, Outage, contenders, outage};
use serde::Serialize;

use crate::exit::Exit;
use crate::values::{read_policy, whole};

/// Columns where nobody says how wide the terminal is.
const COLUMNS: usize = 80;

#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Many clients write one versioned row: write calls and completion time under each jitter
    ///
    /// The experiment of the AWS architecture blog on exponential backoff and jitter. Without --clients it goes from 10 to
    /// 190 in steps of 10.
    Contention(ContentionArguments),
    /// Many tasks fall due while their target is down: peak load on recovery, time to drain, tasks lost
    ///
    /// Each policy by itself, without the gates of the service. none, exponential, equal, full and decorrelated are the
    /// default policy under another jitter; the others are presets.
    Outage(Box<OutageArguments>),
}

/// How results come out.
#[derive(clap::Args)]
struct Output {
    /// JSON for programs instead of a table for people
    #[arg(long)]
    json: bool,
    /// Draw it into this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the figures of the drawing into this file as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// The experiment's dials.
#[derive(clap::Args)]
pub(crate) struct ContentionArguments {
    /// Clients that write at once; 10, 20 … 190 unless given
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=ATTEMPTS_MAX.into(), 100))]
    clients: Option<u32>,
    /// How often each experiment is repeated
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = whole::<u32>(1.., 100))]
    trials: u32,
    /// What chance starts from: the same seed gives the same figures
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u64>(0.., 1))]
    seed: u64,
    /// The base of the waits
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = whole::<u64>(0.., 5))]
    base_ms: u64,
    /// The longest wait
    #[arg(long, default_value_t = 2_000, value_name = "MS", value_parser = whole::<u64>(0.., 2_000))]
    cap_ms: u64,
    #[command(flatten)]
    output: Output,
}

/// The outage's dials.
#[derive(clap::Args)]
pub(crate) struct OutageArguments {
    /// How many tasks there are
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = whole::<u32>(1..=1_000_000, 10_000))]
    tasks: u32,
    /// They fall due evenly over this time, from the beginning of the outage on
    #[arg(long, default_value_t = 1_000, value_name = "MS", value_parser = whole::<u64>(0.., 1_000))]
    arrivals_ms: u64,
    /// How long the target is down
    #[arg(long, default_value_t = 30_000, value_name = "MS", value_parser = whole::<u64>(0.., 30_000))]
    outage_ms: u64,
    /// How many calls a second the target bears afterwards; it refuses the others
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = whole::<u32>(1.., 500))]
    capacity: u32,
    /// What chance starts from: the same seed gives the same figures
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u64>(0.., 1))]
    seed: u64,
    /// Only these policies, by name
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<String>,
    /// A policy of yours too, as JSON; may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Attempts in all, the first one included, for every policy
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=ATTEMPTS_MAX.into(), 5))]
    max_attempts: Option<u32>,
    /// The time that a task may take in all, for every policy
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(1.., 60_000))]
    total_budget_ms: Option<u64>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Contention(arguments) => arguments.run(),
        Verb::Outage(arguments) => arguments.run(),
    }
}

impl ContentionArguments {
    fn run(&self) -> anyhow::Result<()> {
        let contention = Contention {
            trials: self.trials,
            seed: self.seed,
            base: Duration::from_millis(self.base_ms),
            cap: Duration::from_millis(self.cap_ms),
            ..Contention::default()
        };
        let report = match self.clients {
            Some(clients) => Contention { clients, ..contention }.run()?,
            None => contention.sweep((10..=190).step_by(10))?,
        };
        let drawing = of_contention(&report);
        self.output.write(&report, &drawing, |columns| drawing.blocks(columns))
    }
}

impl OutageArguments {
    fn run(&self) -> anyhow::Result<()> {
        let setup = Outage {
            tasks: self.tasks,
            arrivals: Duration::from_millis(self.arrivals_ms),
            down: Duration::from_millis(self.outage_ms),
            capacity: self.capacity,
            seed: self.seed,
            ..Outage::default()
        };
        let report = setup.run(&self.contenders()?);
        let drawing = of_outage(&report);
        self.output.write(&report, &drawing, |columns| table(&report) + "\n" + &drawing.blocks(columns))
    }

    fn contenders(&self) -> anyhow::Result<Vec<Contender>> {
        let mut all = contenders::of_the_engine()?;
        let known = all.iter().map(|contender| contender.name.clone()).collect::<Vec<_>>();
        for name in &self.policy {
            if !known.contains(name) {
                let text = format!("--policy: unknown policy {name:?}: choose from {}", known.join(", "));
                return Err(Exit::Usage.because(text));
            }
        }
        all.retain(|contender| match self.policy.as_slice() {
            [] => true,
            chosen => chosen.contains(&contender.name),
        });
        for path in &self.file {
            all.push(Contender::new(path.display().to_string(), read_policy::<Policy>(path)?));
        }
        all.into_iter().map(|contender| self.changed(contender)).collect()
    }

    fn changed(&self, Contender { name, mut policy }: Contender) -> anyhow::Result<Contender> {
        if let Some(attempts) = self.max_attempts {
            policy = policy.with_max_attempts(attempts)?;
        }
        if let Some(budget) = self.total_budget_ms {
            policy = policy.with_total_budget(Duration::from_millis(budget));
        }
        Ok(Contender { name, policy })
    }
}

impl Output {
    fn write(
        &self,
        report: &impl Serialize,
        drawing: &Drawing,
        people: impl Fn(usize) -> String,
    ) -> anyhow::Result<()> {
        for (path, text) in [(&self.svg, drawing.svg()), (&self.csv, drawing.csv())] {
            if let Some(path) = path {
                std::fs::write(path, text)
                    .with_context(|| format!("{} cannot be written", path.display()))?;
            }
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            print!("{}", people(columns()));
        }
        Ok(())
    }
}

/// What `COLUMNS` says, else the terminal.
fn columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    said.or_else(terminal).unwrap_or(COLUMNS)
}

fn table(report: &outage::Report) -> String {
    let mut table = format!(
        "{:14} {:>9} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n",
        "policy", "calls", "while down", "refused", "peak/s", "drained", "out of", "out of"
    );
    table += &format!(
        "{:14} {:>9} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n",
        "", "", "", "", "", "after", "attempts", "budget"
    );
    for row in &report.rows {
        let drained = row.drained_after_ms.map_or("never".to_owned(), |ms| seconds(ms as f64));
        table += &format!(
            "{:14} {:>9} {:>10} {:>10} {:>10} {drained:>11} {:>11} {:>11}\n",
            row.policy,
            people(row.calls as f64),
            people(row.calls_while_down as f64),
            people(row.refused_over_capacity as f64),
            people(row.peak_per_second as f64),
            people(f64::from(row.lost_to_attempts)),
            people(f64::from(row.lost_to_budget)),
        );
    }
    table
}
