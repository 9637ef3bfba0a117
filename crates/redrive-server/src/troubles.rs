//! What is wrong now, as sentences that say where to look.

use std::time::Duration;

use redrive_core::store::Stats;
use redrive_core::{State, Timestamp};
use redrive_delivery::KIND;

use crate::nodes::ClosedGate;
use crate::wire::group::DeadLetterGroup;
use crate::wire::node::Node;
use crate::wire::overview::{Severity, Trouble};

/// How late a job may be before someone should look.
const LATE: Duration = Duration::from_secs(60);
/// How late it may be before someone must.
const VERY_LATE: Duration = Duration::from_secs(5 * 60);
/// How long a node of the service may be silent: it gives two signs of life a minute.
const SILENT: Duration = Duration::from_secs(90);
/// Groups of dead letters that are told of.
const GROUPS_MAX: usize = 5;
/// Characters of an error that are told.
const ERROR_CHARS_MAX: usize = 80;

fn trouble(severity: Severity, text: String, page: &str, query: &[(&str, String)]) -> Trouble {
    let query = query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Trouble { severity, text, page: page.to_owned(), query }
}

/// Gates that are closed.
pub(crate) fn of_gates(closed: &[ClosedGate]) -> impl Iterator<Item = Trouble> {
    closed.iter().map(|gate| {
        let text = format!("gate of {} closed for {}", gate.origin, span(Duration::from_millis(gate.for_ms)));
        trouble(Severity::Bad, text, "origins", &[("origin", gate.origin.clone())])
    })
}

/// Dead letters of the last hour.
pub(crate) fn of_dead_letters(groups: &[DeadLetterGroup]) -> impl Iterator<Item = Trouble> {
    groups.iter().take(GROUPS_MAX).map(|group| {
        let more = if group.at_least { "at least " } else { "" };
        let (count, reason) = (number(group.count), redrive_core::Reason::from(group.reason).name());
        let what = match (group.kind.as_str(), group.count) {
            (KIND, 1) => "task exhausted".to_owned(),
            (KIND, _) => "tasks exhausted".to_owned(),
            (kind, 1) => format!("job of kind {kind} died"),
            (kind, _) => format!("jobs of kind {kind} died"),
        };
        let target =
            if group.target == group.kind { String::new() } else { format!(" for {}", group.target) };
        let error =
            group.example.error.as_deref().map(|error| format!(": {}", cut(error))).unwrap_or_default();
        let text = format!("{more}{count} {what} in the last hour{target} ({reason}{error})");
        let mut query = vec![("reason", reason.to_owned()), ("kind", group.kind.clone())];
        if group.target != group.kind {
            query.push(("subject", group.target.clone()));
        }
        trouble(Severity::Bad, text, "dead", &query)
    })
}

/// Queues that are paused while jobs wait in them, and jobs that nobody takes.
pub(crate) fn of_queues(stats: &Stats, paused: &[String]) -> Vec<Trouble> {
    let waiting = |queue: Option<&str>| -> u64 {
        let those = stats.counts.iter().filter(|((name, state), _)| {
            queue.is_none_or(|queue| queue == name.as_str()) && state.is_claimable()
        });
        those.map(|(_, jobs)| jobs).sum()
    };
    let mut troubles = Vec::new();
    for queue in paused {
        let (what, jobs) = match queue.as_str() {
            "*" => ("every queue is paused".to_owned(), waiting(None)),
            queue => (format!("queue {queue} is paused"), waiting(Some(queue))),
        };
        if jobs > 0 {
            let text = format!("{what} with {} waiting", counted(jobs, "job"));
            troubles.push(trouble(Severity::Warn, text, "queues", &[("queue", queue.clone())]));
        }
    }
    let late = stats.oldest_due.map_or(Duration::ZERO, |due| stats.now.since(due));
    if late >= LATE && paused.is_empty() {
        let severity = if late >= VERY_LATE { Severity::Bad } else { Severity::Warn };
        let text = format!("oldest due job waits {}: are there workers?", span(late));
        troubles.push(trouble(severity, text, "jobs", &[("state", State::Pending.name().to_owned())]));
    }
    troubles
}

/// Nodes that hold leases and give no sign of life.
pub(crate) fn of_nodes(nodes: &[Node], now: Timestamp) -> impl Iterator<Item = Trouble> {
    nodes.iter().filter(|node| node.leases > 0).filter_map(move |node| {
        let silent = now.since(Timestamp::from_ms(node.seen_at?));
        let text = format!(
            "node {} not seen for {} with {}",
            node.name,
            span(silent),
            counted(node.leases, "lease")
        );
        (silent > SILENT).then(|| trouble(Severity::Bad, text, "nodes", &[]))
    })
}

/// Nodes that make no attempts because of a problem of their own.
pub(crate) fn of_node_problems(nodes: &[Node], now: Timestamp) -> impl Iterator<Item = Trouble> {
    let seen = move |node: &&Node| node.seen_at.is_some_and(|at| now.since(Timestamp::from_ms(at)) <= SILENT);
    nodes.iter().filter(seen).filter_map(move |node| {
        let problem = node.problem.as_deref()?;
        let since = node.problem_since.map_or(Duration::ZERO, |at| now.since(Timestamp::from_ms(at)));
        let text = format!("node {} has made no attempts for {}: {problem}", node.name, span(since));
        Some(trouble(Severity::Bad, text, "nodes", &[]))
    })
}

/// A span as people say it, in its largest unit.
fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count))
}

/// A number with its thousands apart.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_are_said_as_people_say_them() {
        for (count, said) in [(7, "7"), (999, "999"), (1_200, "1,200"), (1_234_567, "1,234,567")] {
            assert_eq!(number(count), said);
        }
        for (seconds, said) in [(59, "59 s"), (180, "3 min"), (7_200, "2 h"), (200_000, "2 days")] {
            assert_eq!(span(Duration::from_secs(seconds)), said);
        }
        assert_eq!(cut(&"é".repeat(200)).chars().count(), ERROR_CHARS_MAX + 1);
        assert_eq!(cut("first\nsecond"), "first");
    }

    #[test]
    fn a_job_that_waits_is_no_trouble_while_its_queue_is_paused() {
        let now = Timestamp::from_ms(1_000_000);
        let queue = redrive_core::Queue::new("mail").unwrap();
        let counts = [((queue, State::Pending), 1_200)].into();
        let stats = Stats { now, counts, oldest_due: Some(Timestamp::from_ms(760_000)) };
        let texts = |paused: &[&str]| -> Vec<String> {
            let paused: Vec<String> = paused.iter().map(|name| (*name).to_owned()).collect();
            of_queues(&stats, &paused).into_iter().map(|trouble| trouble.text).collect()
        };
        assert_eq!(texts(&[]), ["oldest due job waits 4 min: are there workers?"]);
        assert_eq!(texts(&["mail", "other"]), ["queue mail is paused with 1,200 jobs waiting"]);
        assert_eq!(texts(&["*"]), ["every queue is paused with 1,200 jobs waiting"]);
    }
}
