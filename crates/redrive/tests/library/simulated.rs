//! Handlers that wait for several things, in simulated time, on a store whose calls are slow, fail, or lose their results. The
//! same seed gives the same history.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use redrive::{Backoff, Context, JobError, JobId, Policy, Redrive, State, Task, presets};
use redrive_testkit::ModelStore;
use redrive_testkit::faulty_store::{FaultRates, FaultSwitch, FaultyStore};
use redrive_testkit::simulation::SimulatedClock;
use serde::{Deserialize, Serialize};

const MS: Duration = Duration::from_millis(1);
const SEEDS: u64 = 150;

/// How a flow waits for signals `a` and `b` and for a timer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum WaitMethod {
    Select,
    PlainSelect,
    Join,
}

#[derive(Serialize, Deserialize)]
struct Flow {
    method: WaitMethod,
    timer_ms: u64,
}

impl Task for Flow {
    const KIND: &'static str = "flow";
    type Output = Vec<String>;
    fn policy() -> Policy {
        let backoff = Backoff::fixed(5 * MS).unwrap();
        presets::once().with_max_attempts(1_000).unwrap().with_total_budget(None).with_backoff(backoff)
    }
}

/// Returns the choice of the handler, and the signals that are left.
async fn flow(flow: Flow, cx: Context) -> Result<Vec<String>, JobError> {
    let timer = Duration::from_millis(flow.timer_ms);
    let mut seen = match flow.method {
        WaitMethod::Select => {
            let chosen = cx
                .select([
                    cx.signal::<String>("a").map(|value| format!("a{value}")),
                    cx.signal::<String>("b").map(|value| format!("b{value}")),
                    cx.sleep(timer).map(|()| "timer".to_owned()),
                ])
                .await?;
            vec![chosen]
        }
        WaitMethod::PlainSelect => tokio::select! {
            a = cx.signal::<String>("a") => vec![format!("a{}", a?)],
            b = cx.signal::<String>("b") => vec![format!("b{}", b?)],
            slept = cx.sleep(timer) => { slept?; vec!["timer".to_owned()] }
        },
        WaitMethod::Join => {
            let (a, b, slept) = tokio::join!(
                cx.signal::<String>("a").into_future(),
                cx.signal::<String>("b").into_future(),
                cx.sleep(timer)
            );
            slept?;
            vec![format!("a{}", a?), format!("b{}", b?), "timer".to_owned()]
        }
    };
    // If a replay made another choice, this step would have another name and fail.
    cx.step(&format!("after {}", seen.join(" ")), || async { Ok::<_, JobError>(()) }).await?;
    cx.sleep(200 * MS).await?;
    if flow.method != WaitMethod::Join {
        for name in ["a", "b"] {
            if !seen[0].starts_with(name) {
                let left = cx.signal::<String>(name).timeout(MS).await?;
                seen.extend(left.map(|value| format!("{name}{value} left")));
            }
        }
    }
    Ok(seen)
}

/// Runs the flows of one seed to their end, and returns the result of each.
async fn run_flows(seed: u64) -> Vec<(WaitMethod, u64, State, Vec<String>)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let reliable: Arc<dyn redrive::Backend> = Arc::new(ModelStore::new(SimulatedClock::start()));
    let faults =
        FaultRates { fail_before: 0.03, fail_after: 0.03, delayed: 0.6, delay_max: 8 * MS, lost_wakes: 0.1 };
    let faulty = FaultyStore::new(reliable.clone(), faults, Arc::new(FaultSwitch::default()), rng.fork());
    let (user, node) = (Redrive::on(reliable), Redrive::on(Arc::new(faulty)));
    let mut ids = Vec::new();
    for method in [WaitMethod::Select, WaitMethod::PlainSelect, WaitMethod::Join] {
        let timer_ms = rng.u64(1..60);
        ids.push((user.enqueue(Flow { method, timer_ms }).await.unwrap().id(), method, timer_ms));
    }
    let mut signals: Vec<(Duration, JobId, &str)> = ids
        .iter()
        .flat_map(|(id, ..)| ["a", "b"].map(|name| (rng.u64(0..80) as u32 * MS, *id, name)))
        .collect();
    signals.sort();
    let send = async {
        let start = tokio::time::Instant::now();
        for (at, id, name) in signals {
            tokio::time::sleep_until(start + at).await;
            user.signal(id, name, &"!").await.unwrap();
        }
        for (id, ..) in &ids {
            while !user.get(*id).await.unwrap().unwrap().state.is_final() {
                tokio::time::sleep(10 * MS).await;
            }
        }
    };
    let time_limit = Duration::from_secs(120);
    let worker = node.worker().without_schedules().on(flow);
    let ended = async {
        tokio::time::timeout(time_limit, send).await.unwrap_or_else(|_| panic!("seed {seed} hangs"))
    };
    worker.run_until(ended).await.unwrap();
    let mut results = Vec::new();
    for (id, method, timer_ms) in ids {
        let job = user.get(id).await.unwrap().unwrap();
        assert_eq!(job.state, State::Succeeded, "seed {seed}, {method:?}: {:?}", job.last_error);
        let output = serde_json::from_slice(&job.output.unwrap_or_default()).unwrap();
        results.push((method, timer_ms, job.state, output));
    }
    results
}

#[test]
fn no_signal_is_lost_and_every_replay_makes_the_same_choice() {
    let mut chosen = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..SEEDS {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        for (method, _, _, seen) in runtime.block_on(run_flows(seed)) {
            let signals = seen.iter().filter(|each| each.starts_with(['a', 'b'])).count();
            assert_eq!(signals, 2, "seed {seed}, {method:?}: each signal is taken once: {seen:?}");
            *chosen.entry(format!("{method:?} {}", seen[0])).or_default() += 1;
        }
    }
    // Each of the three came first in at least one flow.
    for method in ["Select", "PlainSelect"] {
        for first in ["a!", "b!", "timer"] {
            assert!(chosen.contains_key(&format!("{method} {first}")), "{method} {first}: {chosen:?}");
        }
    }
}
