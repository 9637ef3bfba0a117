//! The filter of a page: read from the query, sent to the API, and added to links and operations.

use redrive_wire::task::TASK_KIND;
use serde_json::{Map, Value, json};

use crate::api::query;
use crate::form::FormFields;
use crate::text;

/// The number of jobs on a page.
pub(crate) const PAGE_ITEMS: &str = "50";
/// The kind of tasks.
pub(crate) const DELIVERY: &str = TASK_KIND;
/// All job states, from the first to the final ones.
pub(crate) const STATES: [&str; 7] =
    ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled"];
/// The reasons why a job is dead.
pub(crate) const REASONS: [&str; 5] =
    ["attempts_exhausted", "budget_exceeded", "not_retryable", "body_lost", "target_refused"];
/// The options of `since`: name, label and length in ms.
pub(crate) const SINCE: [(&str, &str, i64); 4] = [
    ("15m", "last 15 minutes", 900_000),
    ("1h", "last hour", 3_600_000),
    ("24h", "last 24 hours", 86_400_000),
    ("7d", "last 7 days", 604_800_000),
];

/// A filter of jobs. An empty field matches all jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) state: String,
    pub(crate) kind: String,
    pub(crate) queue: String,
    pub(crate) policy_id: String,
    pub(crate) target: String,
    pub(crate) reason: String,
    pub(crate) tenant: String,
    pub(crate) text: String,
    /// Created within this time before now.
    pub(crate) since: String,
    /// Created at or after this minute, in UTC.
    pub(crate) from: String,
    /// Created before this minute, in UTC.
    pub(crate) to: String,
    /// Ended after this time, in epoch ms.
    pub(crate) finished_after: String,
    /// Ended before this time, in epoch ms.
    pub(crate) finished_before: String,
}

impl Filter {
    /// Reads the filter from a query or a form.
    pub(crate) fn read(fields: &FormFields) -> Self {
        let either =
            |one: &str, other: &str| fields.get(one).or(fields.get(other)).unwrap_or_default().to_owned();
        Self {
            state: fields.text("state").to_lowercase(),
            kind: fields.text("kind"),
            queue: fields.text("queue"),
            policy_id: fields.text("policyId"),
            target: either("target", "subject"),
            reason: fields.text("reason"),
            tenant: fields.text("tenant"),
            text: fields.text("text"),
            since: fields.text("since"),
            from: fields.text("from"),
            to: fields.text("to"),
            finished_after: fields.text("finishedAfter"),
            finished_before: fields.text("finishedBefore"),
        }
    }

    /// Restricts the filter to tasks.
    pub(crate) fn for_tasks(self) -> Self {
        Self { kind: DELIVERY.to_owned(), ..self }
    }

    /// Whether a field other than the kind is set.
    pub(crate) fn is_set(&self) -> bool {
        let plain = Self { kind: self.kind.clone(), ..Self::default() };
        *self != plain
    }

    /// Whether one of the rarely used fields is set.
    pub(crate) fn has_rare_fields(&self) -> bool {
        let rare = [&self.policy_id, &self.reason, &self.tenant, &self.from, &self.to];
        rare.iter().any(|field| !field.is_empty())
    }

    /// The address of a page with this filter.
    pub(crate) fn link(&self, path: &str, more: &[(&str, &str)]) -> String {
        query(path, self.pairs().into_iter().chain(more.iter().copied()))
    }

