//! Which tasks or jobs a page is about: read from its query, sent to the API, and written into links and operations.

use redrive_server::wire::listing::WhyExhausted;
use serde_json::{Map, Value, json};

use crate::api::query;
use crate::form::Fields;
use crate::words;

/// Jobs on a page.
pub(crate) const PAGE_ITEMS: &str = "50";
/// The kind of job that a task is.
pub(crate) const DELIVERY: &str = "delivery";
/// Every state, as a filter offers it.
pub(crate) const STATES: [&str; 7] =
    ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled"];
/// Every reason for being dead.
pub(crate) const REASONS: [&str; 5] =
    ["ATTEMPTS_EXHAUSTED", "BUDGET_EXCEEDED", "NOT_RETRYABLE", "BODY_LOST", "TARGET_REFUSED"];
/// What `since` offers, with its length.
pub(crate) const SINCE: [(&str, &str, i64); 4] = [
    ("15m", "last 15 minutes", 900_000),
    ("1h", "last hour", 3_600_000),
    ("24h", "last 24 hours", 86_400_000),
    ("7d", "last 7 days", 604_800_000),
];

/// A reason by the name it has in a query.
pub(crate) fn reason_name(reason: WhyExhausted) -> &'static str {
    match reason {
        WhyExhausted::AttemptsExhausted => "ATTEMPTS_EXHAUSTED",
        WhyExhausted::BudgetExceeded => "BUDGET_EXCEEDED",
        WhyExhausted::NotRetryable => "NOT_RETRYABLE",
        WhyExhausted::BodyLost => "BODY_LOST",
        WhyExhausted::TargetRefused => "TARGET_REFUSED",
    }
}

/// Which jobs; what is empty does not narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) state: String,
    pub(crate) kind: String,
    pub(crate) queue: String,
    pub(crate) policy_id: String,
    pub(crate) subject: String,
    pub(crate) reason: String,
    pub(crate) tenant: String,
    pub(crate) text: String,
    /// Enqueued within this span before now.
    pub(crate) since: String,
    /// Enqueued from this minute on, in UTC.
    pub(crate) from: String,
    /// Enqueued before this minute, in UTC.
    pub(crate) to: String,
    /// Ended after this instant, in epoch ms.
    pub(crate) finished_after: String,
    /// Ended before this instant, in epoch ms.
    pub(crate) finished_before: String,
}

