//! `redrive schedule`: the schedules of a store.

use redrive_wire::schedule::{ScheduleStatus, ScheduledRun};

use crate::client::ServiceOptions;
use crate::exit::ExitStatus;
use crate::output;
use crate::output::list::{self, Columns};
use crate::output::table::Cell;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: ScheduleCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum ScheduleCommand {
    /// List schedules with their next due times
    List,
    /// Pause a schedule: it enqueues no jobs until it is resumed
    Pause(ScheduleName),
    /// Resume a paused schedule
    Resume(ScheduleName),
    /// Enqueue a job of a schedule now, in addition to the due ones, and print its id
    RunNow(ScheduleName),
}

#[derive(clap::Args)]
struct ScheduleName {
    /// The name of the schedule
    #[arg(value_name = "SCHEDULE")]
    name: String,
}

const SCHEDULES: &str = "schedules";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let (name, action) = match arguments.command {
        ScheduleCommand::List => return list::show_all(&options, &[SCHEDULES], &COLUMNS).await,
        ScheduleCommand::RunNow(ScheduleName { name }) => return run_now(&options, &name).await,
        ScheduleCommand::Pause(ScheduleName { name }) => (name, "pause"),
        ScheduleCommand::Resume(ScheduleName { name }) => (name, "resume"),
    };
    let client = options.client()?;
    client.post_empty(&[SCHEDULES, &name, action]).await?;
    if options.json {
        return list::show_named(&client, &[SCHEDULES], &name).await;
    }
    output::line(&format!("{name} {}", if action == "pause" { "is paused" } else { "is resumed" }))?;
    Ok(ExitStatus::Success)
}

const COLUMNS: Columns<ScheduleStatus> = Columns {
    headers: &["SCHEDULE", "STATE", "KIND", "QUEUE", "NEXT", "TIMING"],
    optional: &["QUEUE", "KIND"],
    row: |schedule, style| {
        vec![
            Cell::id(&schedule.name),
            Cell::state(if schedule.paused { "paused" } else { "active" }),
            Cell::text(&schedule.kind),
            Cell::text(&schedule.queue),
            Cell::age(schedule.upcoming.first().copied().filter(|_| !schedule.paused), style),
            Cell::text(&schedule.timing),
        ]
    },
    empty: "there are no schedules",
};

async fn run_now(options: &ServiceOptions, name: &str) -> anyhow::Result<ExitStatus> {
    let answer = options.client()?.post_empty(&[SCHEDULES, name, "run-now"]).await?;
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
    } else {
        output::line(&answer.read::<ScheduledRun>()?.job_id)?;
    }
    Ok(ExitStatus::Success)
}
