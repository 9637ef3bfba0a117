//! `redrive policy preview`: the schedule that a policy would give.

use std::path::PathBuf;
use std::time::Duration;

use redrive_core::limits::ATTEMPTS_MAX;
use redrive_core::policy::backoff::Curve;
use redrive_core::policy::{Preview, presets};
use redrive_core::{Backoff, Jitter, Policy};

use crate::exit::Exit;
use crate::print;
use crate::values::{parse_number, read_policy, whole};

/// A preset, a file or the default, changed by what is given.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// A preset: default, upload, storage, dequeue, quadratic, once
    #[arg(default_value = "default", conflicts_with = "file")]
    preset: String,
    /// A policy as JSON
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Attempts in all, the first one included
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=ATTEMPTS_MAX.into(), 5))]
    max_attempts: Option<u32>,
    /// How waits grow
    #[arg(long, value_enum)]
    backoff: Option<BackoffType>,
    /// The first wait
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(0.., 500))]
    initial_delay_ms: Option<u64>,
    /// The factor of an exponential backoff
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    multiplier: Option<f64>,
    /// The power of a polynomial backoff
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    exponent: Option<f64>,
    /// The waits of a schedule, in order
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = whole::<u64>(0.., 500))]
    delays_ms: Vec<u64>,
    /// The longest wait before jitter
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(0.., 60_000))]
    max_delay_ms: Option<u64>,
    /// How waits are spread
    #[arg(long, value_enum)]
    jitter: Option<JitterType>,
    /// The spread of proportional jitter, from 0 to 1
    #[arg(long, default_value_t = 0.1, value_name = "NUMBER", value_parser = parse_number)]
    jitter_fraction: f64,
    /// The spread of absolute jitter
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = whole::<u64>(0.., 200))]
    jitter_ms: u64,
    /// The time that a run may take in all
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(1.., 60_000))]
    total_budget_ms: Option<u64>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BackoffType {
    Fixed,
    Linear,
    Exponential,
    Polynomial,
    Schedule,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum JitterType {
    None,
    Full,
    Equal,
    Decorrelated,
    Proportional,
    Absolute,
}

pub(super) fn run(arguments: &Arguments, for_programs: bool) -> anyhow::Result<Exit> {
    let policy = arguments.policy()?;
    let preview = policy.preview();
    if for_programs {
        print::json(&json(&policy, &preview))?;
    } else {
        print::text(&table(&policy, &preview))?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    fn policy(&self) -> anyhow::Result<Policy> {
        let mut policy = self.start()?;
        if let Some(attempts) = self.max_attempts {
            policy = policy.with_max_attempts(attempts)?;
        }
        policy.backoff = self.changed(&policy.backoff)?;
        if let Some(jitter) = self.jitter {
            policy.jitter = self.spread(jitter)?;
        }
        if let Some(budget) = self.total_budget_ms {
            policy = policy.with_total_budget(Duration::from_millis(budget));
        }
        Ok(policy)
    }

    fn start(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.file else {
            let preset = presets::all().into_iter().find(|(name, _)| *name == self.preset);
            let known = presets::all().map(|(name, _)| name).join(", ");
            let unknown = || {
                let text = format!("unknown preset {:?}: choose one of {known}, or give --file", self.preset);
                Exit::Usage.because(text)
            };
            return preset.map(|(_, policy)| policy).ok_or_else(unknown);
        };
        read_policy(path)
    }

    /// The backoff with what was given changed and the rest kept; a cap below the first wait moves up with it.
    fn changed(&self, old: &Backoff) -> anyhow::Result<Backoff> {
        let initial = self.initial_delay_ms.map_or(old.initial(), Duration::from_millis);
        let curve = match self.backoff.unwrap_or(type_of(old)) {
            BackoffType::Fixed => Curve::Fixed(initial),
            BackoffType::Linear => Curve::Linear(initial),
            BackoffType::Exponential => {
                Curve::Exponential(initial, self.multiplier.unwrap_or(multiplier_of(old)))
            }
            BackoffType::Polynomial => Curve::Polynomial(initial, self.exponent.unwrap_or(exponent_of(old))),
            BackoffType::Schedule => Curve::Schedule(self.delays(old)),
        };
        let longest = self.delays_ms.iter().max().map_or(old.max_delay(), |ms| Duration::from_millis(*ms));
        let max_delay = self.max_delay_ms.map_or(longest.max(initial), Duration::from_millis);
        Ok(Backoff::new(curve, max_delay)?)
    }

    fn delays(&self, old: &Backoff) -> Vec<Duration> {
        match old.curve() {
            Curve::Schedule(delays) if self.delays_ms.is_empty() => delays.clone(),
            _ => self.delays_ms.iter().copied().map(Duration::from_millis).collect(),
        }
    }

    fn spread(&self, jitter: JitterType) -> anyhow::Result<Jitter> {
        Ok(match jitter {
            JitterType::None => Jitter::None,
            JitterType::Full => Jitter::Full,
            JitterType::Equal => Jitter::Equal,
            JitterType::Decorrelated => Jitter::Decorrelated,
            JitterType::Proportional => Jitter::proportional(self.jitter_fraction)?,
            JitterType::Absolute => Jitter::absolute(Duration::from_millis(self.jitter_ms)),
        })
    }
}

fn type_of(backoff: &Backoff) -> BackoffType {
    match backoff.curve() {
        Curve::Fixed(_) => BackoffType::Fixed,
        Curve::Linear(_) => BackoffType::Linear,
        Curve::Exponential(..) => BackoffType::Exponential,
        Curve::Polynomial(..) => BackoffType::Polynomial,
        Curve::Schedule(_) => BackoffType::Schedule,
    }
}

fn multiplier_of(backoff: &Backoff) -> f64 {
    if let Curve::Exponential(_, multiplier) = backoff.curve() { *multiplier } else { 2.0 }
}

fn exponent_of(backoff: &Backoff) -> f64 {
    if let Curve::Polynomial(_, exponent) = backoff.curve() { *exponent } else { 2.0 }
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn json(policy: &Policy, preview: &Preview) -> serde_json::Value {
    let retries: Vec<_> = preview
        .retries
        .iter()
        .map(|retry| {
            serde_json::json!({
                "attemptNumber": retry.attempt, "earliestMs": ms(retry.earliest),
                "meanMs": ms(retry.mean), "latestMs": ms(retry.latest),
            })
        })
        .collect();
    let total = preview.total();
    serde_json::json!({
        "policy": policy, "retries": retries, "notShown": preview.not_shown,
        "total": { "earliestMs": ms(total.earliest), "meanMs": ms(total.mean), "latestMs": ms(total.latest) },
    })
}

fn table(policy: &Policy, preview: &Preview) -> String {
    let mut table = format!("{:>7}  {:>30}  {:>30}\n", "", "wait before it", "starts after");
    table += &format!(
        "{:>7}  {:>30}  {:>30}\n",
        "attempt", "earliest / mean / latest", "earliest / mean / latest"
    );
    let three = |a: Duration, b: Duration, c: Duration| [a, b, c].map(people).join(" / ");
    for retry in &preview.retries {
        let waits = three(retry.earliest, retry.mean, retry.latest);
        let starts = three(retry.total.earliest, retry.total.mean, retry.total.latest);
        let over = policy.total_budget.is_some_and(|budget| retry.total.earliest > budget);
        let note = if over { "  beyond the budget" } else { "" };
        table += &format!("{:>7}  {waits:>30}  {starts:>30}{note}\n", retry.attempt);
    }
    if preview.not_shown > 0 {
        table += &format!("and {} more\n", preview.not_shown);
    }
    table += &format!("then dead after {} attempts", policy.max_attempts.get());
    if let Some(budget) = policy.total_budget {
        table += &format!(", or as soon as a retry would go beyond the budget of {}", people(budget));
    }
    table + "\n"
}

fn people(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds > 0.0 && seconds < 1.0 => format!("{:.0}ms", seconds * 1e3),
        seconds if seconds < 120.0 => format!("{seconds:.1}s"),
        seconds if seconds < 7_200.0 => format!("{:.1}m", seconds / 60.0),
        seconds => format!("{:.1}h", seconds / 3_600.0),
    }
}
