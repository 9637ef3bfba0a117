//! `redrive policy preview`: the waits of a policy.

use std::path::PathBuf;
use std::time::Duration;

use redrive_core::limits::ATTEMPTS_MAX;
use redrive_core::policy::backoff::Curve;
use redrive_core::policy::{Preview, presets};
use redrive_core::{Backoff, Jitter, Policy, text};

use redrive_wire::policy::RetryPolicy;

use crate::exit::ExitStatus;
use crate::options::{as_ms, integer, parse_duration, parse_number, read_engine_policy};
use crate::output;

/// A preset or a file, changed by the options.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// A preset: default, upload, storage, dequeue, quadratic, once
    #[arg(default_value = "default", conflicts_with = "file")]
    preset: String,
    /// A JSON file with a policy, as `policy put` takes it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The largest number of attempts
    #[arg(long, value_name = "N", value_parser = integer::<u32>(1..=ATTEMPTS_MAX.into(), 5))]
    max_attempts: Option<u32>,
    /// How the waits grow
    #[arg(long, value_enum)]
    backoff: Option<BackoffType>,
    /// The first wait
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    initial_delay: Option<Duration>,
    /// The factor of an exponential backoff
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    multiplier: Option<f64>,
    /// The power of a polynomial backoff
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    exponent: Option<f64>,
    /// The waits of a schedule
    #[arg(long, value_delimiter = ',', value_name = "DURATION", value_parser = parse_duration)]
    delays: Vec<Duration>,
    /// The longest wait before jitter
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_delay: Option<Duration>,
    /// The random part of the waits
    #[arg(long, value_enum)]
    jitter: Option<JitterType>,
    /// The fraction of proportional jitter, from 0 to 1
    #[arg(long, default_value_t = 0.1, value_name = "NUMBER", value_parser = parse_number)]
    jitter_fraction: f64,
    /// The size of absolute jitter
    #[arg(long, default_value = "200ms", value_name = "DURATION", value_parser = parse_duration)]
    jitter_size: Duration,
    /// The time budget of a run
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    budget: Option<Duration>,
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

pub(super) fn run(arguments: &Arguments, as_json: bool) -> anyhow::Result<ExitStatus> {
    let policy = arguments.policy()?;
    let preview = policy.preview();
    if as_json {
        output::json(&json(&policy, &preview))?;
    } else {
        output::text(&table(&policy, &preview))?;
    }
    Ok(ExitStatus::Success)
}

impl Arguments {
    fn policy(&self) -> anyhow::Result<Policy> {
        let mut policy = self.base_policy()?;
        if let Some(attempts) = self.max_attempts {
            policy = policy.with_max_attempts(attempts)?;
        }
        policy.backoff = self.change_backoff(&policy.backoff)?;
        if let Some(jitter) = self.jitter {
            policy.jitter = self.jitter(jitter)?;
        }
        if let Some(budget) = self.budget {
            policy = policy.with_total_budget(budget);
        }
        Ok(policy)
    }

    fn base_policy(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.file else {
            let preset = presets::all().into_iter().find(|(name, _)| *name == self.preset);
            let known = presets::all().map(|(name, _)| name).join(", ");
            let unknown = || {
                let text = format!("unknown preset {:?}: choose one of {known}, or use --file", self.preset);
                ExitStatus::Usage.error(text)
            };
            return preset.map(|(_, policy)| policy).ok_or_else(unknown);
        };
        read_engine_policy(path)
    }

    /// Applies the options to the backoff. Without --max-delay, the longest wait is at least the first wait.
    fn change_backoff(&self, old: &Backoff) -> anyhow::Result<Backoff> {
        let initial = self.initial_delay.unwrap_or(old.initial());
        let curve = match self.backoff.unwrap_or(type_of(old)) {
            BackoffType::Fixed => Curve::Fixed(initial),
            BackoffType::Linear => Curve::Linear(initial),
            BackoffType::Exponential => {
                Curve::Exponential(initial, self.multiplier.unwrap_or(multiplier_of(old)))
            }
            BackoffType::Polynomial => Curve::Polynomial(initial, self.exponent.unwrap_or(exponent_of(old))),
            BackoffType::Schedule => Curve::Schedule(self.delays(old)),
        };
        let longest = self.delays.iter().max().copied().unwrap_or(old.max_delay());
        let max_delay = self.max_delay.unwrap_or(longest.max(initial));
        Ok(Backoff::new(curve, max_delay)?)
    }

    fn delays(&self, old: &Backoff) -> Vec<Duration> {
        match old.curve() {
            Curve::Schedule(delays) if self.delays.is_empty() => delays.clone(),
            _ => self.delays.clone(),
        }
    }

    fn jitter(&self, jitter: JitterType) -> anyhow::Result<Jitter> {
        Ok(match jitter {
            JitterType::None => Jitter::None,
            JitterType::Full => Jitter::Full,
            JitterType::Equal => Jitter::Equal,
            JitterType::Decorrelated => Jitter::Decorrelated,
            JitterType::Proportional => Jitter::proportional(self.jitter_fraction)?,
            JitterType::Absolute => Jitter::absolute(self.jitter_size),
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

fn json(policy: &Policy, preview: &Preview) -> serde_json::Value {
    let retries: Vec<_> = preview
        .retries
        .iter()
        .map(|retry| {
            serde_json::json!({
                "attemptNumber": retry.attempt, "earliestMs": as_ms(retry.earliest),
                "meanMs": as_ms(retry.mean), "latestMs": as_ms(retry.latest),
            })
        })
        .collect();
    let total = preview.total();
    serde_json::json!({
        "policy": RetryPolicy::show(policy), "retries": retries, "notShown": preview.not_shown,
        "total": { "earliestMs": as_ms(total.earliest), "meanMs": as_ms(total.mean), "latestMs": as_ms(total.latest) },
    })
}

fn table(policy: &Policy, preview: &Preview) -> String {
    let mut text = format!("{:>7}  {:>30}  {:>30}\n", "", "wait before it", "starts after");
    let columns = "earliest / mean / latest";
    text += &format!("{:>7}  {columns:>30}  {columns:>30}\n", "attempt");
    let three = |a: Duration, b: Duration, c: Duration| [a, b, c].map(text::duration).join(" / ");
    for retry in &preview.retries {
        let waits = three(retry.earliest, retry.mean, retry.latest);
        let starts = three(retry.total.earliest, retry.total.mean, retry.total.latest);
        let over = policy.total_budget.is_some_and(|budget| retry.total.earliest > budget);
        let note = if over { "  after the end of the time budget" } else { "" };
        text += &format!("{:>7}  {waits:>30}  {starts:>30}{note}\n", retry.attempt);
    }
    if preview.not_shown > 0 {
        text += &format!("and {} more\n", preview.not_shown);
    }
    text += &format!("dead after {} attempts", policy.max_attempts.get());
    if let Some(budget) = policy.total_budget {
        let budget = text::duration(budget);
        text += &format!(", or as soon as a retry would start after the end of the time budget of {budget}");
    }
    text + "\n"
}
