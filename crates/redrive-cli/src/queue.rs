//! `redrive queue`: what each queue holds, and how much of it may run.

use redrive_core::records::EVERY_QUEUE;
use redrive_server::wire::queue::{QueueBounds, QueueQuota, QueueRate, QueueStatus, Queues};

use crate::call::{Query, Reach, Service};
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::print;
use crate::table::Cell;
use crate::values::whole;
use crate::when::{self, parse_span};

/// What to do with queues.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List queues with what they hold
    List,
    /// Claim nothing more from a queue; `*` for all of them
    Pause(Pause),
    /// Claim from a queue again; `*` for all of them
    Resume(One),
    /// Bound how much of a queue runs, on all nodes together
    ///
    /// What is not given is not bounded; --off lifts every bound.
    Limit(Limit),
}

#[derive(clap::Args)]
struct One {
    /// The queue
    #[arg(value_name = "QUEUE")]
    name: String,
}

#[derive(clap::Args)]
struct Pause {
    #[command(flatten)]
    queue: One,
    /// Pause it although it has no jobs yet: those that come wait until it is resumed
    #[arg(long)]
    create: bool,
}

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("bounds").required(true).multiple(true).args(["off", "concurrency", "rate", "key_concurrency", "key_rate"])))]
struct Limit {
    #[command(flatten)]
    queue: One,
    /// How many run at once
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1.., 50))]
    concurrency: Option<u32>,
    /// How often one starts: 100/1m, 5/s
    #[arg(long, value_name = "N/SPAN", value_parser = parse_rate)]
    rate: Option<QueueRate>,
    /// How many run at once for each key of a partition
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1.., 2))]
    key_concurrency: Option<u32>,
    /// How often one starts for each key of a partition
    #[arg(long, value_name = "N/SPAN", value_parser = parse_rate)]
    key_rate: Option<QueueRate>,
    /// Nothing bounds it
    #[arg(long, conflicts_with_all = ["concurrency", "rate", "key_concurrency", "key_rate"])]
    off: bool,
}

fn parse_rate(text: &str) -> Result<QueueRate, String> {
    let wrong = || format!("invalid rate {text:?}: write a number and a duration, for example 100/1m or 5/s");
    let (count, span) = text.split_once('/').ok_or_else(wrong)?;
    let count = count.trim().parse().map_err(|_| wrong())?;
    let one = span.trim().starts_with(|first: char| first.is_ascii_alphabetic());
    let span = if one { format!("1{}", span.trim()) } else { span.trim().to_owned() };
    let per_ms = u64::try_from(parse_span(&span).map_err(|_| wrong())?.as_millis()).map_err(|_| wrong())?;
    Ok(QueueRate { count, per_ms })
}

const QUEUES: &str = "queues";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let service = reach.service()?;
    match arguments.verb {
        Verb::List => list::show_whole(&reach, &[QUEUES], &COLUMNS).await,
        Verb::Pause(Pause { queue: One { name }, create }) => {
            if !create {
                check_exists(&service, &name, ", --create pauses one before its first job").await?;
            }
            service.act(&[QUEUES, &name, "pause"]).await?;
            changed(&reach, &service, &name, "is paused").await
        }
        Verb::Resume(One { name }) => {
            check_exists(&service, &name, "").await?;
            service.act(&[QUEUES, &name, "resume"]).await?;
            changed(&reach, &service, &name, "goes on").await
        }
        Verb::Limit(limit) => {
            let name = &limit.queue.name;
            if limit.off {
                check_exists(&service, name, "").await?;
                service.delete(&[QUEUES, name, "quota"]).await?;
                return changed(&reach, &service, name, "has no bounds").await;
            }
            service.put(&[QUEUES, name, "quota"], &limit.quota()).await?;
            changed(&reach, &service, name, &format!("runs {}", bounds(Some(&limit.quota())))).await
        }
    }
}

impl Limit {
    fn quota(&self) -> QueueQuota {
        let per_key = QueueBounds { concurrency: self.key_concurrency, rate: self.key_rate };
        QueueQuota { concurrency: self.concurrency, rate: self.rate, per_key }
    }
}

const COLUMNS: Columns<QueueStatus> = Columns {
    heads: &[
        "QUEUE",
        "STATE",
        "PENDING",
        "RETRYING",
        "RUNNING",
        "WAITING",
        "SUCCEEDED",
        "DEAD",
        "CANCELLED",
        "BOUNDS",
    ],
    spare: &["CANCELLED", "WAITING", "SUCCEEDED"],
    row: |queue, _| {
        let of = |state: &str| Cell::number(queue.jobs.get(state).copied().unwrap_or(0));
        vec![
            Cell::whole(&queue.name),
            Cell::state(if queue.paused { "paused" } else { "open" }),
            of("pending"),
            of("retrying"),
            of("running"),
            of("waiting"),
            of("succeeded"),
            of("dead"),
            of("cancelled"),
            Cell::text(bounds(queue.quota.as_ref())),
        ]
    },
    none: "there are no queues yet",
};

/// Fails unless the service lists the queue. It takes any name, so a mistyped one would look like a success.
async fn check_exists(service: &Service, name: &str, hint: &str) -> anyhow::Result<()> {
    if name == EVERY_QUEUE {
        return Ok(());
    }
    let queues: Queues = service.get(&[QUEUES], &Query::new()).await?.read()?;
    if queues.items.iter().any(|queue| queue.name == name) {
        return Ok(());
    }
    let text = format!("there is no queue {name:?}: `redrive queue list` shows the queues{hint}");
    Err(Exit::NotFound.because(text))
}

/// Says what was done, or shows the queue as it is now.
async fn changed(reach: &Reach, service: &Service, name: &str, words: &str) -> anyhow::Result<Exit> {
    if !reach.json {
        let what = if name == "*" { "every queue".to_owned() } else { name.to_owned() };
        print::line(&format!("{what} {words}"))?;
        return Ok(Exit::Done);
    }
    list::show_named(service, &[QUEUES], name).await
}

fn bounds(quota: Option<&QueueQuota>) -> String {
    let Some(quota) = quota else { return "-".to_owned() };
    let of = |concurrency: Option<u32>, rate: Option<QueueRate>, whose: &str| {
        let at_once = concurrency.map(|most| format!("{most} at once{whose}"));
        let often = rate.map(|rate| format!("{} per {}{whose}", rate.count, when::span(rate.per_ms)));
        at_once.into_iter().chain(often).collect::<Vec<_>>()
    };
    let mut parts = of(quota.concurrency, quota.rate, "");
    parts.extend(of(quota.per_key.concurrency, quota.per_key.rate, " for each key"));
    if parts.is_empty() { "without bounds".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for (text, count, per_ms) in [("100/1m", 100, 60_000), ("5/s", 5, 1_000), ("1 / 500ms", 1, 500)] {
            assert_eq!(parse_rate(text).unwrap(), QueueRate { count, per_ms }, "{text}");
        }
        for text in ["", "5", "/s", "5/", "x/s", "5/x"] {
            assert!(parse_rate(text).unwrap_err().contains("100/1m"), "{text}");
        }
    }

    #[test]
    fn bounds_are_said_in_words() {
        let rate = Some(QueueRate { count: 100, per_ms: 60_000 });
        let per_key = QueueBounds { concurrency: Some(2), rate: None };
        let quota = QueueQuota { concurrency: Some(50), rate, per_key };
        assert_eq!(bounds(Some(&quota)), "50 at once, 100 per 1 min, 2 at once for each key");
        assert_eq!(bounds(None), "-");
    }
}
