//! The contention experiment reproduces the published results.

use redrive_simulate::ContentionExperiment;
use redrive_simulate::contention::Report;

const SEEDS: u64 = 8;
const TRIALS: u32 = 20;

fn run(clients: u32, seed: u64) -> Report {
    ContentionExperiment { clients, trials: TRIALS, seed, ..ContentionExperiment::default() }.run().unwrap()
}

/// Mean and standard deviation of a result of one policy, over several seeds.
fn over_seeds(reports: &[Report], jitter: &str, figure: fn(&Report, &str) -> f64) -> (f64, f64) {
    let all: Vec<f64> = reports.iter().map(|report| figure(report, jitter)).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64;
    (mean, variance.sqrt())
}

fn calls(report: &Report, jitter: &str) -> f64 {
    report.rows.iter().find(|row| row.jitter == jitter).unwrap().mean_write_calls
}

fn completion(report: &Report, jitter: &str) -> f64 {
    report.rows.iter().find(|row| row.jitter == jitter).unwrap().mean_completion_ms
}

/// The results of an independent Python program that follows `backoff_simulator.py` of the published experiment: mean and standard
/// deviation of one trial, from 200 trials with 100 clients.
const PUBLISHED: [(&str, [f64; 2], [f64; 2]); 5] = [
    ("none", [2_424.1, 30.7], [2_028.3, 43.5]),
    ("exponential", [1_855.4, 57.2], [63_268.8, 3_556.7]),
    ("equal", [812.7, 8.2], [6_529.5, 631.1]),
    ("full", [796.1, 7.1], [4_905.7, 547.4]),
    ("decorrelated", [996.5, 29.4], [4_536.1, 678.4]),
];

#[test]
fn means_agree_with_an_independent_program() {
    let report = ContentionExperiment::default().run().unwrap();
    for (jitter, [calls_mean, calls_deviation], [time_mean, time_deviation]) in PUBLISHED {
        // Four standard errors of the difference of two means, of 200 and of 100 trials.
        let error = |deviation: f64| 4.0 * deviation * (1.0f64 / 200.0 + 1.0 / 100.0).sqrt();
        let difference = (calls(&report, jitter) - calls_mean).abs();
        assert!(difference <= error(calls_deviation), "{jitter}: the mean differs by {difference} calls");
        // Decorrelated jitter here draws a value below the cap. The published version draws a larger value and cuts it at the cap, so
        // its longest waits are longer.
        let tolerance = if jitter == "decorrelated" { 0.12 * time_mean } else { 0.0 };
        let difference = (completion(&report, jitter) - time_mean).abs();
        assert!(
            difference <= error(time_deviation) + tolerance,
            "{jitter}: the mean differs by {difference} ms"
        );
    }
}

#[test]
fn jitter_causes_the_fewest_calls_and_no_backoff_by_far_the_most() {
    let reports: Vec<Report> = (1..=SEEDS).map(|seed| run(100, seed)).collect();
    let assert_less = |less: &str, more: &str, figure: fn(&Report, &str) -> f64| {
        let (low, low_deviation) = over_seeds(&reports, less, figure);
        let (high, high_deviation) = over_seeds(&reports, more, figure);
        let margin = 4.0 * low_deviation.hypot(high_deviation);
        assert!(low + margin < high, "{less} {low} ± {low_deviation}, {more} {high} ± {high_deviation}");
    };
    for [less, more] in [
        ["full", "decorrelated"],
        ["equal", "decorrelated"],
        ["decorrelated", "exponential"],
        ["exponential", "none"],
    ] {
        assert_less(less, more, calls);
    }
    for [less, more] in
        [["none", "decorrelated"], ["full", "equal"], ["decorrelated", "equal"], ["equal", "exponential"]]
    {
        assert_less(less, more, completion);
    }
    assert!(over_seeds(&reports, "none", calls).0 > 3.0 * over_seeds(&reports, "full", calls).0);
}

#[test]
fn calls_grow_quadratically_without_backoff_and_almost_linearly_with_jitter() {
    let exponent = |jitter: &str| {
        let at = |clients| {
            let reports: Vec<Report> = (1..=SEEDS).map(|seed| run(clients, seed)).collect();
            over_seeds(&reports, jitter, calls).0
        };
        (at(160) / at(40)).log2() / 2.0
    };
    let (none, full) = (exponent("none"), exponent("full"));
    assert!((1.8..=2.1).contains(&none), "calls grow with the number of clients to the power of {none}");
    assert!((1.0..=1.35).contains(&full), "calls grow with the number of clients to the power of {full}");
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let (one, again, other) = (run(20, 7), run(20, 7), run(20, 8));
    assert_eq!(one, again);
    assert_ne!(calls(&one, "full"), calls(&other, "full"));
    // A row is the same whether it is run alone or among others.
    let sweep = ContentionExperiment { trials: TRIALS, seed: 7, ..ContentionExperiment::default() }
        .sweep([10, 20])
        .unwrap();
    assert_eq!(sweep.row("full", 20), one.row("full", 20));
}

#[test]
fn every_write_is_counted_at_its_time() {
    let report = run(20, 3);
    for row in &report.rows {
        assert!((row.writes.sum() - row.mean_write_calls).abs() < 1e-9, "{}", row.jitter);
        // Each client writes at least once, and fails at most once for each other client.
        assert!((20.0..=400.0).contains(&row.mean_write_calls), "{row:?}");
        // No write arrives before a read and its answer, and the answer to the last write takes one network delay.
        assert_eq!(row.writes.calls()[0], 0.0, "{}", row.jitter);
        let last = row.writes.calls().len() as f64 * f64::from(row.writes.step_ms());
        assert!(row.mean_completion_ms <= last + 50.0, "{}", row.jitter);
    }
}

#[test]
fn a_single_client_writes_once() {
    for row in &run(1, 1).rows {
        assert_eq!(row.mean_write_calls, 1.0, "{}", row.jitter);
    }
}
