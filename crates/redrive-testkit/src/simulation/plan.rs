//! The plan of a simulated deployment: its size, its policies and its faults.

use std::time::Duration;

use fastrand::Rng;
use redrive_core::policy::presets;
use redrive_core::store::{Backend, Retention};
use redrive_core::{Backoff, Jitter, Kind, Policy, PolicyRef, Queue, catalog};

use crate::faulty_store::FaultRates;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The plan of a deployment.
#[derive(Debug)]
pub(super) struct Plan {
    /// How long faults occur.
    pub(super) fault_time: Duration,
    pub(super) nodes: u64,
    pub(super) policies: Vec<PolicyRef>,
    pub(super) queues: Vec<Queue>,
    pub(super) kinds: Vec<Kind>,
    pub(super) faults: FaultRates,
    pub(super) lease: Duration,
    pub(super) concurrency: usize,
    /// The mean time until a worker is killed or stopped.
    pub(super) worker_life: Duration,
    /// The mean time between two actions of the operator.
    pub(super) between_actions: Duration,
    /// The mean time between two enqueues.
    pub(super) between_jobs: Duration,
    pub(super) retention: Retention,
}

impl Plan {
    /// Draws a plan, and stores its policies.
    pub(super) async fn draw(rng: &mut Rng, store: &dyn Backend) -> Self {
        let mut references = Vec::new();
        for policy in policies() {
            let reference = catalog::put_inline(store, &policy, redrive_core::Timestamp::default()).await;
            references.push(reference.expect("the store without faults answers"));
        }
        Self {
            fault_time: HOUR * rng.u32(2..=6),
            nodes: rng.u64(2..=4),
            policies: references,
            queues: ["a", "b", "c"].map(|name| Queue::new(name).expect("a legal name")).to_vec(),
            kinds: ["x", "y"].map(|name| Kind::new(name).expect("a legal name")).to_vec(),
            faults: faults(rng),
            lease: Duration::from_secs(pick(rng, &[3, 10, 30])),
            concurrency: pick(rng, &[1, 4, 32]),
            worker_life: pick(rng, &[2 * MINUTE, 10 * MINUTE, HOUR]),
            between_actions: pick(rng, &[MINUTE / 2, 2 * MINUTE, 10 * MINUTE]),
            between_jobs: Duration::from_secs(pick(rng, &[10, 30, 120])),
            retention: pick(rng, &[Retention::default(), two_hours()]),
        }
    }
}

/// One of `choices`.
pub(super) fn pick<T: Clone>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())].clone()
}

/// A random duration from almost zero to twice `mean`.
pub(super) fn around(rng: &mut Rng, mean: Duration) -> Duration {
    mean.mul_f64(rng.f64() * 2.0)
}

fn faults(rng: &mut Rng) -> FaultRates {
    FaultRates {
        fail_before: pick(rng, &[0.0, 0.01, 0.1]),
        fail_after: pick(rng, &[0.0, 0.01, 0.1]),
        delayed: pick(rng, &[0.0, 0.01, 0.1]),
        delay_max: Duration::from_millis(pick(rng, &[20, 2_000, 40_000])),
        lost_wakes: pick(rng, &[0.0, 0.1, 1.0]),
    }
}

/// Policies under which every job ends within the drain time.
fn policies() -> Vec<Policy> {
    let second = Duration::from_secs(1);
    let spread = Backoff::exponential(second, 2.0, 30 * second).expect("a legal backoff");
    vec![
        presets::standard(),
        presets::upload(),
        presets::quadratic().with_attempt_timeout(20 * second),
        presets::once(),
        presets::upload()
            .with_backoff(spread)
            .with_jitter(Jitter::Decorrelated)
            .with_total_budget(90 * second),
    ]
}

fn two_hours() -> Retention {
    Retention { succeeded: 2 * HOUR, dead: 2 * HOUR, cancelled: 2 * HOUR }
}
