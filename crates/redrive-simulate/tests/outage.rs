//! Tasks through an outage: nothing is lost but by the policy, and jitter spares the target.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::{Jitter, Policy};
use redrive_simulate::outage::{Report, Row};
use redrive_simulate::{Contender, Outage, contenders};

const S: Duration = Duration::from_secs(1);

fn of_the_engine(setup: &Outage) -> Report {
    setup.run(&contenders::of_the_engine().unwrap())
}

fn alone(setup: &Outage, policy: Policy) -> Row {
    setup.run(&[Contender::new("it", policy)]).rows.remove(0)
}

#[test]
fn every_task_ends_once_and_every_call_is_an_attempt() {
    for seed in 1..=3 {
        let setup = Outage { tasks: 2_000, seed, ..Outage::default() };
        let presets = contenders::of_the_engine().unwrap();
        for (row, contender) in of_the_engine(&setup).rows.iter().zip(presets) {
            let ended = row.succeeded + row.lost_to_attempts + row.lost_to_budget;
            assert_eq!(ended, setup.tasks, "{row:?}");
            let answered = row.calls_while_down + row.refused_over_capacity + u64::from(row.succeeded);
            assert_eq!(row.calls, answered, "{row:?}");
            assert_eq!(row.calls_over_time.sum() as u64, row.calls, "{row:?}");
            let attempts = u64::from(contender.policy.max_attempts.get());
            assert!(row.calls <= u64::from(setup.tasks) * attempts, "{row:?}");
        }
    }
}

#[test]
fn nothing_is_lost_without_a_limit() {
    let setup = Outage { tasks: 2_000, ..Outage::default() };
    for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
        let lasting = Policy::default().with_jitter(jitter).with_max_attempts(10_000).unwrap();
        let row = alone(&setup, lasting.with_total_budget(None));
        assert_eq!((row.succeeded, row.lost_to_attempts, row.lost_to_budget), (2_000, 0, 0), "{jitter:?}");
        // The capacity is 500/s and a tenth of it at once.
        assert!(row.drained_after_ms.unwrap() >= 3_800, "{jitter:?} {row:?}");
    }
}

#[test]
fn a_budget_shorter_than_the_outage_loses_them_all_to_it() {
    let setup = Outage { tasks: 500, ..Outage::default() };
    let patient = presets::standard().with_max_attempts(10_000).unwrap();
    let row = alone(&setup, patient.clone().with_total_budget(20 * S));
    assert_eq!((row.succeeded, row.lost_to_budget), (0, 500), "{row:?}");
    assert_eq!(row.drained_after_ms, None);
    let row = alone(&setup, patient.with_total_budget(40 * S));
    assert!(row.succeeded > 0 && row.lost_to_budget > 0, "{row:?}");
}

#[test]
fn without_jitter_the_target_is_met_by_everyone_at_once() {
    for seed in 1..=3 {
        let report = of_the_engine(&Outage { seed, ..Outage::default() });
        let of = |name: &str| report.of(name).unwrap();
        assert!(of("exponential").peak_per_second > 10 * of("full").peak_per_second, "{report:?}");
        assert!(of("exponential").refused_over_capacity > 10 * of("equal").refused_over_capacity);
        let lost = |name: &str| of(name).lost_to_attempts + of(name).lost_to_budget;
        assert!(lost("exponential") > 5 * lost("full"), "{report:?}");
        assert_eq!((lost("none"), lost("once")), (10_000, 10_000));
    }
}

#[test]
fn without_an_outage_and_within_the_capacity_one_call_each_is_enough() {
    let setup = Outage { tasks: 1_000, down: Duration::ZERO, arrivals: 10 * S, ..Outage::default() };
    for row in &of_the_engine(&setup).rows {
        assert_eq!((row.calls, row.succeeded, row.refused_over_capacity), (1_000, 1_000, 0), "{row:?}");
    }
}

#[test]
fn a_seed_gives_the_same_figures_again() {
    let setup = Outage { tasks: 500, ..Outage::default() };
    assert_eq!(of_the_engine(&setup), of_the_engine(&setup));
    assert_ne!(of_the_engine(&setup), of_the_engine(&Outage { seed: 2, ..setup }));
}
