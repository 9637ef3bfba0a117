//! `redrive queue`: the queues of a service, their pauses and their limits.

use redrive_core::records::EVERY_QUEUE;
use redrive_wire::queue::{KeyLimits, QueueLimits, QueueRate, QueueStatus};

use crate::client::{Client, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options::{as_ms, integer, parse_duration};
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::Cell;
use crate::output::{self, time};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: QueueCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum QueueCommand {
    /// List queues with their jobs by state
    List,
    /// Pause a queue: no further job is claimed from it. `*` pauses all queues
    Pause(PauseArguments),
    /// Resume a queue. `*` resumes all queues
    Resume(QueueName),
    /// Limit how many jobs of a queue run at once and start per interval, on all nodes together
    ///
    /// A limit that is not given is removed. --off removes all limits.
    Limit(LimitArguments),
}

#[derive(clap::Args)]
struct QueueName {
    /// The name of the queue
    #[arg(value_name = "QUEUE")]
    name: String,
}

#[derive(clap::Args)]
struct PauseArguments {
    #[command(flatten)]
    queue: QueueName,
    /// Pause a queue that has no jobs yet
    #[arg(long)]
    create: bool,
}

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("limits").required(true).multiple(true).args(["off", "concurrency", "rate", "key_concurrency", "key_rate"])))]
struct LimitArguments {
    #[command(flatten)]
    queue: QueueName,
    /// The largest number of jobs that run at once
    #[arg(long, value_name = "N", value_parser = integer::<u32>(1.., 50))]
    concurrency: Option<u32>,
    /// The largest number of jobs that start per interval: 100/1m, 5/s
    #[arg(long, value_name = "N/DURATION", value_parser = parse_rate)]
    rate: Option<QueueRate>,
    /// The largest number of jobs that run at once for each partition key
    #[arg(long, value_name = "N", value_parser = integer::<u32>(1.., 2))]
    key_concurrency: Option<u32>,
    /// The largest number of jobs that start per interval for each partition key
    #[arg(long, value_name = "N/DURATION", value_parser = parse_rate)]
    key_rate: Option<QueueRate>,
    /// Remove all limits
    #[arg(long, conflicts_with_all = ["concurrency", "rate", "key_concurrency", "key_rate"])]
    off: bool,
}

fn parse_rate(text: &str) -> Result<QueueRate, String> {
    let invalid =
        || format!("invalid rate {text:?}: write a number and a duration, for example 100/1m or 5/s");
    let (count, interval) = text.split_once('/').ok_or_else(invalid)?;
    let count = count.trim().parse().map_err(|_| invalid())?;
    let is_unit = interval.trim().starts_with(|first: char| first.is_ascii_alphabetic());
    let interval = if is_unit { format!("1{}", interval.trim()) } else { interval.trim().to_owned() };
    let per_ms = as_ms(parse_duration(&interval).map_err(|_| invalid())?);
    Ok(QueueRate { count, per_ms })
}

const QUEUES: &str = "queues";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let client = options.client()?;
    match arguments.command {
        QueueCommand::List => list::show_all(&options, &[QUEUES], &COLUMNS).await,
        QueueCommand::Pause(PauseArguments { queue: QueueName { name }, create }) => {
            if !create {
                check_exists(&client, &name, ", --create pauses a queue that has no jobs yet").await?;
            }
            client.post_empty(&[QUEUES, &name, "pause"]).await?;
            print_change(&options, &client, &name, "is paused").await
        }
        QueueCommand::Resume(QueueName { name }) => {
            check_exists(&client, &name, "").await?;
            client.post_empty(&[QUEUES, &name, "resume"]).await?;
            print_change(&options, &client, &name, "is resumed").await
        }
        QueueCommand::Limit(limit) => {
            let name = &limit.queue.name;
            if limit.off {
                check_exists(&client, name, "").await?;
                client.delete(&[QUEUES, name, "limits"]).await?;
                return print_change(&options, &client, name, "has no limits").await;
            }
            client.put(&[QUEUES, name, "limits"], &limit.limits()).await?;
            print_change(&options, &client, name, &format!("runs {}", limits_text(Some(&limit.limits()))))
                .await
        }
    }
}

