//! How far the server's clock and this host's are apart.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redrive_core::{Finding, Gravity, StoreError};

use super::{Patient, Thresholds};
use crate::error::Sorted;
use crate::error::nothing;

/// The shortest round trip of so many says most.
const SAMPLES: usize = 7;

pub(super) async fn clock(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        samples.push(sample(patient).await?);
    }
    Ok(skew(&samples).map(|skew| judge(&skew, patient.thresholds)).into_iter().collect())
}

/// The server's clock, read during a round trip.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// By this host's clock, when the question went out.
    asked_us: i64,
    server_us: i64,
    round_trip: Duration,
}

async fn sample(patient: &Patient<'_>) -> Result<Sample, StoreError> {
    let (asked, began) = (SystemTime::now(), Instant::now());
    let rows = patient.pool.query(include_str!("../../sql/doctor_clock.sql"), &[]).await?;
    let round_trip = began.elapsed();
    let server_us = rows.first().ok_or_else(nothing)?.try_get("now_us").sorted()?;
    let asked = asked.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Sample { asked_us: micros(asked), server_us, round_trip })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// How far the server is ahead, and how wrong that may be.
#[derive(Debug, PartialEq, Eq)]
struct Skew {
    ahead_us: i64,
    within: Duration,
}

/// The server read its clock somewhere in the round trip, so the middle of the shortest one is the best guess.
fn skew(samples: &[Sample]) -> Option<Skew> {
    let best = samples.iter().min_by_key(|sample| sample.round_trip)?;
    let within = best.round_trip / 2;
    Some(Skew { ahead_us: best.server_us - best.asked_us - micros(within), within })
}

fn judge(skew: &Skew, thresholds: &Thresholds) -> Finding {
    let apart = Duration::from_micros(skew.ahead_us.unsigned_abs());
    let side = if skew.ahead_us < 0 { "behind" } else { "ahead of" };
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let evidence =
        format!("the server is {:.2} ms {side} this host, give or take {:.2} ms", ms(apart), ms(skew.within));
    if apart.saturating_sub(skew.within) <= thresholds.skew {
        return Finding::fine("clock", "the server's clock and this host's agree", evidence);
    }
    Finding::new(
        Gravity::Warning,
        "clock",
        "the clocks of the server and this host disagree: leases go by the server's and are safe, but jobs that callers \
         here schedule for a time run early or late by it, and times that are shown look wrong",
        evidence,
        "synchronise both with NTP (timedatectl, chronyc tracking)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(asked_us: i64, server_us: i64, round_trip_us: u64) -> Sample {
        Sample { asked_us, server_us, round_trip: Duration::from_micros(round_trip_us) }
    }

    #[test]
    fn the_middle_of_the_shortest_round_trip_counts() {
        assert_eq!(skew(&[]), None);
        let samples = [
            sample(1_000_000, 9_000_000, 80_000),
            sample(2_000_000, 2_500_500, 1_000),
            sample(3_000_000, 3_900_000, 2_000),
        ];
        assert_eq!(skew(&samples), Some(Skew { ahead_us: 500_000, within: Duration::from_micros(500) }));
    }

    #[test]
    fn only_what_must_be_a_skew_is_one() {
        for (ahead_us, within_us, gravity) in [
            (0, 0, Gravity::Fine),
            (999_000, 0, Gravity::Fine),
            (1_500_000, 400_000, Gravity::Warning),
            (1_500_000, 600_000, Gravity::Fine),
            (-3_600_000_000, 1_000, Gravity::Warning),
        ] {
            let skew = Skew { ahead_us, within: Duration::from_micros(within_us) };
            let finding = judge(&skew, &Thresholds::default());
            assert_eq!(finding.gravity, gravity, "{finding:?}");
        }
        let behind = judge(&Skew { ahead_us: -2_000_000, within: Duration::ZERO }, &Thresholds::default());
        assert!(behind.evidence.contains("2000.00 ms behind this host"), "{behind:?}");
    }
}
