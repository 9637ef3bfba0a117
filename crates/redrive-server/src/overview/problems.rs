//! The current problems of the overview: a sentence each, and the page that shows more.

use std::time::Duration;

use redrive_core::store::Stats;
use redrive_core::{State, Timestamp, text};
use redrive_delivery::KIND;

use crate::nodes::BlockedGate;
use redrive_wire::group::DeadLetterGroup;
use redrive_wire::node::Node;
use redrive_wire::overview::{CurrentProblem, ProblemSeverity};

/// A due job that waits this long is a warning.
const LATE_AFTER: Duration = Duration::from_secs(60);
/// A due job that waits this long is an error.
const VERY_LATE_AFTER: Duration = Duration::from_secs(5 * 60);
/// A node without a heartbeat for this long is silent. Nodes write two heartbeats per minute.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(90);
/// Groups of dead letters that are reported.
const GROUPS_MAX: usize = 5;
/// Characters of an error that a sentence quotes.
const ERROR_CHARS_MAX: usize = 80;

fn current_problem(
    severity: ProblemSeverity,
    text: String,
    page: &str,
    query: &[(&str, String)],
) -> CurrentProblem {
    let query = query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    CurrentProblem { severity, text, page: page.to_owned(), query }
}

/// Blocked gates.
pub(super) fn of_gates(blocked: &[BlockedGate]) -> impl Iterator<Item = CurrentProblem> {
    blocked.iter().map(|gate| {
        let duration = text::duration(Duration::from_millis(gate.for_ms));
        let text = format!("gate of {} blocked for {duration}", gate.origin);
        current_problem(ProblemSeverity::Bad, text, "origins", &[("origin", gate.origin.clone())])
    })
}

/// Dead letters of the last hour.
pub(super) fn of_dead_letters(groups: &[DeadLetterGroup]) -> impl Iterator<Item = CurrentProblem> {
    groups.iter().take(GROUPS_MAX).map(|group| {
        let at_least = if group.at_least { "at least " } else { "" };
        let (count, reason) = (text::count(group.count), group.reason.name());
        let deaths = match (group.kind.as_str(), group.count) {
            (KIND, 1) => "task died".to_owned(),
            (KIND, _) => "tasks died".to_owned(),
            (kind, 1) => format!("job of kind {kind} died"),
            (kind, _) => format!("jobs of kind {kind} died"),
        };
        let target =
            if group.target == group.kind { String::new() } else { format!(" for {}", group.target) };
        let error =
            group.example.error.as_deref().map(|error| format!(": {}", shorten(error))).unwrap_or_default();
        let text = format!("{at_least}{count} {deaths} in the last hour{target} ({reason}{error})");
        let mut query = vec![("reason", reason.to_owned()), ("kind", group.kind.clone())];
        if group.target != group.kind {
            query.push(("target", group.target.clone()));
        }
        current_problem(ProblemSeverity::Bad, text, "dead", &query)
    })
}

/// Paused queues with waiting jobs, and due jobs that no worker claims.
pub(super) fn of_queues(stats: &Stats, paused: &[String]) -> Vec<CurrentProblem> {
    let waiting = |queue: Option<&str>| -> u64 {
        let counts = stats.counts.iter().filter(|((name, state), _)| {
            queue.is_none_or(|queue| queue == name.as_str()) && state.is_claimable()
        });
        counts.map(|(_, jobs)| jobs).sum()
    };
    let mut problems = Vec::new();
    for queue in paused {
        let (pause, jobs) = match queue.as_str() {
            "*" => ("every queue is paused".to_owned(), waiting(None)),
            queue => (format!("queue {queue} is paused"), waiting(Some(queue))),
        };
        if jobs > 0 {
            let text = format!("{pause} with {} waiting", text::count_of(jobs, "job"));
            problems.push(current_problem(
                ProblemSeverity::Warn,
                text,
                "queues",
                &[("queue", queue.clone())],
            ));
        }
    }
    let late = stats.oldest_due.map_or(Duration::ZERO, |due| stats.now.since(due));
    if late >= LATE_AFTER && paused.is_empty() {
        let severity = if late >= VERY_LATE_AFTER { ProblemSeverity::Bad } else { ProblemSeverity::Warn };
        let text = format!("oldest due job has waited {}: are workers running?", text::duration(late));
        problems.push(current_problem(
            severity,
            text,
            "jobs",
            &[("state", State::Pending.name().to_owned())],
        ));
    }
    problems
}

/// Nodes that hold leases and write no heartbeats.
pub(super) fn of_silent_nodes(nodes: &[Node], now: Timestamp) -> impl Iterator<Item = CurrentProblem> {
    nodes.iter().filter(|node| node.leases > 0).filter_map(move |node| {
        let silence = now.since(Timestamp::from_ms(node.seen_at?));
        let text = format!(
            "node {} has sent no heartbeat for {} and holds {}",
            node.name,
            text::duration(silence),
            text::count_of(node.leases, "lease")
        );
        (silence > SILENT_AFTER).then(|| current_problem(ProblemSeverity::Bad, text, "nodes", &[]))
    })
}

/// Nodes that make no attempts because of a problem of their own.
pub(super) fn of_paused_nodes(nodes: &[Node], now: Timestamp) -> impl Iterator<Item = CurrentProblem> {
    let seen =
        move |node: &&Node| node.seen_at.is_some_and(|at| now.since(Timestamp::from_ms(at)) <= SILENT_AFTER);
    nodes.iter().filter(seen).filter_map(move |node| {
        let problem = node.problem.as_deref()?;
        let since = node.problem_since.map_or(Duration::ZERO, |at| now.since(Timestamp::from_ms(at)));
        let duration = text::duration(since);
        let text = format!("node {} has made no attempts for {duration}: {problem}", node.name);
        Some(current_problem(ProblemSeverity::Bad, text, "nodes", &[]))
    })
}

/// The first line of an error, shortened to [`ERROR_CHARS_MAX`].
fn shorten(text: &str) -> String {
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
    fn a_long_error_is_shortened_to_its_first_line() {
        assert_eq!(shorten(&"é".repeat(200)).chars().count(), ERROR_CHARS_MAX + 1);
        assert_eq!(shorten("first\nsecond"), "first");
    }

    #[test]
    fn a_late_job_is_not_a_problem_while_its_queue_is_paused() {
        let now = Timestamp::from_ms(1_000_000);
        let queue = redrive_core::Queue::new("mail").unwrap();
        let counts = [((queue, State::Pending), 1_200)].into();
        let stats = Stats { now, counts, oldest_due: Some(Timestamp::from_ms(760_000)) };
        let texts = |paused: &[&str]| -> Vec<String> {
            let paused: Vec<String> = paused.iter().map(|name| (*name).to_owned()).collect();
            of_queues(&stats, &paused).into_iter().map(|problem| problem.text).collect()
        };
        assert_eq!(texts(&[]), ["oldest due job has waited 4 min: are workers running?"]);
        assert_eq!(texts(&["mail", "other"]), ["queue mail is paused with 1,200 jobs waiting"]);
        assert_eq!(texts(&["*"]), ["every queue is paused with 1,200 jobs waiting"]);
    }
}
