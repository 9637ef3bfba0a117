//! Who takes part: policies by the name that a chart shows.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::{Backoff, Invalid, Jitter, Policy};

/// A policy with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Contender {
    /// What it is called in tables and charts.
    pub name: String,
    /// The policy.
    pub policy: Policy,
}

impl Contender {
    /// A policy under a name.
    pub fn new(name: impl Into<String>, policy: Policy) -> Self {
        Self { name: name.into(), policy }
    }
}

/// The five of the published experiment: none, exponential, equal, full, decorrelated.
///
/// The experiment raises two to the number of failures, so that its first wait is twice the base; a policy starts with
/// its initial wait. Exponential ones therefore start with `2 · base`. Decorrelated jitter starts with `base` in both.
pub fn published(base: Duration, cap: Duration, attempts: u32) -> Result<Vec<Contender>, Invalid> {
    let doubling = Backoff::exponential(base * 2, 2.0, cap)?;
    let tripling = Backoff::exponential(base, 2.0, cap)?;
    let lasting = Policy::default().with_max_attempts(attempts)?.with_total_budget(None);
    let contender = |name: &str, backoff: &Backoff, jitter| {
        Contender::new(name, lasting.clone().with_backoff(backoff.clone()).with_jitter(jitter))
    };
    Ok(vec![
        contender("none", &Backoff::fixed(Duration::ZERO)?, Jitter::None),
        contender("exponential", &doubling, Jitter::None),
        contender("equal", &doubling, Jitter::Equal),
        contender("full", &doubling, Jitter::Full),
        contender("decorrelated", &tripling, Jitter::Decorrelated),
    ])
}

/// The engine's default policy under each jitter, no wait at all, and the engine's other presets.
pub fn of_the_engine() -> Result<Vec<Contender>, Invalid> {
    let standard = presets::standard();
    let at_once = standard.clone().with_backoff(Backoff::fixed(Duration::ZERO)?).with_jitter(Jitter::None);
    let mut all = vec![
        Contender::new("none", at_once),
        Contender::new("exponential", standard.clone().with_jitter(Jitter::None)),
        Contender::new("equal", standard.clone().with_jitter(Jitter::Equal)),
        Contender::new("full", standard.clone()),
        Contender::new("decorrelated", standard.with_jitter(Jitter::Decorrelated)),
    ];
    // `default` is `full` above.
    let others = presets::all().into_iter().filter(|(name, _)| *name != "default");
    all.extend(others.map(|(name, policy)| Contender::new(name, policy)));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_waits_start_at_twice_the_base_and_end_at_the_cap() {
        let ms = Duration::from_millis;
        let all = published(ms(5), ms(2_000), 100).unwrap();
        let waits = |name: &str| -> Vec<u128> {
            let policy = &all.iter().find(|contender| contender.name == name).unwrap().policy;
            (1..=10).map(|failed| policy.wait(failed, None, None, &mut || 1.0).as_millis()).collect()
        };
        assert_eq!(waits("none"), [0; 10]);
        for name in ["exponential", "equal", "full"] {
            assert_eq!(waits(name), [10, 20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000], "{name}");
        }
        assert_eq!(waits("decorrelated")[0], 15);
    }

    #[test]
    fn every_preset_of_the_engine_takes_part_once() {
        let all = of_the_engine().unwrap();
        for (name, preset) in presets::all() {
            let same = all.iter().filter(|contender| contender.policy == preset);
            assert_eq!(same.count(), 1, "{name}");
        }
    }
}
