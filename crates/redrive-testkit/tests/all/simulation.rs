//! Simulates thirty days with faults, and proves that the checks notice mutations.
//!
//! `REDRIVE_SEED=n` replays one seed, `REDRIVE_SOAK_SECONDS=n` runs new seeds for that long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive_testkit::checks::{ATTEMPTS_BOUNDED, NO_WEDGE, NOTHING_LOST, ONE_OUTCOME, STALE_SHUT_OUT};
use redrive_testkit::mutant_store::Mutation;
use redrive_testkit::simulate;
use redrive_testkit::simulation::simulate_mutant;

const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[test]
fn thirty_days_of_faults_violate_no_guarantee() {
    if let Some(seed) = number("REDRIVE_SEED") {
        let report = simulate(seed);
        println!("{report}");
        return report.expect_sound();
    }
    let began = Instant::now();
    let soak = number("REDRIVE_SOAK_SECONDS").map(Duration::from_secs);
    // A soak uses new seeds; other runs always use the same ones.
    let first = if soak.is_some() { fastrand::u64(..1 << 48) } else { 0 };
    let simulated = simulate_on_all_cores(first, |simulated| match soak {
        Some(soak) => began.elapsed() < soak,
        None => simulated < MONTH,
    });
    println!("{} simulated days in {:?}", simulated.as_secs() / 86_400, began.elapsed());
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..8 {
        let elsewhere = std::thread::spawn(move || simulate(seed));
        let (one, two) = (simulate(seed), elsewhere.join().unwrap());
        assert_eq!(one.history.fingerprint(), two.history.fingerprint(), "seed {seed}");
        assert_eq!((one.counts, one.simulated), (two.counts, two.simulated), "seed {seed}");
    }
    assert_ne!(simulate(1).history.fingerprint(), simulate(2).history.fingerprint());
}

#[test]
fn the_checks_notice_a_store_that_breaks_a_guarantee() {
    let mutations = [
        (Mutation::EnqueueForgets, NOTHING_LOST),
        (Mutation::LogLost, NOTHING_LOST),
        (Mutation::ClaimFree, ATTEMPTS_BOUNDED),
        (Mutation::ReclaimCharges, ATTEMPTS_BOUNDED),
        (Mutation::RefundForgotten, ATTEMPTS_BOUNDED),
        (Mutation::RedriveKeepsAttempts, ATTEMPTS_BOUNDED),
        (Mutation::CancelPretends, ONE_OUTCOME),
        (Mutation::SettleAgain, ONE_OUTCOME),
        (Mutation::SettleUnfenced, STALE_SHUT_OUT),
        (Mutation::ReclaimKeepsEpoch, STALE_SHUT_OUT),
        (Mutation::ClaimKeepsEpoch, STALE_SHUT_OUT),
        (Mutation::ReclaimNever, NO_WEDGE),
    ];
    for (mutation, check) in mutations {
        let noticed = (0..10).find_map(|seed| {
            let broken = simulate_mutant(seed, mutation).violations;
            broken.into_iter().find(|violation| violation.check == check).map(|violation| (seed, violation))
        });
        let (seed, violation) = noticed.unwrap_or_else(|| panic!("{mutation:?} goes unnoticed by {check}"));
        println!("{mutation:?}: seed {seed}: {violation}");
    }
}

/// Simulates seed after seed on every core while `should_continue` holds, and returns the simulated time in total.
fn simulate_on_all_cores(first: u64, should_continue: impl Fn(Duration) -> bool + Sync) -> Duration {
    let (next, simulated_ms, broken) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
    let simulated = || Duration::from_millis(simulated_ms.load(Ordering::SeqCst));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while should_continue(simulated()) && !broken.load(Ordering::SeqCst) {
                    let report = simulate(next.fetch_add(1, Ordering::SeqCst));
                    println!("{report}");
                    broken.fetch_or(!report.violations.is_empty(), Ordering::SeqCst);
                    report.expect_sound();
                    simulated_ms.fetch_add(report.simulated.as_millis() as u64, Ordering::SeqCst);
                }
            });
        }
    });
    simulated()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}
