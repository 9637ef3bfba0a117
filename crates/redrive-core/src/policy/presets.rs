//! The default policy, and the policies of the reference documents.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Backoff, Eligibility, Jitter, MaxAttempts, Policy};
use crate::invalid::Invalid;

/// The default: exponential from 1 s, doubling, at most 5 min, full jitter, 8 attempts, within an hour.
pub fn standard() -> Policy {
    let backoff = Backoff::exponential(ms(1_000), 2.0, ms(300_000));
    let policy = build(8, backoff, Ok(Jitter::Full));
    policy.with_total_budget(Duration::from_secs(3_600))
}

/// Uploads to an object store: 1, 2, 4, 8, 16 s, each ± 200 ms; six attempts.
pub fn upload() -> Policy {
    build(6, Backoff::exponential(ms(1_000), 2.0, ms(16_000)), Ok(Jitter::absolute(ms(200))))
}

/// Storage operations after a claim: 5 attempts, 100 ms doubling, at most 5 s, ± 10 %.
pub fn storage() -> Policy {
    build(5, Backoff::exponential(ms(100), 2.0, ms(5_000)), Jitter::proportional(0.1))
}

/// Claims: 3 attempts, 500 ms doubling, at most 10 s, ± 20 %, so that a store that is down is not hammered.
pub fn dequeue() -> Policy {
    build(3, Backoff::exponential(ms(500), 2.0, ms(10_000)), Jitter::proportional(0.2))
}

/// The square of the number of failures in seconds, 1, 4, 9 s; no jitter.
pub fn quadratic() -> Policy {
    build(4, Backoff::polynomial(ms(1_000), 2.0, ms(300_000)), Ok(Jitter::None))
}

/// A single attempt.
pub fn once() -> Policy {
    build(1, Backoff::fixed(Duration::ZERO), Ok(Jitter::None))
}

/// Every preset with its name, for `redrive policy preview`.
pub fn all() -> [(&'static str, Policy); 6] {
    [
        ("default", standard()),
        ("upload", upload()),
        ("storage", storage()),
        ("dequeue", dequeue()),
        ("quadratic", quadratic()),
        ("once", once()),
    ]
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Presets are constants, so an invalid value is a defect. The test below constructs each one.
fn build(attempts: u32, backoff: Result<Backoff, Invalid>, jitter: Result<Jitter, Invalid>) -> Policy {
    Policy {
        max_attempts: legal(MaxAttempts::new(attempts)),
        backoff: legal(backoff),
        jitter: legal(jitter),
        total_budget: None,
        eligibility: Eligibility::default(),
        attempt_timeout: None,
        lease: None,
        annotations: BTreeMap::new(),
    }
}

fn legal<T>(value: Result<T, Invalid>) -> T {
    value.unwrap_or_else(|invalid| unreachable!("a preset is legal: {invalid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(policy: &Policy) -> Vec<(u64, u64)> {
        let ms = |span: Duration| span.as_millis() as u64;
        policy.preview().retries.iter().map(|retry| (ms(retry.earliest), ms(retry.latest))).collect()
    }

    #[test]
    fn presets_match_the_reference_documents() {
        assert_eq!(
            bounds(&upload()),
            [(800, 1_200), (1_800, 2_200), (3_800, 4_200), (7_800, 8_200), (15_800, 16_200)]
        );
        assert_eq!(bounds(&storage()), [(90, 110), (180, 220), (360, 440), (720, 880)]);
        assert_eq!(bounds(&dequeue()), [(400, 600), (800, 1_200)]);
        assert_eq!(bounds(&quadratic()), [(1_000, 1_000), (4_000, 4_000), (9_000, 9_000)]);
        assert_eq!(bounds(&once()), []);
        let standard = bounds(&standard());
        assert_eq!(standard.len(), 7);
        assert_eq!(standard[6], (0, 64_000));
    }

    #[test]
    fn storage_waits_are_capped_as_documented() {
        let ten = storage().with_max_attempts(10).unwrap();
        let waits: Vec<u64> = (1..=8).map(|k| ten.backoff.before_retry(k).as_millis() as u64).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    }

    #[test]
    fn every_preset_constructs() {
        assert_eq!(all().len(), 6);
    }
}
