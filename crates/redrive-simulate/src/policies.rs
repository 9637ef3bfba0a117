//! The policies of the experiments, with their names in tables and figures.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::{Backoff, Invalid, Jitter, Policy};

/// A policy with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedPolicy {
    /// Its name in tables and figures.
    pub name: String,
    /// The policy.
    pub policy: Policy,
}

impl NamedPolicy {
    /// Gives a policy a name.
    pub fn new(name: impl Into<String>, policy: Policy) -> Self {
        Self { name: name.into(), policy }
    }
}

/// The five policies of the published experiment: none, exponential, equal, full, decorrelated.
///
/// The first wait of the published experiment is twice the base, because it raises two to the number of failures. A policy starts with
/// its initial wait, so exponential policies here start with `2 · base`. Decorrelated jitter starts with `base` in both.
pub fn published_policies(base: Duration, cap: Duration, attempts: u32) -> Result<Vec<NamedPolicy>, Invalid> {
    let from_twice_base = Backoff::exponential(base * 2, 2.0, cap)?;
    let from_base = Backoff::exponential(base, 2.0, cap)?;
    let unlimited = Policy::default().with_max_attempts(attempts)?.with_total_budget(None);
    let named = |name: &str, backoff: &Backoff, jitter| {
        NamedPolicy::new(name, unlimited.clone().with_backoff(backoff.clone()).with_jitter(jitter))
    };
    Ok(vec![
        named("none", &Backoff::fixed(Duration::ZERO)?, Jitter::None),
        named("exponential", &from_twice_base, Jitter::None),
        named("equal", &from_twice_base, Jitter::Equal),
        named("full", &from_twice_base, Jitter::Full),
        named("decorrelated", &from_base, Jitter::Decorrelated),
    ])
}

/// The default policy of the engine with each jitter, a policy without waits, and the other presets.
pub fn engine_policies() -> Result<Vec<NamedPolicy>, Invalid> {
    let standard = presets::standard();
    let at_once = standard.clone().with_backoff(Backoff::fixed(Duration::ZERO)?).with_jitter(Jitter::None);
    let mut all = vec![
        NamedPolicy::new("none", at_once),
        NamedPolicy::new("exponential", standard.clone().with_jitter(Jitter::None)),
        NamedPolicy::new("equal", standard.clone().with_jitter(Jitter::Equal)),
        NamedPolicy::new("full", standard.clone()),
        NamedPolicy::new("decorrelated", standard.with_jitter(Jitter::Decorrelated)),
    ];
    // The preset `default` is `full` above.
    let others = presets::all().into_iter().filter(|(name, _)| *name != "default");
    all.extend(others.map(|(name, policy)| NamedPolicy::new(name, policy)));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_waits_start_at_twice_the_base_and_end_at_the_cap() {
        let ms = Duration::from_millis;
        let all = published_policies(ms(5), ms(2_000), 100).unwrap();
        let waits = |name: &str| -> Vec<u128> {
            let policy = &all.iter().find(|named| named.name == name).unwrap().policy;
            (1..=10).map(|failed| policy.wait(failed, None, None, &mut || 1.0).as_millis()).collect()
        };
        assert_eq!(waits("none"), [0; 10]);
        for name in ["exponential", "equal", "full"] {
            assert_eq!(waits(name), [10, 20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000], "{name}");
        }
        assert_eq!(waits("decorrelated")[0], 15);
    }

    #[test]
    fn every_preset_of_the_engine_is_included_once() {
        let all = engine_policies().unwrap();
        for (name, preset) in presets::all() {
            let same = all.iter().filter(|named| named.policy == preset);
            assert_eq!(same.count(), 1, "{name}");
        }
    }
}
