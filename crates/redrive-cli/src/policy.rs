//! `redrive policy`: those of a service, and the schedule that one would give.

mod preview;

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use redrive_server::wire::policy::RetryPolicy;

use crate::call::{Answer, Query, Reach};
use crate::exit::Exit;
use crate::list::{self, Columns, Pages, Paging};
use crate::print;
use crate::table::{Cell, Sheet, word};
use crate::{values, when};

/// What to do with policies.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Register a policy, or make a new version of one
    ///
    /// Tasks that exist keep the version they were created with.
    Put(Put),
    /// Show the current version of a policy
    Get(One),
    /// List policies by name
    List(Paging),
    /// Show the waits before each retry: earliest, mean and latest
    ///
    /// Needs no service.
    Preview(Box<preview::Arguments>),
}

#[derive(clap::Args)]
struct One {
    /// The policy
    #[arg(value_name = "POLICY")]
    id: String,
}

#[derive(clap::Args)]
struct Put {
    #[command(flatten)]
    policy: One,
    /// The policy as JSON, as `get --json` shows one: a file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const POLICIES: &str = "retry-policies";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let Arguments { verb, reach } = arguments;
    match verb {
        Verb::Put(put) => {
            let policy = read(&put.file)?;
            show(&reach, &reach.service()?.put(&[POLICIES, &put.policy.id], &policy).await?)
        }
        Verb::Get(One { id }) => show(&reach, &reach.service()?.get(&[POLICIES, &id], &Query::new()).await?),
        Verb::List(paging) => {
            let service = reach.service()?;
            list::show(&reach, Pages::new(&service, &[POLICIES], Query::new(), &paging), &COLUMNS).await
        }
        Verb::Preview(preview) => preview::run(&preview, reach.json),
    }
}

fn read(path: &std::path::Path) -> anyhow::Result<RetryPolicy> {
    if path.as_os_str() != "-" {
        return values::read_policy(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
    values::parse_policy(&text, path)
}

const COLUMNS: Columns<RetryPolicy> = Columns {
    heads: &["POLICY", "VERSION", "ATTEMPTS", "BUDGET", "JITTER", "BACKOFF"],
    spare: &["JITTER"],
    row: |policy, _| {
        vec![
            Cell::whole(policy.policy_id.as_deref().unwrap_or("-")),
            Cell::maybe(policy.version.map(|version| version.to_string())),
            Cell::maybe(policy.max_attempts.map(|attempts| attempts.to_string())),
            Cell::text(budget(policy)),
            Cell::text(policy.jitter_type.map(|jitter| word(&jitter)).unwrap_or_default()),
            Cell::text(backoff(policy)),
        ]
    },
    none: "there are no policies",
};

fn budget(policy: &RetryPolicy) -> String {
    policy.total_budget_ms.flatten().map_or_else(|| "none".to_owned(), when::span)
}

fn backoff(policy: &RetryPolicy) -> String {
    let mut text = policy.backoff_type.map(|backoff| word(&backoff)).unwrap_or_default();
    if let Some(delays) = &policy.delays_ms {
        let delays: Vec<String> = delays.iter().copied().map(when::span).collect();
        text += &format!(" {}", delays.join(", "));
    }
    text += &policy.initial_delay_ms.map(|first| format!(" from {}", when::span(first))).unwrap_or_default();
    text += &policy.multiplier.map(|factor| format!(" times {factor}")).unwrap_or_default();
    text += &policy.exponent.map(|power| format!(" to the power {power}")).unwrap_or_default();
    text + &policy.max_delay_ms.map(|most| format!(", at most {}", when::span(most))).unwrap_or_default()
}

fn show(reach: &Reach, answer: &Answer) -> anyhow::Result<Exit> {
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
        return Ok(Exit::Done);
    }
    let policy: RetryPolicy = answer.read()?;
    let mut sheet = Sheet::new(answer.look());
    sheet.maybe("policy", policy.policy_id.as_deref());
    sheet.maybe("version", policy.version.map(|version| version.to_string()));
    sheet.maybe("attempts", policy.max_attempts.map(|attempts| attempts.to_string()));
    sheet.line("backoff", backoff(&policy));
    sheet.maybe("jitter", policy.jitter_type.map(|jitter| word(&jitter)));
    sheet.maybe("jitter by", policy.jitter_fraction.map(|fraction| fraction.to_string()));
    sheet.maybe("jitter by", policy.jitter_ms.map(when::span));
    sheet.line("budget", budget(&policy));
    sheet.maybe("retries", policy.retryable_status_codes.as_ref().map(listed));
    sheet.maybe("retries gRPC", policy.retryable_grpc_codes.as_ref().map(listed));
    sheet.maybe(
        "attempt takes",
        policy.attempt_timeout_ms.map(|most| format!("{} at most", when::span(most))),
    );
    sheet.maybe("lease", policy.visibility_timeout_ms.map(when::span));
    sheet.maybe("on success", policy.on_success_url.as_deref());
    sheet.maybe("on exhausted", policy.on_exhausted_url.as_deref());
    sheet.maybe("signed with", policy.signing_secret.as_deref());
    print::text(&sheet.show())?;
    Ok(Exit::Done)
}

fn listed(codes: &std::collections::BTreeSet<u16>) -> String {
    if codes.is_empty() {
        return "nothing".to_owned();
    }
    codes.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}
