//! Starts an operation: counts the jobs first, asks before an action that cannot be undone, then watches the operation.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use redrive_wire::operation::{DryRun, Operation, OperationKind, OperationRequest};

use super::{OPERATIONS, watch};
use crate::client::{Answer, Client, ServiceOptions};
use crate::exit::ExitStatus;
use crate::filter::FilterOptions;
use crate::options::{integer, parse_number};
use crate::output;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// What to do with each job
    action: BulkAction,
    #[command(flatten)]
    filter: FilterOptions,
    /// Start with this many jobs, and continue only if all of them succeed; for redrive and run-now
    #[arg(long, value_name = "N", value_parser = integer::<usize>(1.., 3))]
    canary: Option<usize>,
    /// Do not ask before a cancel or discard
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    start: StartOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BulkAction {
    /// Give dead jobs a new run
    Redrive,
    /// Remove dead jobs
    Discard,
    /// Cancel jobs and their children
    Cancel,
    /// Make pending and retrying jobs due now
    RunNow,
}

/// How an operation is started.
#[derive(clap::Args)]
pub(crate) struct StartOptions {
    /// Only count the jobs that match
    #[arg(long)]
    dry_run: bool,
    /// The largest number of jobs per second
    #[arg(long, value_name = "N", value_parser = parse_number)]
    pub(crate) rate: Option<f64>,
    /// Do not wait for the end; print the id of the operation
    #[arg(long)]
    detach: bool,
}

pub(super) async fn run(
    options: &ServiceOptions,
    client: &Client,
    arguments: &Arguments,
) -> anyhow::Result<ExitStatus> {
    let bulk = BulkRequest { options, client, request: arguments.request(), noun: jobs };
    match arguments.action {
        BulkAction::Discard => bulk.confirm_and_start(&arguments.start, "discard", arguments.yes).await,
        BulkAction::Cancel => bulk.confirm_and_start(&arguments.start, "cancel", arguments.yes).await,
        BulkAction::Redrive | BulkAction::RunNow => bulk.start(&arguments.start).await,
    }
}

impl Arguments {
    fn request(&self) -> OperationRequest {
        let kind = match self.action {
            BulkAction::Redrive => OperationKind::Redrive,
            BulkAction::Discard => OperationKind::Discard,
            BulkAction::Cancel => OperationKind::Cancel,
            BulkAction::RunNow => OperationKind::RunNow,
        };
        let (filter, canary) = (self.filter.filter(), self.canary);
        OperationRequest { kind, filter, dry_run: false, rate_per_second: self.start.rate, canary }
    }
}

fn jobs(count: u64) -> String {
    redrive_core::text::count_of(count, "job")
}

/// A request that starts an operation.
pub(crate) struct BulkRequest<'a> {
    pub(crate) options: &'a ServiceOptions,
    pub(crate) client: &'a Client,
    pub(crate) request: OperationRequest,
    /// Formats a number of jobs with its noun: `1 dead letter`, `2 dead letters`.
    pub(crate) noun: fn(u64) -> String,
}

impl BulkRequest<'_> {
    /// Starts the operation once the user has agreed.
    pub(crate) async fn confirm_and_start(
        &self,
        start: &StartOptions,
        action: &str,
        yes: bool,
    ) -> anyhow::Result<ExitStatus> {
        if !yes && !start.dry_run {
            let (count, _) = self.count().await?;
            if count.matched == 0 {
                output::note("nothing matches");
                return Ok(ExitStatus::Success);
            }
            confirm(action, &self.count_text(&count))?;
        }
        self.start(start).await
    }

    /// Starts the operation, and waits for its end unless `--detach` is set.
    pub(crate) async fn start(&self, start: &StartOptions) -> anyhow::Result<ExitStatus> {
        if start.dry_run {
            return self.show_count().await;
        }
        let answer = self.client.post(&[OPERATIONS], &self.request).await?;
        let operation: Operation = answer.read()?;
        if !start.detach {
            return watch(self.options, self.client, &operation.operation_id).await;
        }
        if self.options.json {
            output::text(&output::one_line(&answer.raw()))?;
        } else {
            output::line(&operation.operation_id)?;
            output::note(&format!("`redrive operation watch {}` shows its progress", operation.operation_id));
        }
        Ok(ExitStatus::Success)
    }

    async fn show_count(&self) -> anyhow::Result<ExitStatus> {
        let (count, answer) = self.count().await?;
        if self.options.json {
            output::text(&output::one_line(&answer.raw()))?;
        } else {
            let verb = if count.matched == 1 { "matches" } else { "match" };
            output::line(&format!("{} {verb}; nothing was changed", self.count_text(&count)))?;
        }
        Ok(ExitStatus::Success)
    }

    async fn count(&self) -> anyhow::Result<(DryRun, Answer)> {
        let request = OperationRequest { dry_run: true, ..self.request.clone() };
        let answer = self.client.post(&[OPERATIONS], &request).await?;
        Ok((answer.read()?, answer))
    }

    fn count_text(&self, count: &DryRun) -> String {
        let at_least = if count.at_least { "at least " } else { "" };
        format!("{at_least}{}", (self.noun)(count.matched))
    }
}

/// Asks the user on the terminal. Without a terminal the action is rejected.
pub(crate) fn confirm(action: &str, what: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let text = format!("this would {action} {what}, which cannot be undone: add --yes to do it");
        return Err(ExitStatus::Rejected.error(text));
    }
    write!(io::stderr(), "{action} {what}? This cannot be undone. [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(ExitStatus::Rejected.error("nothing was changed"))
}
