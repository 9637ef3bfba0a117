//! `redrive top`: how a service fares, drawn again and again in the same place.

mod draw;

use std::future::ready;
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::Duration;

use redrive::shutdown_signal;
use redrive_server::wire::job::Job;
use redrive_server::wire::origin::{OriginGate, Origins};
use redrive_server::wire::overview::Overview;
use redrive_server::wire::page::Page;
use redrive_server::wire::task::Task;
use tokio::time::{MissedTickBehavior, interval};

use crate::call::{Query, Reach, Service};
use crate::exit::Exit;
use crate::print::{self, Look};
use crate::terminal::{self, Screen};
use crate::when::parse_span;

/// What to look at, and how often.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one frame and end, for scripts
    #[arg(long)]
    once: bool,
    /// How often to look
    #[arg(long, default_value = "1s", value_name = "SPAN", value_parser = parse_span)]
    every: Duration,
    #[command(flatten)]
    reach: Reach,
}

/// Failures that are shown at most.
const FAILURES_MAX: usize = 10;
/// No service is asked more often.
const EVERY_MIN: Duration = Duration::from_millis(100);

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let service = arguments.reach.service()?;
    let every = arguments.every.max(EVERY_MIN);
    if arguments.reach.json {
        return stream(&service, arguments.once, every).await;
    }
    if arguments.once {
        let seen = look(&service).await?;
        print::text(&draw::frame(&seen, &Look::of_stdout(seen.overview.now), None))?;
        return Ok(Exit::Done);
    }
    if !io::stdout().is_terminal() {
        return Err(
            Exit::Usage.because("standard output is no terminal; `redrive top --once` prints one frame")
        );
    }
    live(&service, every).await
}

/// Documents for programs, one a line.
async fn stream(service: &Service, once: bool, every: Duration) -> anyhow::Result<Exit> {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        let answer = service.get(&["overview"], &Query::new()).await?;
        print::text(&print::one_line(&answer.raw()))?;
        if once {
            return Ok(Exit::Done);
        }
    }
}

/// Until q or Ctrl-C; the terminal is given back either way.
async fn live(service: &Service, every: Duration) -> anyhow::Result<Exit> {
    // Before the terminal is taken over: a service that is not there is an error like any other.
    let mut seen = look(service).await?;
    let mut ended = pin!(shutdown_signal());
    // Signals are heard from the first poll on; before it, one would leave the terminal as it is then.
    tokio::select! { biased; () = &mut ended => return Ok(Exit::Done), () = ready(()) => {} }
    let mut screen = Screen::open()?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (width, height) = terminal::size();
        let look_of = Look { width: Some(width), ..Look::of_stdout(seen.overview.now) };
        screen.draw(&draw::frame(&seen, &look_of, Some(height)))?;
        tokio::select! {
            () = &mut ended => return Ok(Exit::Done),
            key = screen.key() => if matches!(key, b'q' | b'Q') { return Ok(Exit::Done) },
            next = async { ticks.tick().await; look(service).await } => match next {
                Ok(next) => seen = next,
                Err(error) => seen.trouble = Some(format!("{error:#}")),
            },
        }
    }
}

/// All that a frame shows.
struct Seen {
    address: String,
    overview: Overview,
    /// None where the key does not see them.
    origins: Option<Vec<OriginGate>>,
    failures: Vec<Failure>,
    /// Why the rest is old.
    trouble: Option<String>,
}

/// A task or job whose last attempt failed.
struct Failure {
    id: String,
    at: i64,
    state: &'static str,
    about: String,
    error: String,
}

async fn look(service: &Service) -> anyhow::Result<Seen> {
    let none = Query::new();
    let recent = vec![("limit".to_owned(), FAILURES_MAX.to_string())];
    let mut retrying = recent.clone();
    retrying.push(("state".to_owned(), "retrying".to_owned()));
    let (overview, origins, dead, retrying) = tokio::join!(
        service.get(&["overview"], &none),
        service.get(&["origins"], &none),
        service.get(&["dead-letters"], &recent),
        service.get(&["jobs"], &retrying),
    );
    let overview: Overview = overview?.read()?;
    let origins = match origins {
        Ok(origins) => Some(origins.read::<Origins>()?.items),
        Err(error) if error.is_forbidden() => None,
        Err(error) => return Err(error.into()),
    };
    let failures = failures(dead?.read()?, retrying?.read()?);
    Ok(Seen { address: service.address().to_owned(), overview, origins, failures, trouble: None })
}

/// The newest of both, newest first.
fn failures(dead: Page<Task>, retrying: Page<Job>) -> Vec<Failure> {
    let dead = dead.items.into_iter().map(|task| Failure {
        id: task.task_id,
        at: task.finished_at.unwrap_or(task.created_at),
        state: "dead",
        about: task.target_url,
        error: task.last_error.or(task.reason).unwrap_or_default(),
    });
    let retrying = retrying.items.into_iter().map(|job| Failure {
        id: job.job_id,
        at: job.started_at.unwrap_or(job.created_at),
        state: "retrying",
        about: job.subject.unwrap_or(job.kind),
        error: job.last_error.unwrap_or_default(),
    });
    let mut failures: Vec<Failure> = dead.chain(retrying).collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.at));
    failures.truncate(FAILURES_MAX);
    failures
}
