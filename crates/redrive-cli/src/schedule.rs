//! `redrive schedule`: what enqueues jobs again and again.

use redrive_server::wire::schedule::{ScheduleStatus, ScheduledRun};

use crate::call::Reach;
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::print;
use crate::table::Cell;

/// What to do with schedules.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List schedules with when they are next due
    List,
    /// Enqueue nothing more for a schedule until it is resumed
    Pause(One),
    /// Let a paused schedule go on
    Resume(One),
    /// Enqueue a schedule's job now, beside those that are due; prints the job's id
    RunNow(One),
}

#[derive(clap::Args)]
struct One {
    /// The schedule
    #[arg(value_name = "SCHEDULE")]
    name: String,
}

const SCHEDULES: &str = "schedules";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let (name, verb) = match arguments.verb {
        Verb::List => return list::show_whole(&reach, &[SCHEDULES], &COLUMNS).await,
        Verb::RunNow(One { name }) => return run_now(&reach, &name).await,
        Verb::Pause(One { name }) => (name, "pause"),
        Verb::Resume(One { name }) => (name, "resume"),
    };
    let service = reach.service()?;
    service.act(&[SCHEDULES, &name, verb]).await?;
    if reach.json {
        return list::show_named(&service, &[SCHEDULES], &name).await;
    }
    print::line(&format!("{name} {}", if verb == "pause" { "is paused" } else { "goes on" }))?;
    Ok(Exit::Done)
}

const COLUMNS: Columns<ScheduleStatus> = Columns {
    heads: &["SCHEDULE", "STATE", "KIND", "QUEUE", "NEXT", "TIMING"],
    spare: &["QUEUE", "KIND"],
    row: |schedule, look| {
        vec![
            Cell::whole(&schedule.name),
            Cell::state(if schedule.paused { "paused" } else { "open" }),
            Cell::text(&schedule.kind),
            Cell::text(&schedule.queue),
            Cell::age(schedule.upcoming.first().copied().filter(|_| !schedule.paused), look),
            Cell::text(&schedule.timing),
        ]
    },
    none: "there are no schedules",
};

async fn run_now(reach: &Reach, name: &str) -> anyhow::Result<Exit> {
    let answer = reach.service()?.act(&[SCHEDULES, name, "run-now"]).await?;
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
    } else {
        print::line(&answer.read::<ScheduledRun>()?.job_id)?;
    }
    Ok(Exit::Done)
}
