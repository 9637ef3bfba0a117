//! One page of `redrive top`: rates, start lag, jobs by state, problems, origins, the newest failures.

use redrive_wire::origin::OriginGate;
use redrive_wire::overview::{CurrentProblem, StartLag};

use super::{Failure, Snapshot};
use crate::output::OutputStyle;
use crate::output::enum_name;
use crate::output::table::{Cell, StateColour, Table, coloured, truncate, without_controls};
use crate::output::time;

/// The states in the order of the life of a job.
const STATES: [&str; 7] = ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled"];

/// Renders a page of at most `height` lines.
pub(super) fn page(snapshot: &Snapshot, style: &OutputStyle, height: Option<usize>) -> String {
    let mut lines = vec![head(snapshot, style)];
    lines.extend(
        snapshot
            .fetch_error
            .iter()
            .map(|error| coloured(&without_controls(error), Some(StateColour::Red), style)),
    );
    lines.extend([rates(snapshot), lag(snapshot), jobs_by_state(snapshot, style)]);
    if !snapshot.overview.paused_queues.is_empty() {
        let queues = without_controls(&snapshot.overview.paused_queues.join(", "));
        lines.push(format!("paused     {}", coloured(&queues, Some(StateColour::Yellow), style)));
    }
    section(&mut lines, "PROBLEMS", problems(snapshot, style));
    section(&mut lines, "", origins(snapshot.origins.as_deref(), style));
    section(&mut lines, "", failures(&snapshot.failures, style));
    if let Some(height) = height {
        lines.truncate(height.saturating_sub(1));
    }
    lines.iter().map(|line| line.clone() + "\n").collect()
}

fn section(lines: &mut Vec<String>, title: &str, rows: Vec<String>) {
    lines.push(String::new());
    if !title.is_empty() {
        lines.push(title.to_owned());
    }
    lines.extend(rows);
}

fn head(snapshot: &Snapshot, style: &OutputStyle) -> String {
    let end = if style.width.is_some() { "   (q quits)" } else { "" };
    format!("redrive at {}   {}{end}", snapshot.address, time::utc(snapshot.overview.now))
}

fn rates(snapshot: &Snapshot) -> String {
    // The rates cover all tenants, so a key of one tenant does not get them.
    let Some(rates) = snapshot.overview.attempts_per_second else { return "attempts/s -".to_owned() };
    let each = [
        ("succeeded", rates.succeeded),
        ("retried", rates.retried),
        ("dead", rates.dead),
        ("other", rates.other),
    ];
    let parts = each.map(|(outcome, rate)| format!("{outcome} {rate:.1}"));
    let rate = snapshot.overview.success_rate.map(|rate| format!("   success rate {:.1} %", rate * 100.0));
    format!("attempts/s {}{}", parts.join("   "), rate.unwrap_or_default())
}

fn lag(snapshot: &Snapshot) -> String {
    let StartLag { p50_ms, p99_ms } = snapshot.overview.start_lag;
    let shown = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), time::duration);
    let oldest = shown(snapshot.overview.oldest_due_ms);
    format!("start lag  p50 {}   p99 {}   oldest due {oldest}", shown(p50_ms), shown(p99_ms))
}

fn jobs_by_state(snapshot: &Snapshot, style: &OutputStyle) -> String {
    let of = |state: &str| snapshot.overview.jobs.get(state).copied().unwrap_or(0);
    let shown = |state: &str| {
        let text = format!("{state} {}", of(state));
        let notable = matches!(state, "dead" | "retrying") && of(state) > 0;
        coloured(&text, notable.then(|| StateColour::of(state)).flatten(), style)
    };
    format!("jobs       {}", STATES.map(shown).join("   "))
}

