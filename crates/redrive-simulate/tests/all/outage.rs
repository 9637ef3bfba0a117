//! The outage experiment: only the policy loses tasks, and jitter reduces the load on the target.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::{Jitter, Policy};
use redrive_simulate::outage::{Report, Row};
use redrive_simulate::{NamedPolicy, OutageExperiment, policies};

const S: Duration = Duration::from_secs(1);

fn run_engine_policies(setup: &OutageExperiment) -> Report {
    setup.run(&policies::engine_policies().unwrap())
}

fn run_one(setup: &OutageExperiment, policy: Policy) -> Row {
    setup.run(&[NamedPolicy::new("policy", policy)]).rows.remove(0)
}

#[test]
fn every_task_ends_once_and_every_call_is_an_attempt() {
    for seed in 1..=3 {
        let setup = OutageExperiment { tasks: 2_000, seed, ..OutageExperiment::default() };
        let presets = policies::engine_policies().unwrap();
        for (row, named) in run_engine_policies(&setup).rows.iter().zip(presets) {
            let ended = row.succeeded + row.lost_to_attempts + row.lost_to_budget;
            assert_eq!(ended, setup.tasks, "{row:?}");
            let answered = row.calls_while_down + row.refused_over_capacity + u64::from(row.succeeded);
            assert_eq!(row.calls, answered, "{row:?}");
            assert_eq!(row.calls_over_time.sum() as u64, row.calls, "{row:?}");
            let attempts = u64::from(named.policy.max_attempts.get());
            assert!(row.calls <= u64::from(setup.tasks) * attempts, "{row:?}");
        }
    }
}

#[test]
fn nothing_is_lost_without_a_limit() {
    let setup = OutageExperiment { tasks: 2_000, ..OutageExperiment::default() };
    for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
        let unlimited = Policy::default().with_jitter(jitter).with_max_attempts(10_000).unwrap();
        let row = run_one(&setup, unlimited.with_total_budget(None));
        assert_eq!((row.succeeded, row.lost_to_attempts, row.lost_to_budget), (2_000, 0, 0), "{jitter:?}");
        // The capacity is 500 calls per second, a tenth of them at once.
        assert!(row.drained_after_ms.unwrap() >= 3_800, "{jitter:?} {row:?}");
    }
}

#[test]
fn a_budget_shorter_than_the_outage_loses_every_task() {
    let setup = OutageExperiment { tasks: 500, ..OutageExperiment::default() };
    let many_attempts = presets::standard().with_max_attempts(10_000).unwrap();
    let row = run_one(&setup, many_attempts.clone().with_total_budget(20 * S));
    assert_eq!((row.succeeded, row.lost_to_budget), (0, 500), "{row:?}");
    assert_eq!(row.drained_after_ms, None);
    let row = run_one(&setup, many_attempts.with_total_budget(40 * S));
    assert!(row.succeeded > 0 && row.lost_to_budget > 0, "{row:?}");
}

#[test]
fn without_jitter_all_tasks_call_at_once_after_the_outage() {
    for seed in 1..=3 {
        let report = run_engine_policies(&OutageExperiment { seed, ..OutageExperiment::default() });
        let of = |name: &str| report.row(name).unwrap();
        assert!(of("exponential").peak_per_second > 10 * of("full").peak_per_second, "{report:?}");
        assert!(of("exponential").refused_over_capacity > 10 * of("equal").refused_over_capacity);
        let lost = |name: &str| of(name).lost_to_attempts + of(name).lost_to_budget;
        assert!(lost("exponential") > 5 * lost("full"), "{report:?}");
        assert_eq!((lost("none"), lost("once")), (10_000, 10_000));
    }
}

#[test]
fn without_an_outage_each_task_needs_one_call() {
    let setup = OutageExperiment {
        tasks: 1_000,
        down: Duration::ZERO,
        arrivals: 10 * S,
        ..OutageExperiment::default()
    };
    for row in &run_engine_policies(&setup).rows {
        assert_eq!((row.calls, row.succeeded, row.refused_over_capacity), (1_000, 1_000, 0), "{row:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let setup = OutageExperiment { tasks: 500, ..OutageExperiment::default() };
    assert_eq!(run_engine_policies(&setup), run_engine_policies(&setup));
    assert_ne!(run_engine_policies(&setup), run_engine_policies(&OutageExperiment { seed: 2, ..setup }));
}
