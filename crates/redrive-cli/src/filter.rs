//! The filter options. Lists, counts and operations take the same ones.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use redrive_wire::filter::JobFilter;
use redrive_wire::state::{DeadReason, JobState};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Query;
use crate::options::parse_past;

const REASONS: [DeadReason; 5] = [
    DeadReason::AttemptsExhausted,
    DeadReason::BudgetExceeded,
    DeadReason::NotRetryable,
    DeadReason::BodyLost,
    DeadReason::TargetRefused,
];

/// A filter of jobs. An option that is not given matches all jobs.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct FilterOptions {
    /// Only jobs in this state
    #[arg(long, value_parser = enum_parser::<JobState>(JobState::ALL.map(JobState::name)))]
    state: Option<JobState>,
    /// Only jobs of this kind
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs with this policy, in any version
    #[arg(long = "policy", value_name = "POLICY")]
    policy_id: Option<String>,
    /// Only jobs with a target that starts with this text
    #[arg(long)]
    target: Option<String>,
    /// Only jobs with this idempotency key
    #[arg(long = "key", value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Only jobs that are dead for this reason
    #[arg(long, value_parser = enum_parser::<DeadReason>(REASONS.map(DeadReason::name)))]
    reason: Option<DeadReason>,
    /// Only jobs with this text in their payload, metadata, last error or target
    #[arg(long)]
    text: Option<String>,
    /// Only jobs of this tenant, for an API key without a tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only jobs created after this time: 2h (ago), or 2026-05-01T08:00:00Z
    #[arg(long = "since", value_name = "TIME", value_parser = parse_past)]
    created_after: Option<i64>,
    /// Only jobs created before this time
    #[arg(long = "before", value_name = "TIME", value_parser = parse_past)]
    created_before: Option<i64>,
    /// Only jobs that ended after this time
    #[arg(long = "finished-since", value_name = "TIME", value_parser = parse_past)]
    finished_after: Option<i64>,
    /// Only jobs that ended before this time
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    finished_before: Option<i64>,
}

impl FilterOptions {
    /// The filter in the form of the API.
    pub(crate) fn filter(&self) -> JobFilter {
        let options = self.clone();
        JobFilter {
            state: options.state,
            kind: options.kind,
            queue: options.queue,
            policy_id: options.policy_id,
            target: options.target,
            idempotency_key: options.idempotency_key,
            reason: options.reason,
            tenant: options.tenant,
            text: options.text,
            created_after: options.created_after,
            created_before: options.created_before,
            finished_after: options.finished_after,
            finished_before: options.finished_before,
        }
    }
}

/// Parses an enum of the API by its names.
fn enum_parser<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| serde_json::from_value(name.into()))
}

/// The fields that are set, as query parameters.
pub(crate) fn query(fields: &impl Serialize) -> Query {
    let fields = serde_json::to_value(fields).unwrap_or_default();
    let set = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    set.map(|(name, value)| (name.clone(), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        filter: FilterOptions,
    }

    #[test]
    fn only_given_options_are_part_of_the_query() {
        let command = ["x", "--state", "dead", "--reason", "body_lost", "--target", "https://a"];
        let filter = Command::try_parse_from(command).unwrap().filter.filter();
        let expected = [("reason", "body_lost"), ("state", "dead"), ("target", "https://a")];
        let mut query = query(&filter);
        query.sort();
        assert_eq!(query, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(super::query(&FilterOptions::default().filter()).is_empty());
    }
}
