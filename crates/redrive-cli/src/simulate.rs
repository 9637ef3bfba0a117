//! `redrive simulate`: the load on a target while clients retry, in simulated time, with the policies of the engine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use redrive_core::limits::ATTEMPTS_MAX;
use redrive_simulate::figure::{contention_figure, format_count, format_ms, outage_figure};
use redrive_simulate::{ContentionExperiment, Figure, NamedPolicy, OutageExperiment, outage, policies};
use serde::Serialize;

use crate::exit::ExitStatus;
use crate::options::{integer, parse_duration, read_engine_policy};
use crate::output::screen;
use crate::output::table::{Cell, Table};
use crate::output::{self, OutputStyle};

#[derive(clap::Subcommand)]
pub(crate) enum SimulateCommand {
    /// Simulate many clients that write one versioned row: number of writes and completion time for each jitter
    ///
    /// This is the experiment of the AWS architecture blog on exponential backoff and jitter. Without --clients it runs with
    /// 10 to 190 clients, in steps of 10.
    Contention(ContentionArguments),
    /// Simulate many tasks that are due while their target is down: peak load, time to drain, dead tasks
    ///
    /// It simulates each policy without the gates of the service. none, exponential, equal, full and decorrelated are the
    /// default policy with another jitter; the others are presets.
    Outage(Box<OutageArguments>),
}

#[derive(clap::Args)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a chart to this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the figures of the chart to this file as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ContentionArguments {
    /// The number of clients [default: 10, 20 … 190]
    #[arg(long, value_name = "N", value_parser = integer::<u32>(1..=ATTEMPTS_MAX.into(), 100))]
    clients: Option<u32>,
    /// The number of repetitions of each experiment
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = integer::<u32>(1.., 100))]
    trials: u32,
    /// The seed of the random numbers: the same seed gives the same figures
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = integer::<u64>(0.., 1))]
    seed: u64,
    /// The first wait
    #[arg(long, default_value = "5ms", value_name = "DURATION", value_parser = parse_duration)]
    base: Duration,
    /// The longest wait
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    cap: Duration,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
pub(crate) struct OutageArguments {
    /// The number of tasks
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = integer::<u32>(1..=1_000_000, 10_000))]
    tasks: u32,
    /// The time from the start of the outage within which the tasks become due, evenly spread
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    arrivals: Duration,
    /// The length of the outage
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = parse_duration)]
    outage: Duration,
    /// The number of calls per second that the target answers after the outage; it rejects further calls
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = integer::<u32>(1.., 500))]
    capacity: u32,
    /// The seed of the random numbers: the same seed gives the same figures
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = integer::<u64>(0.., 1))]
    seed: u64,
    /// Simulate only these policies
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policy: Vec<String>,
    /// A JSON file with a further policy, as `policy put` takes it; may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// The largest number of attempts, for every policy
    #[arg(long, value_name = "N", value_parser = integer::<u32>(1..=ATTEMPTS_MAX.into(), 5))]
    max_attempts: Option<u32>,
    /// The time budget, for every policy
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    budget: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(command: SimulateCommand) -> anyhow::Result<()> {
    match command {
        SimulateCommand::Contention(arguments) => arguments.run(),
        SimulateCommand::Outage(arguments) => arguments.run(),
    }
}

impl ContentionArguments {
    fn run(&self) -> anyhow::Result<()> {
        let contention = ContentionExperiment {
            trials: self.trials,
            seed: self.seed,
            base: self.base,
            cap: self.cap,
            ..ContentionExperiment::default()
        };
        let report = match self.clients {
            Some(clients) => ContentionExperiment { clients, ..contention }.run()?,
            None => contention.sweep((10..=190).step_by(10))?,
        };
        let figure = contention_figure(&report);
        self.output.write(&report, &figure, |columns| figure.text(columns))
    }
}

impl OutageArguments {
    fn run(&self) -> anyhow::Result<()> {
        let setup = OutageExperiment {
            tasks: self.tasks,
            arrivals: self.arrivals,
            down: self.outage,
            capacity: self.capacity,
            seed: self.seed,
            ..OutageExperiment::default()
        };
        let report = setup.run(&self.policies()?);
        let figure = outage_figure(&report);
        self.output.write(&report, &figure, |columns| table(&report) + "\n" + &figure.text(columns))
    }

    fn policies(&self) -> anyhow::Result<Vec<NamedPolicy>> {
        let mut all = policies::engine_policies()?;
        let known = all.iter().map(|named| named.name.clone()).collect::<Vec<_>>();
        for name in &self.policy {
            if !known.contains(name) {
                let text = format!("--policy: unknown policy {name:?}: choose from {}", known.join(", "));
                return Err(ExitStatus::Usage.error(text));
            }
        }
        all.retain(|named| match self.policy.as_slice() {
            [] => true,
            chosen => chosen.contains(&named.name),
        });
        for path in &self.file {
            all.push(NamedPolicy::new(path.display().to_string(), read_engine_policy(path)?));
        }
        all.into_iter().map(|named| self.with_overrides(named)).collect()
    }

    fn with_overrides(&self, NamedPolicy { name, mut policy }: NamedPolicy) -> anyhow::Result<NamedPolicy> {
        if let Some(attempts) = self.max_attempts {
            policy = policy.with_max_attempts(attempts)?;
        }
        if let Some(budget) = self.budget {
            policy = policy.with_total_budget(budget);
        }
        Ok(NamedPolicy { name, policy })
    }
}

impl Output {
    fn write(
        &self,
        report: &impl Serialize,
        figure: &Figure,
        text: impl Fn(usize) -> String,
    ) -> anyhow::Result<()> {
        for (path, content) in [(&self.svg, figure.svg()), (&self.csv, figure.csv())] {
            if let Some(path) = path {
                std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        if self.json {
            output::line(&serde_json::to_string_pretty(report)?)?;
        } else {
            output::text(&text(columns()))?;
        }
        Ok(())
    }
}

/// The width of the output: the variable `COLUMNS`, otherwise the width of the terminal.
fn columns() -> usize {
    let variable = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    variable.unwrap_or_else(|| screen::size().0)
}

fn table(report: &outage::Report) -> String {
    let headers = [
        "policy",
        "calls",
        "while down",
        "rejected",
        "peak/s",
        "drained after",
        "out of attempts",
        "out of budget",
    ];
    let mut table = Table::new(&headers, &[], OutputStyle { colours: false, width: None, now: 0 });
    for row in &report.rows {
        let drained = row.drained_after_ms.map_or("never".to_owned(), |ms| format_ms(ms as f64));
        table.add_row(vec![
            Cell::id(&row.policy),
            Cell::number(format_count(row.calls as f64)),
            Cell::number(format_count(row.calls_while_down as f64)),
            Cell::number(format_count(row.refused_over_capacity as f64)),
            Cell::number(format_count(row.peak_per_second as f64)),
            Cell::number(drained),
            Cell::number(format_count(f64::from(row.lost_to_attempts))),
            Cell::number(format_count(f64::from(row.lost_to_budget))),
        ]);
    }
    table.render()
}