impl LimitArguments {
    fn limits(&self) -> QueueLimits {
        let per_key = KeyLimits { concurrency: self.key_concurrency, rate: self.key_rate };
        QueueLimits { concurrency: self.concurrency, rate: self.rate, per_key }
    }
}

const COLUMNS: Columns<QueueStatus> = Columns {
    headers: &[
        "QUEUE",
        "STATE",
        "PENDING",
        "RETRYING",
        "RUNNING",
        "WAITING",
        "SUCCEEDED",
        "DEAD",
        "CANCELLED",
        "LIMITS",
    ],
    optional: &["CANCELLED", "WAITING", "SUCCEEDED"],
    row: |queue, _| {
        let of = |state: &str| Cell::number(queue.jobs.get(state).copied().unwrap_or(0));
        vec![
            Cell::id(&queue.name),
            Cell::state(if queue.paused { "paused" } else { "active" }),
            of("pending"),
            of("retrying"),
            of("running"),
            of("waiting"),
            of("succeeded"),
            of("dead"),
            of("cancelled"),
            Cell::text(limits_text(queue.limits.as_ref())),
        ]
    },
    empty: "there are no queues yet",
};

/// Fails unless the queue exists. The service accepts any name, so a typing mistake would look like a success.
async fn check_exists(client: &Client, name: &str, hint: &str) -> anyhow::Result<()> {
    if name == EVERY_QUEUE {
        return Ok(());
    }
    let queues = Pages::new(client, &[QUEUES], Query::new(), &Paging::all()).read_all().await?;
    if queues.parse::<QueueStatus>()?.iter().any(|queue| queue.name == name) {
        return Ok(());
    }
    let text = format!("there is no queue {name:?}: `redrive queue list` lists the queues{hint}");
    Err(ExitStatus::NotFound.error(text))
}

/// Prints the change, or the queue as JSON.
async fn print_change(
    options: &ServiceOptions,
    client: &Client,
    name: &str,
    change: &str,
) -> anyhow::Result<ExitStatus> {
    if !options.json {
        let what = if name == "*" { "every queue".to_owned() } else { name.to_owned() };
        output::line(&format!("{what} {change}"))?;
        return Ok(ExitStatus::Success);
    }
    list::show_named(client, &[QUEUES], name).await
}

fn limits_text(limits: Option<&QueueLimits>) -> String {
    let Some(limits) = limits else { return "-".to_owned() };
    let of = |concurrency: Option<u32>, rate: Option<QueueRate>, suffix: &str| {
        let at_once = concurrency.map(|max| format!("{max} at once{suffix}"));
        let starts = rate.map(|rate| format!("{} per {}{suffix}", rate.count, time::duration(rate.per_ms)));
        at_once.into_iter().chain(starts).collect::<Vec<_>>()
    };
    let mut parts = of(limits.concurrency, limits.rate, "");
    parts.extend(of(limits.per_key.concurrency, limits.per_key.rate, " per key"));
    if parts.is_empty() { "without limits".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_duration() {
        for (text, count, per_ms) in [("100/1m", 100, 60_000), ("5/s", 5, 1_000), ("1 / 500ms", 1, 500)] {
            assert_eq!(parse_rate(text).unwrap(), QueueRate { count, per_ms }, "{text}");
        }
        for text in ["", "5", "/s", "5/", "x/s", "5/x"] {
            assert!(parse_rate(text).unwrap_err().contains("100/1m"), "{text}");
        }
    }

    #[test]
    fn limits_are_described() {
        let rate = Some(QueueRate { count: 100, per_ms: 60_000 });
        let per_key = KeyLimits { concurrency: Some(2), rate: None };
        let limits = QueueLimits { concurrency: Some(50), rate, per_key };
        assert_eq!(limits_text(Some(&limits)), "50 at once, 100 per 1 min, 2 at once per key");
        assert_eq!(limits_text(None), "-");
    }
}
