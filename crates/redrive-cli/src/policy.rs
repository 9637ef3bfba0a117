//! `redrive policy`: the retry policies of a service, and a preview of their waits.

mod preview;

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use redrive_wire::policy::RetryPolicy;

use crate::client::{Answer, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options;
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::{Cell, FieldList};
use crate::output::time;
use crate::output::{self, enum_name};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: PolicyCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    /// Create a policy, or a new version of it
    ///
    /// Existing tasks keep the version that they were created with.
    Put(PutArguments),
    /// Show the current version of a policy
    Get(PolicyName),
    /// List policies
    List(Paging),
    /// Show the wait before each retry: earliest, mean and latest
    ///
    /// It needs no service.
    Preview(Box<preview::Arguments>),
}

#[derive(clap::Args)]
struct PolicyName {
    /// The name of the policy
    #[arg(value_name = "POLICY")]
    id: String,
}

#[derive(clap::Args)]
struct PutArguments {
    #[command(flatten)]
    policy: PolicyName,
    /// A JSON file with the policy, as `get --json` prints it; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const POLICIES: &str = "policies";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let Arguments { command, options } = arguments;
    match command {
        PolicyCommand::Put(put) => {
            let policy = read(&put.file)?;
            show(&options, &options.client()?.put(&[POLICIES, &put.policy.id], &policy).await?)
        }
        PolicyCommand::Get(PolicyName { id }) => {
            show(&options, &options.client()?.get(&[POLICIES, &id], &Query::new()).await?)
        }
        PolicyCommand::List(paging) => {
            let client = options.client()?;
            list::show(&options, Pages::new(&client, &[POLICIES], Query::new(), &paging), &COLUMNS).await
        }
        PolicyCommand::Preview(preview) => preview::run(&preview, options.json),
    }
}

fn read(path: &std::path::Path) -> anyhow::Result<RetryPolicy> {
    if path.as_os_str() != "-" {
        return options::read_policy(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    options::parse_policy(&text, path)
}

const COLUMNS: Columns<RetryPolicy> = Columns {
    headers: &["POLICY", "VERSION", "ATTEMPTS", "BUDGET", "JITTER", "BACKOFF"],
    optional: &["JITTER"],
    row: |policy, _| {
        vec![
            Cell::id(policy.policy_id.as_deref().unwrap_or("-")),
            Cell::optional(policy.version.map(|version| version.to_string())),
            Cell::optional(policy.max_attempts.map(|attempts| attempts.to_string())),
            Cell::text(budget(policy)),
            Cell::text(policy.jitter_type.map(|jitter| enum_name(&jitter)).unwrap_or_default()),
            Cell::text(backoff(policy)),
        ]
    },
    empty: "there are no policies",
};

fn budget(policy: &RetryPolicy) -> String {
    policy.total_budget_ms.flatten().map_or_else(|| "none".to_owned(), time::duration)
}

fn backoff(policy: &RetryPolicy) -> String {
    let mut text = policy.backoff_type.map(|backoff| enum_name(&backoff)).unwrap_or_default();
    if let Some(delays) = &policy.delays_ms {
        let delays: Vec<String> = delays.iter().copied().map(time::duration).collect();
        text += &format!(" {}", delays.join(", "));
    }
    text +=
        &policy.initial_delay_ms.map(|first| format!(" from {}", time::duration(first))).unwrap_or_default();
    text += &policy.multiplier.map(|factor| format!(" times {factor}")).unwrap_or_default();
    text += &policy.exponent.map(|power| format!(" to the power {power}")).unwrap_or_default();
    text + &policy.max_delay_ms.map(|most| format!(", at most {}", time::duration(most))).unwrap_or_default()
}

fn show(options: &ServiceOptions, answer: &Answer) -> anyhow::Result<ExitStatus> {
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
        return Ok(ExitStatus::Success);
    }
    let policy: RetryPolicy = answer.read()?;
    let mut fields = FieldList::new(answer.style());
    fields.add_optional("policy", policy.policy_id.as_deref());
    fields.add_optional("version", policy.version.map(|version| version.to_string()));
    fields.add_optional("attempts", policy.max_attempts.map(|attempts| attempts.to_string()));
    fields.add("backoff", backoff(&policy));
    fields.add_optional("jitter", policy.jitter_type.map(|jitter| enum_name(&jitter)));
    fields.add_optional("jitter by", policy.jitter_fraction.map(|fraction| fraction.to_string()));
    fields.add_optional("jitter by", policy.jitter_ms.map(time::duration));
    fields.add("time budget", budget(&policy));
    fields.add_optional("retried statuses", policy.retryable_status_codes.as_ref().map(codes_text));
    fields.add_optional("retried gRPC codes", policy.retryable_grpc_codes.as_ref().map(codes_text));
    fields.add_optional("attempt timeout", policy.attempt_timeout_ms.map(time::duration));
    fields.add_optional("lease", policy.lease_ms.map(time::duration));
    fields.add_optional("on success", policy.on_success_url.as_deref());
    fields.add_optional("on failure", policy.on_failure_url.as_deref());
    fields.add_optional("signed with", policy.signing_secret.as_deref());
    output::text(&fields.render())?;
    Ok(ExitStatus::Success)
}

fn codes_text(codes: &std::collections::BTreeSet<u16>) -> String {
    if codes.is_empty() {
        return "none".to_owned();
    }
    codes.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}