    /// The fields that are set, by their names in a query of the console.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("state", &self.state),
            ("kind", &self.kind),
            ("queue", &self.queue),
            ("policyId", &self.policy_id),
            ("target", &self.target),
            ("reason", &self.reason),
            ("tenant", &self.tenant),
            ("text", &self.text),
            ("since", &self.since),
            ("from", &self.from),
            ("to", &self.to),
            ("finishedAfter", &self.finished_after),
            ("finishedBefore", &self.finished_before),
        ];
        all.into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name, value.as_str()))
            .collect()
    }

    /// The path of an API list with this filter. `now` is the end of `since`, in epoch ms.
    pub(crate) fn api(&self, path: &str, now: i64, more: &[(&str, &str)]) -> String {
        let (after, before) = self.creation_range(now);
        let times = [("createdAfter", after), ("createdBefore", before)];
        let times = times.iter().filter_map(|(name, at)| Some((*name, (*at)?.to_string())));
        let times: Vec<(&str, String)> = times.collect();
        let api_fields =
            self.pairs().into_iter().filter(|(name, _)| !matches!(*name, "since" | "from" | "to"));
        let times = times.iter().map(|(name, at)| (*name, at.as_str()));
        query(path, api_fields.chain(times).chain(more.iter().copied()))
    }

    /// The filter of an operation, as JSON.
    pub(crate) fn operation(&self, now: i64) -> Value {
        let api_fields =
            self.pairs().into_iter().filter(|(name, _)| !matches!(*name, "since" | "from" | "to"));
        let mut filter: Map<String, Value> = api_fields
            .map(|(name, value)| match (name, value.parse::<i64>()) {
                ("finishedAfter" | "finishedBefore", Ok(at)) => (name.to_owned(), json!(at)),
                _ => (name.to_owned(), json!(value)),
            })
            .collect();
        let (after, before) = self.creation_range(now);
        for (name, at) in [("createdAfter", after), ("createdBefore", before)] {
            if let Some(at) = at {
                filter.insert(name.to_owned(), json!(at));
            }
        }
        Value::Object(filter)
    }

    /// Describes the filter in words, such as `dead tasks, created in the last hour`.
    pub(crate) fn description(&self) -> String {
        let noun = if self.kind == DELIVERY { "tasks".to_owned() } else { "jobs".to_owned() };
        let mut parts = vec![if self.state.is_empty() { noun } else { format!("{} {noun}", self.state) }];
        let mut add = |text: String, value: &str| {
            if !value.is_empty() {
                parts.push(text)
            }
        };
        if self.kind != DELIVERY {
            add(format!("of kind {}", self.kind), &self.kind);
        }
        add(format!("in queue {}", self.queue), &self.queue);
        add(format!("under policy {}", self.policy_id), &self.policy_id);
        add(format!("with a target that starts with {}", self.target), &self.target);
        add(format!("with reason {}", text::words(&self.reason)), &self.reason);
        add(format!("of tenant {}", self.tenant), &self.tenant);
        add(format!("with the text {:?} in payload, error or metadata", self.text), &self.text);
        let since = SINCE.iter().find(|(name, ..)| *name == self.since).map_or("", |(_, label, _)| label);
        add(format!("created in the {since}"), since);
        add(format!("created at or after {} UTC", self.from), &self.from);
        add(format!("created before {} UTC", self.to), &self.to);
        let at = |ms: &str| ms.parse().map(text::utc).unwrap_or_default();
        add(format!("ended after {} UTC", at(&self.finished_after)), &self.finished_after);
        add(format!("ended before {} UTC", at(&self.finished_before)), &self.finished_before);
        parts.join(", ")
    }

    /// The start and the end of the creation time, in epoch ms.
    fn creation_range(&self, now: i64) -> (Option<i64>, Option<i64>) {
        let since = SINCE.iter().find(|(name, ..)| *name == self.since).map(|(.., span)| now - span);
        (text::parse_utc(&self.from).or(since), text::parse_utc(&self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_added_to_links_api_paths_and_operations() {
        let fields = FormFields::parse(b"state=dead&target=http%3A%2F%2Fa&since=1h&finishedAfter=5&token=x");
        let filter = Filter::read(&fields).for_tasks();
        assert_eq!(
            filter.link("/console/tasks", &[("cursor", "c")]),
            "/console/tasks?state=dead&kind=delivery&target=http%3A%2F%2Fa&since=1h&finishedAfter=5&cursor=c"
        );
        assert_eq!(
            filter.api("/jobs", 3_600_007, &[("limit", "5")]),
            "/jobs?state=dead&kind=delivery&target=http%3A%2F%2Fa&finishedAfter=5&createdAfter=7&limit=5"
        );
        let operation = filter.operation(3_600_007);
        let expected = json!({"state": "dead", "kind": "delivery", "target": "http://a", "finishedAfter": 5, "createdAfter": 7});
        assert_eq!(operation, expected);
        assert!(filter.is_set() && !Filter::default().for_tasks().is_set());
        assert!(
            filter
                .description()
                .starts_with("dead tasks, with a target that starts with http://a, created in the last hour")
        );
    }
}
