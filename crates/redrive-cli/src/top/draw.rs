//! One frame of `redrive top`: rates, lag, depth, what is wrong, origins, the newest failures.

use redrive_server::wire::origin::OriginGate;
use redrive_server::wire::overview::{StartLag, Trouble};

use super::{Failure, Seen};
use crate::print::Look;
use crate::table::{Cell, Table, Tone, cut, harmless, painted, tone_of, word};
use crate::when;

/// States in the order of a job's life.
const STATES: [&str; 7] = ["pending", "retrying", "running", "waiting", "succeeded", "dead", "cancelled"];

/// The frame, within `height` lines where there is a terminal.
pub(super) fn frame(seen: &Seen, look: &Look, height: Option<usize>) -> String {
    let mut lines = vec![head(seen, look)];
    lines.extend(seen.trouble.iter().map(|trouble| painted(&harmless(trouble), Some(Tone::Bad), look)));
    lines.extend([rates(seen), lag(seen), depth(seen, look)]);
    if !seen.overview.paused_queues.is_empty() {
        let queues = harmless(&seen.overview.paused_queues.join(", "));
        lines.push(format!("paused     {}", painted(&queues, Some(Tone::Busy), look)));
    }
    section(&mut lines, "PROBLEMS", problems(seen, look));
    section(&mut lines, "", origins(seen.origins.as_deref(), look));
    section(&mut lines, "", failures(&seen.failures, look));
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

fn head(seen: &Seen, look: &Look) -> String {
    let end = if look.width.is_some() { "   (q ends)" } else { "" };
    format!("redrive at {}   {}{end}", seen.address, when::stamp(seen.overview.now))
}

fn rates(seen: &Seen) -> String {
    // Those of all tenants together are not for a key of one.
    let Some(rates) = seen.overview.attempts_per_second else { return "attempts/s -".to_owned() };
    let each = [
        ("succeeded", rates.succeeded),
        ("retried", rates.retried),
        ("exhausted", rates.exhausted),
        ("other", rates.other),
    ];
    let parts = each.map(|(outcome, rate)| format!("{outcome} {rate:.1}"));
    let rate = seen.overview.success_rate.map(|rate| format!("   {:.1} % succeed", rate * 100.0));
    format!("attempts/s {}{}", parts.join("   "), rate.unwrap_or_default())
}

fn lag(seen: &Seen) -> String {
    let StartLag { p50_ms, p99_ms } = seen.overview.start_lag;
    let shown = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), when::span);
    let oldest = shown(seen.overview.oldest_due_ms);
    format!("start lag  p50 {}   p99 {}   oldest due {oldest}", shown(p50_ms), shown(p99_ms))
}

fn depth(seen: &Seen, look: &Look) -> String {
    let of = |state: &str| seen.overview.jobs.get(state).copied().unwrap_or(0);
    let shown = |state: &str| {
        let text = format!("{state} {}", of(state));
        let notable = matches!(state, "dead" | "retrying") && of(state) > 0;
        painted(&text, notable.then(|| tone_of(state)).flatten(), look)
    };
    format!("jobs       {}", STATES.map(shown).join("   "))
}

fn problems(seen: &Seen, look: &Look) -> Vec<String> {
    if seen.overview.problems.is_empty() {
        return vec!["none".to_owned()];
    }
    let line = |problem: &Trouble| {
        let (severity, text) = (word(&problem.severity), harmless(&problem.text));
        let text = look.width.map_or(text.clone(), |width| cut(&text, width.saturating_sub(6)));
        format!("{}{text}", painted(&format!("{severity:<6}"), tone_of(&severity), look))
    };
    seen.overview.problems.iter().map(line).collect()
}

fn origins(origins: Option<&[OriginGate]>, look: &Look) -> Vec<String> {
    let Some(origins) = origins else { return vec!["ORIGINS are not for this key".to_owned()] };
    if origins.is_empty() {
        return vec!["ORIGINS".to_owned(), "none was called of late".to_owned()];
    }
    let heads =
        ["ORIGIN", "GATE", "LIMIT", "IN FLIGHT", "PARKED", "ANSWERED", "FAILED", "LATENCY", "OPENS IN"];
    let mut table = Table::new(&heads, &["ANSWERED", "PARKED"], *look);
    for gate in origins {
        table.row(vec![
            Cell::text(&gate.origin),
            Cell::state(&word(&gate.state)),
            Cell::number(gate.limit),
            Cell::number(gate.in_flight),
            Cell::number(gate.waiting),
            Cell::number(gate.answered),
            Cell::number(gate.failed),
            Cell::span(gate.latency_ms),
            Cell::span(gate.opens_in_ms),
        ]);
    }
    table.show().lines().map(str::to_owned).collect()
}

fn failures(failures: &[Failure], look: &Look) -> Vec<String> {
    if failures.is_empty() {
        return vec!["NEWEST FAILURES".to_owned(), "none".to_owned()];
    }
    let mut table = Table::new(&["FAILED", "STATE", "JOB", "TARGET", "ERROR"], &["TARGET"], *look);
    for failure in failures {
        table.row(vec![
            Cell::age(Some(failure.at), look),
            Cell::state(failure.state),
            Cell::whole(&failure.id),
            Cell::text(&failure.about),
            Cell::text(&failure.error),
        ]);
    }
    table.show().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use redrive_server::wire::overview::{AttemptRates, Overview, Severity};

    use super::*;

    fn seen() -> Seen {
        let problem = |number| Trouble {
            severity: Severity::Bad,
            text: format!("gate {number} is closed"),
            page: "origins".to_owned(),
            query: BTreeMap::new(),
        };
        let overview = Overview {
            now: 0,
            jobs: BTreeMap::from([("dead".to_owned(), 7)]),
            oldest_due_ms: None,
            attempts_per_second: Some(AttemptRates {
                succeeded: 12.34,
                retried: 0.0,
                exhausted: 0.0,
                other: 0.0,
            }),
            start_lag: StartLag { p50_ms: Some(3), p99_ms: None },
            success_rate: Some(0.987),
            paused_queues: vec!["mail".to_owned()],
            problems: (1..=30).map(problem).collect(),
        };
        Seen { address: "http://x".into(), overview, origins: None, failures: Vec::new(), trouble: None }
    }

    #[test]
    fn a_frame_says_how_it_fares() {
        let look = Look { colours: false, width: None, now: 0 };
        let text = frame(&seen(), &look, None);
        for part in [
            "attempts/s succeeded 12.3   retried 0.0   exhausted 0.0   other 0.0   98.7 % succeed\n",
            "start lag  p50 3 ms   p99 -   oldest due -\n",
            "dead 7   cancelled 0\n",
            "paused     mail\n",
            "bad   gate 30 is closed\n",
            "ORIGINS are not for this key\n",
            "NEWEST FAILURES\nnone\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_frame_fits_the_terminal() {
        let look = Look { colours: true, width: Some(40), now: 0 };
        assert_eq!(frame(&seen(), &look, Some(12)).lines().count(), 11);
    }
}
