//! Which tasks, jobs and dead letters a command is about, as its flags say it.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::call::Query;
use crate::when::parse_past;

/// The statuses of a task.
const STATUSES: [&str; 5] = ["pending", "in-flight", "succeeded", "exhausted", "cancelled"];
/// The states of a job.
const STATES: [&str; 7] = ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled"];
/// Why something is dead.
const REASONS: [&str; 5] =
    ["attempts-exhausted", "budget-exceeded", "not-retryable", "body-lost", "target-refused"];

/// One of these words, as the service writes it.
fn word(words: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = String> {
    words.into().map(|word| word.to_ascii_uppercase().replace('-', "_"))
}

/// Which tasks.
#[derive(clap::Args, Serialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tasks {
    /// With this status
    #[arg(long, value_parser = word(STATUSES))]
    status: Option<String>,
    /// Under any version of this policy
    #[arg(long = "policy", value_name = "POLICY")]
    policy_id: Option<String>,
    /// With a target that begins so
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// With this idempotency key
    #[arg(long = "key", value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Exhausted for this reason
    #[arg(long, value_parser = word(REASONS))]
    reason: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    created: Created,
    #[command(flatten)]
    #[serde(flatten)]
    within: Within,
}

/// Which jobs.
#[derive(clap::Args, Serialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Jobs {
    /// In this state
    #[arg(long, value_parser = STATES)]
    state: Option<String>,
    /// Of this kind
    #[arg(long)]
    kind: Option<String>,
    /// In this queue
    #[arg(long)]
    queue: Option<String>,
    /// Under any version of this policy
    #[arg(long = "policy", value_name = "POLICY")]
    policy_id: Option<String>,
    /// About something that begins so
    #[arg(long)]
    subject: Option<String>,
    /// With this idempotency key
    #[arg(long = "key", value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Dead for this reason
    #[arg(long, value_parser = word(REASONS))]
    reason: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    created: Created,
    #[command(flatten)]
    #[serde(flatten)]
    within: Within,
}

/// When something was created.
#[derive(clap::Args, Serialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
struct Created {
    /// Created after this instant: 2h (ago), or 2026-05-01T08:00:00Z
    #[arg(long = "since", value_name = "WHEN", value_parser = parse_past)]
    created_after: Option<i64>,
    /// Created before this instant
    #[arg(long = "before", value_name = "WHEN", value_parser = parse_past)]
    created_before: Option<i64>,
}

/// What is looked at beside the fields that are indexed.
#[derive(clap::Args, Serialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
struct Within {
    /// With this text in its payload, metadata or last error
    #[arg(long)]
    text: Option<String>,
    /// Of this tenant, for a key that sees all
    #[arg(long)]
    tenant: Option<String>,
}

/// Which dead letters: tasks, or jobs of the kind that is named.
#[derive(clap::Args, Serialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetters {
    /// Jobs of this kind instead of tasks
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Under any version of this policy
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policy_id: Option<String>,
    /// With a target, or about something, that begins so
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Dead for this reason
    #[arg(long, value_parser = word(REASONS))]
    pub(crate) reason: Option<String>,
    /// Dead since this instant: 2h (ago), or 2026-05-01T08:00:00Z
    #[arg(long = "since", value_name = "WHEN", value_parser = parse_past)]
    pub(crate) finished_after: Option<i64>,
    /// Dead before this instant
    #[arg(long = "before", value_name = "WHEN", value_parser = parse_past)]
    pub(crate) finished_before: Option<i64>,
}

impl DeadLetters {
    /// Where they are listed, and how the list is narrowed. Those of other kinds are among the jobs.
    pub(crate) fn listed(&self) -> (&'static str, Query) {
        if self.kind.is_none() {
            return ("dead-letters", query(self));
        }
        let mut query = query(self);
        for (name, _) in &mut query {
            if name == "target" {
                *name = "subject".to_owned();
            }
        }
        query.push(("state".to_owned(), "dead".to_owned()));
        ("jobs", query)
    }
}

/// The fields that say something, as they follow the `?` of a path.
pub(crate) fn query(fields: &impl Serialize) -> Query {
    let fields = serde_json::to_value(fields).unwrap_or_default();
    let stated = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let plain = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    stated.map(|(name, value)| (name.clone(), plain(value))).collect()
}

#[cfg(test)]
mod tests {
    use redrive_core::State;
    use redrive_server::wire::listing::WhyExhausted;
    use redrive_server::wire::status::Status;

    use super::*;

    #[test]
    fn every_word_is_one_that_the_service_knows() {
        let screaming = |word: &str| word.to_ascii_uppercase().replace('-', "_");
        assert_eq!(STATUSES.map(screaming), Status::ALL.map(|status| status.name().to_owned()));
        assert_eq!(STATES.len(), State::ALL.len());
        for state in State::ALL {
            assert!(STATES.contains(&state.name()), "{state}");
        }
        for reason in REASONS {
            let known = serde_json::from_value::<WhyExhausted>(screaming(reason).into());
            assert!(known.is_ok(), "{reason}");
        }
    }

    #[test]
    fn only_what_is_said_narrows() {
        let letters = DeadLetters { target: Some("https://a".into()), ..DeadLetters::default() };
        assert_eq!(letters.listed(), ("dead-letters", vec![("target".into(), "https://a".into())]));
        let jobs = DeadLetters { kind: Some("mail".into()), finished_after: Some(5), ..letters };
        let (path, mut query) = jobs.listed();
        query.sort();
        let expected =
            [("finishedAfter", "5"), ("kind", "mail"), ("state", "dead"), ("subject", "https://a")];
        assert_eq!((path, query), ("jobs", expected.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()));
    }
}