fn problems(snapshot: &Snapshot, style: &OutputStyle) -> Vec<String> {
    if snapshot.overview.problems.is_empty() {
        return vec!["none".to_owned()];
    }
    let line = |problem: &CurrentProblem| {
        let (severity, text) = (enum_name(&problem.severity), without_controls(&problem.text));
        let text = style.width.map_or(text.clone(), |width| truncate(&text, width.saturating_sub(6)));
        format!("{}{text}", coloured(&format!("{severity:<6}"), StateColour::of(&severity), style))
    };
    snapshot.overview.problems.iter().map(line).collect()
}

fn origins(origins: Option<&[OriginGate]>, style: &OutputStyle) -> Vec<String> {
    let Some(origins) = origins else { return vec!["ORIGINS need a key without a tenant".to_owned()] };
    if origins.is_empty() {
        return vec!["ORIGINS".to_owned(), "no origin was called recently".to_owned()];
    }
    let heads = ["ORIGIN", "GATE", "LIMIT", "CALLS", "HELD", "ANSWERED", "FAILED", "LATENCY", "NEXT CALL IN"];
    let mut table = Table::new(&heads, &["ANSWERED", "HELD"], *style);
    for gate in origins {
        table.add_row(vec![
            Cell::text(&gate.origin),
            Cell::state(&enum_name(&gate.state)),
            Cell::number(gate.limit),
            Cell::number(gate.in_flight),
            Cell::number(gate.waiting),
            Cell::number(gate.answered),
            Cell::number(gate.failed),
            Cell::duration(gate.latency_ms),
            Cell::duration(gate.next_call_in_ms),
        ]);
    }
    table.render().lines().map(str::to_owned).collect()
}

fn failures(failures: &[Failure], style: &OutputStyle) -> Vec<String> {
    if failures.is_empty() {
        return vec!["NEWEST FAILURES".to_owned(), "none".to_owned()];
    }
    let mut table = Table::new(&["FAILED", "STATE", "JOB", "TARGET", "ERROR"], &["TARGET"], *style);
    for failure in failures {
        table.add_row(vec![
            Cell::age(Some(failure.at), style),
            Cell::state(failure.state),
            Cell::id(&failure.id),
            Cell::text(&failure.target),
            Cell::text(&failure.error),
        ]);
    }
    table.render().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use redrive_wire::overview::{AttemptRates, Overview, ProblemSeverity};

    use super::*;

    fn snapshot() -> Snapshot {
        let problem = |number| CurrentProblem {
            severity: ProblemSeverity::Bad,
            text: format!("gate {number} is blocked"),
            page: "origins".to_owned(),
            query: BTreeMap::new(),
        };
        let overview = Overview {
            now: 0,
            jobs: BTreeMap::from([("dead".to_owned(), 7)]),
            oldest_due_ms: None,
            attempts_per_second: Some(AttemptRates { succeeded: 12.34, retried: 0.0, dead: 0.0, other: 0.0 }),
            start_lag: StartLag { p50_ms: Some(3), p99_ms: None },
            success_rate: Some(0.987),
            paused_queues: vec!["mail".to_owned()],
            problems: (1..=30).map(problem).collect(),
        };
        Snapshot {
            address: "http://x".into(),
            overview,
            origins: None,
            failures: Vec::new(),
            fetch_error: None,
        }
    }

    #[test]
    fn a_page_shows_every_section() {
        let style = OutputStyle { colours: false, width: None, now: 0 };
        let text = page(&snapshot(), &style, None);
        for part in [
            "attempts/s succeeded 12.3   retried 0.0   dead 0.0   other 0.0   success rate 98.7 %\n",
            "start lag  p50 3 ms   p99 -   oldest due -\n",
            "dead 7   cancelled 0\n",
            "paused     mail\n",
            "bad   gate 30 is blocked\n",
            "ORIGINS need a key without a tenant\n",
            "NEWEST FAILURES\nnone\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_page_fits_the_terminal() {
        let style = OutputStyle { colours: true, width: Some(40), now: 0 };
        assert_eq!(page(&snapshot(), &style, Some(12)).lines().count(), 11);
    }
}
