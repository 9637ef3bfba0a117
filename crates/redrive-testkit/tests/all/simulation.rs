//! Thirty simulated days of trouble, and proof that the checks notice what would go wrong.
//!
//! `REDRIVE_SEED=n` replays one seed, `REDRIVE_SOAK_SECONDS=n` goes on with fresh seeds for that long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive_testkit::checks::{ATTEMPTS_BOUNDED, NO_WEDGE, NOTHING_LOST, ONE_OUTCOME, STALE_SHUT_OUT};
use redrive_testkit::mutant::Flaw;
use redrive_testkit::simulate;
use redrive_testkit::simulation::simulate_flawed;

const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[test]
fn nothing_breaks_in_thirty_days_of_trouble() {
    if let Some(seed) = number("REDRIVE_SEED") {
        let report = simulate(seed);
        println!("{report}");
        return report.expect_sound();
    }
    let began = Instant::now();
    let soak = number("REDRIVE_SOAK_SECONDS").map(Duration::from_secs);
    // Fresh seeds for a soak, the same ones for everyone else.
    let first = if soak.is_some() { fastrand::u64(..1 << 48) } else { 0 };
    let simulated = side_by_side(first, |simulated| match soak {
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
fn the_checks_notice_a_store_that_breaks_its_promises() {
    let flaws = [
        (Flaw::EnqueueForgets, NOTHING_LOST),
        (Flaw::LogLost, NOTHING_LOST),
        (Flaw::ClaimFree, ATTEMPTS_BOUNDED),
        (Flaw::ReclaimCharges, ATTEMPTS_BOUNDED),
        (Flaw::RefundForgotten, ATTEMPTS_BOUNDED),
        (Flaw::RedriveKeepsAttempts, ATTEMPTS_BOUNDED),
        (Flaw::CancelPretends, ONE_OUTCOME),
        (Flaw::SettleAgain, ONE_OUTCOME),
        (Flaw::SettleUnfenced, STALE_SHUT_OUT),
        (Flaw::ReclaimKeepsEpoch, STALE_SHUT_OUT),
        (Flaw::ClaimKeepsEpoch, STALE_SHUT_OUT),
        (Flaw::ReclaimNever, NO_WEDGE),
    ];
    for (flaw, check) in flaws {
        let noticed = (0..10).find_map(|seed| {
            let broken = simulate_flawed(seed, flaw).violations;
            broken.into_iter().find(|violation| violation.check == check).map(|violation| (seed, violation))
        });
        let (seed, violation) = noticed.unwrap_or_else(|| panic!("{flaw:?} goes unnoticed by {check}"));
        println!("{flaw:?}: seed {seed}: {violation}");
    }
}

/// Simulates seed after seed on every core while `go_on`; returns how much time passed in all.
fn side_by_side(first: u64, go_on: impl Fn(Duration) -> bool + Sync) -> Duration {
    let (next, simulated_ms, broken) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
    let simulated = || Duration::from_millis(simulated_ms.load(Ordering::SeqCst));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while go_on(simulated()) && !broken.load(Ordering::SeqCst) {
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
