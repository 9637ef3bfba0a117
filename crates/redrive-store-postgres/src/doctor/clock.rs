//! Compares the server's clock with that of this host.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redrive_core::{Finding, Severity};
use redrive_sql::Statement;

use super::{DoctorContext, Thresholds};
use crate::error::{Error, Result};
use crate::sql;

static CLOCK: Statement = sql::DOCTOR.statement("clock");

/// The number of round trips. The shortest one is the most precise.
const SAMPLES: usize = 7;

pub(super) async fn clock(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        samples.push(sample(context).await?);
    }
    Ok(skew(&samples).map(|skew| judge(&skew, context.thresholds)).into_iter().collect())
}

/// The server's clock, read during a round trip.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// When the question was sent, by this host's clock.
    sent_us: i64,
    server_us: i64,
    round_trip: Duration,
}

async fn sample(context: &DoctorContext<'_>) -> Result<Sample> {
    let (sent, began) = (SystemTime::now(), Instant::now());
    let rows = context.pool.query(&CLOCK, &[]).await?;
    let round_trip = began.elapsed();
    let server_us = rows.first().ok_or_else(Error::no_row)?.try_get("now_us")?;
    let sent = sent.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Sample { sent_us: micros(sent), server_us, round_trip })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// How far the server is ahead, with the largest possible error.
#[derive(Debug, PartialEq, Eq)]
struct Skew {
    ahead_us: i64,
    error: Duration,
}

/// The server read its clock at some moment of the round trip, so the middle of the shortest one is the best estimate.
fn skew(samples: &[Sample]) -> Option<Skew> {
    let best = samples.iter().min_by_key(|sample| sample.round_trip)?;
    let error = best.round_trip / 2;
    Some(Skew { ahead_us: best.server_us - best.sent_us - micros(error), error })
}

fn judge(skew: &Skew, thresholds: &Thresholds) -> Finding {
    let difference = Duration::from_micros(skew.ahead_us.unsigned_abs());
    let side = if skew.ahead_us < 0 { "behind" } else { "ahead of" };
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let evidence = format!(
        "the server is {:.2} ms {side} this host, with an error of at most {:.2} ms",
        ms(difference),
        ms(skew.error)
    );
    if difference.saturating_sub(skew.error) <= thresholds.clock_skew {
        return Finding::ok("clock", "the server's clock and this host's agree", evidence);
    }
    Finding::new(
        Severity::Warning,
        "clock",
        "the clocks of the server and this host differ: leases use the server's clock and are safe, but jobs that callers on this \
         host schedule for a time run early or late, and displayed times look wrong",
        evidence,
        "synchronise both with NTP (timedatectl, chronyc tracking)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sent_us: i64, server_us: i64, round_trip_us: u64) -> Sample {
        Sample { sent_us, server_us, round_trip: Duration::from_micros(round_trip_us) }
    }

    #[test]
    fn the_middle_of_the_shortest_round_trip_counts() {
        assert_eq!(skew(&[]), None);
        let samples = [
            sample(1_000_000, 9_000_000, 80_000),
            sample(2_000_000, 2_500_500, 1_000),
            sample(3_000_000, 3_900_000, 2_000),
        ];
        assert_eq!(skew(&samples), Some(Skew { ahead_us: 500_000, error: Duration::from_micros(500) }));
    }

    #[test]
    fn a_difference_within_the_error_is_no_skew() {
        for (ahead_us, within_us, severity) in [
            (0, 0, Severity::Ok),
            (999_000, 0, Severity::Ok),
            (1_500_000, 400_000, Severity::Warning),
            (1_500_000, 600_000, Severity::Ok),
            (-3_600_000_000, 1_000, Severity::Warning),
        ] {
            let skew = Skew { ahead_us, error: Duration::from_micros(within_us) };
            let finding = judge(&skew, &Thresholds::default());
            assert_eq!(finding.severity, severity, "{finding:?}");
        }
        let behind = judge(&Skew { ahead_us: -2_000_000, error: Duration::ZERO }, &Thresholds::default());
        assert!(behind.evidence.contains("2000.00 ms behind this host"), "{behind:?}");
    }
}
