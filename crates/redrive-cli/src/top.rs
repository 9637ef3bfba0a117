//! `redrive top`: the state of a service, refreshed on the terminal.

mod draw;

use std::future::ready;
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::Duration;

use redrive::shutdown_signal;
use redrive_wire::job::Job;
use redrive_wire::origin::OriginGate;
use redrive_wire::overview::Overview;
use redrive_wire::page::Page;
use redrive_wire::task::Task;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{Client, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options::parse_duration;
use crate::output::list::{Pages, Paging};
use crate::output::screen::{self, Screen};
use crate::output::{self, OutputStyle};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print the state once and end, for scripts
    #[arg(long)]
    once: bool,
    /// The time between two refreshes
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    every: Duration,
    #[command(flatten)]
    options: ServiceOptions,
}

/// The largest number of failures on the page.
const FAILURES_MAX: usize = 10;
const INTERVAL_MIN: Duration = Duration::from_millis(100);

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let client = arguments.options.client()?;
    let interval = arguments.every.max(INTERVAL_MIN);
    if arguments.options.json {
        return print_documents(&client, arguments.once, interval).await;
    }
    if arguments.once {
        let snapshot = fetch(&client).await?;
        let style = OutputStyle::of_stdout(snapshot.overview.now);
        output::text(&draw::page(&snapshot, &style, None))?;
        return Ok(ExitStatus::Success);
    }
    if !io::stdout().is_terminal() {
        let text = "standard output is not a terminal: add --once to print the state once";
        return Err(ExitStatus::Usage.error(text));
    }
    refresh_screen(&client, interval).await
}

/// Prints the overview as JSON, one document per line.
async fn print_documents(client: &Client, once: bool, every: Duration) -> anyhow::Result<ExitStatus> {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        let answer = client.get(&["overview"], &Query::new()).await?;
        output::text(&output::one_line(&answer.raw()))?;
        if once {
            return Ok(ExitStatus::Success);
        }
    }
}

/// Refreshes the screen until q, Ctrl-C or a signal. The terminal is restored in each case.
async fn refresh_screen(client: &Client, every: Duration) -> anyhow::Result<ExitStatus> {
    // The first snapshot comes before the screen: a service that does not answer is an error like in other commands.
    let mut snapshot = fetch(client).await?;
    let mut ended = pin!(shutdown_signal());
    // The first poll registers the signal handlers. A signal before it would leave the screen open.
    tokio::select! { biased; () = &mut ended => return Ok(ExitStatus::Success), () = ready(()) => {} }
    let mut screen = Screen::open()?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (width, height) = screen::size();
        let style = OutputStyle { width: Some(width), ..OutputStyle::of_stdout(snapshot.overview.now) };
        screen.draw(&draw::page(&snapshot, &style, Some(height)))?;
        tokio::select! {
            () = &mut ended => return Ok(ExitStatus::Success),
            () = screen.quit_key() => return Ok(ExitStatus::Success),
            next = async { ticks.tick().await; fetch(client).await } => match next {
                Ok(next) => snapshot = next,
                Err(error) => snapshot.fetch_error = Some(format!("{error:#}")),
            },
        }
    }
}

/// What one page shows.
struct Snapshot {
    address: String,
    overview: Overview,
    /// `None` if the API key may not read them.
    origins: Option<Vec<OriginGate>>,
    failures: Vec<Failure>,
    /// Why the last refresh failed. The other fields are from the refresh before it.
    fetch_error: Option<String>,
}

/// A job whose last attempt failed.
struct Failure {
    id: String,
    at: i64,
    state: &'static str,
    target: String,
    error: String,
}

async fn fetch(client: &Client) -> anyhow::Result<Snapshot> {
    let none = Query::new();
    let recent = vec![("limit".to_owned(), FAILURES_MAX.to_string())];
    let mut retrying = recent.clone();
    retrying.push(("state".to_owned(), "retrying".to_owned()));
    let (overview, origins, dead, retrying) = tokio::join!(
        client.get(&["overview"], &none),
        Pages::new(client, &["origins"], Query::new(), &Paging::all()).read_all(),
        client.get(&["dead-letters"], &recent),
        client.get(&["jobs"], &retrying),
    );
    let overview: Overview = overview?.read()?;
    let origins = match origins {
        Ok(origins) => Some(origins.parse()?),
        Err(error) if error.is_forbidden() => None,
        Err(error) => return Err(error.into()),
    };
    let failures = newest_failures(dead?.read()?, retrying?.read()?);
    Ok(Snapshot { address: client.address().to_owned(), overview, origins, failures, fetch_error: None })
}

fn newest_failures(dead: Page<Task>, retrying: Page<Job>) -> Vec<Failure> {
    let dead = dead.items.into_iter().map(|task| Failure {
        id: task.task_id,
        at: task.finished_at.unwrap_or(task.created_at),
        state: "dead",
        target: task.target,
        error: task.last_error.unwrap_or_default(),
    });
    let retrying = retrying.items.into_iter().map(|job| Failure {
        id: job.job_id,
        at: job.started_at.unwrap_or(job.created_at),
        state: "retrying",
        target: job.target.unwrap_or(job.kind),
        error: job.last_error.unwrap_or_default(),
    });
    let mut failures: Vec<Failure> = dead.chain(retrying).collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.at));
    failures.truncate(FAILURES_MAX);
    failures
}