impl Filter {
    /// As a query says it.
    pub(crate) fn read(fields: &Fields) -> Self {
        let either =
            |one: &str, other: &str| fields.get(one).or(fields.get(other)).unwrap_or_default().to_owned();
        Self {
            state: fields.text("state").to_lowercase(),
            kind: fields.text("kind"),
            queue: fields.text("queue"),
            policy_id: fields.text("policyId"),
            subject: either("subject", "target"),
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

    /// The same about tasks alone.
    pub(crate) fn of_tasks(self) -> Self {
        Self { kind: DELIVERY.to_owned(), ..self }
    }

    /// Whether anything beside the kind narrows it.
    pub(crate) fn narrows(&self) -> bool {
        let plain = Self { kind: self.kind.clone(), ..Self::default() };
        *self != plain
    }

    /// Whether something narrows it that is seldom asked for.
    pub(crate) fn narrows_further(&self) -> bool {
        let seldom = [&self.policy_id, &self.reason, &self.tenant, &self.from, &self.to];
        seldom.iter().any(|field| !field.is_empty())
    }

    /// A page of the console with this filter.
    pub(crate) fn link(&self, path: &str, more: &[(&str, &str)]) -> String {
        query(path, self.pairs().into_iter().chain(more.iter().copied()))
    }

    /// The fields that are not empty, by their names in a query of the console.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("state", &self.state),
            ("kind", &self.kind),
            ("queue", &self.queue),
            ("policyId", &self.policy_id),
            ("subject", &self.subject),
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

    /// A path of the API with this filter.
    pub(crate) fn api(&self, path: &str, now: i64, more: &[(&str, &str)]) -> String {
        let (after, before) = self.created(now);
        let times = [("createdAfter", after), ("createdBefore", before)];
        let times = times.iter().filter_map(|(name, at)| Some((*name, (*at)?.to_string())));
        let times: Vec<(&str, String)> = times.collect();
        let own = self.pairs().into_iter().filter(|(name, _)| !matches!(*name, "since" | "from" | "to"));
        let times = times.iter().map(|(name, at)| (*name, at.as_str()));
        query(path, own.chain(times).chain(more.iter().copied()))
    }

    /// As an operation takes it.
    pub(crate) fn operation(&self, now: i64) -> Value {
        let own = self.pairs().into_iter().filter(|(name, _)| !matches!(*name, "since" | "from" | "to"));
        let mut filter: Map<String, Value> = own
            .map(|(name, value)| match (name, value.parse::<i64>()) {
                ("finishedAfter" | "finishedBefore", Ok(at)) => (name.to_owned(), json!(at)),
                _ => (name.to_owned(), json!(value)),
            })
            .collect();
        let (after, before) = self.created(now);
        for (name, at) in [("createdAfter", after), ("createdBefore", before)] {
            if let Some(at) = at {
                filter.insert(name.to_owned(), json!(at));
            }
        }
        Value::Object(filter)
    }

    /// What it is about, in words.
    pub(crate) fn sentence(&self) -> String {
        let thing = if self.kind == DELIVERY { "tasks".to_owned() } else { "jobs".to_owned() };
        let mut parts = vec![if self.state.is_empty() { thing } else { format!("{} {thing}", self.state) }];
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
        add(format!("about {}…", self.subject), &self.subject);
        add(format!("dead because {}", words::plain(&self.reason)), &self.reason);
        add(format!("of tenant {}", self.tenant), &self.tenant);
        add(format!("with {:?} in payload, error or metadata", self.text), &self.text);
        let since = SINCE.iter().find(|(name, ..)| *name == self.since).map_or("", |(_, words, _)| words);
        add(format!("enqueued in the {since}"), since);
        add(format!("enqueued from {} UTC", self.from), &self.from);
        add(format!("enqueued before {} UTC", self.to), &self.to);
        let at = |ms: &str| ms.parse().map(words::utc).unwrap_or_default();
        add(format!("ended after {} UTC", at(&self.finished_after)), &self.finished_after);
        add(format!("ended before {} UTC", at(&self.finished_before)), &self.finished_before);
        parts.join(", ")
    }

    /// When they were enqueued: after and before which instants.
    fn created(&self, now: i64) -> (Option<i64>, Option<i64>) {
        let since = SINCE.iter().find(|(name, ..)| *name == self.since).map(|(.., span)| now - span);
        (words::instant(&self.from).or(since), words::instant(&self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_goes_to_links_to_the_api_and_to_operations() {
        let fields = Fields::parse(b"state=dead&target=http%3A%2F%2Fa&since=1h&finishedAfter=5&token=x");
        let filter = Filter::read(&fields).of_tasks();
        assert_eq!(
            filter.link("/console/tasks", &[("cursor", "c")]),
            "/console/tasks?state=dead&kind=delivery&subject=http%3A%2F%2Fa&since=1h&finishedAfter=5&cursor=c"
        );
        assert_eq!(
            filter.api("/jobs", 3_600_007, &[("limit", "5")]),
            "/jobs?state=dead&kind=delivery&subject=http%3A%2F%2Fa&finishedAfter=5&createdAfter=7&limit=5"
        );
        let operation = filter.operation(3_600_007);
        let expected = json!({"state": "dead", "kind": "delivery", "subject": "http://a", "finishedAfter": 5, "createdAfter": 7});
        assert_eq!(operation, expected);
        assert!(filter.narrows() && !Filter::default().of_tasks().narrows());
        assert!(filter.sentence().starts_with("dead tasks, about http://a…, enqueued in the last hour"));
    }
}
