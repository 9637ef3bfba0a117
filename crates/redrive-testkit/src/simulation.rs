//! Simulates hours of a whole deployment in seconds: real workers on a model store, with faults that one seed decides.

mod client;
mod clock;
mod node;
mod operator;
mod plan;
mod script;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::store::Backend;
use redrive_core::{JobId, State, StoreError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::checks::{FinalState, NO_WEDGE, Violation, violations};
use crate::faulty_store::{FaultSwitch, FaultyStore};
use crate::history::{History, HistoryEvent, LeaseSource};
use crate::model_store::ModelStore;
use crate::mutant_store::{MutantStore, Mutation};
use crate::recording_store::RecordingStore;
pub use clock::SimulatedClock;
use plan::Plan;

/// How long after the faults all jobs must have ended.
const DRAIN_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// How late a lease or a due job may be at the end.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Simulates one deployment; the seed decides everything.
pub fn simulate(seed: u64) -> SimulationReport {
    run(seed, None)
}

/// Simulates one deployment on a mutant store, to prove that the checks detect the mutation.
pub fn simulate_mutant(seed: u64, mutation: Mutation) -> SimulationReport {
    run(seed, Some(mutation))
}

/// The result of a simulation.
#[derive(Debug, Clone)]
pub struct SimulationReport {
    /// The seed, which replays the simulation.
    pub seed: u64,
    /// How much time was simulated.
    pub simulated: Duration,
    /// Counts of events.
    pub counts: SimulationCounts,
    /// All events.
    pub history: History,
    /// The guarantees that did not hold. Empty if all did.
    pub violations: Vec<Violation>,
}

/// Counts of events in a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimulationCounts {
    /// Jobs that were acknowledged.
    pub jobs: usize,
    /// Attempts that were claimed.
    pub claims: usize,
    /// Leases that were reclaimed.
    pub reclaims: usize,
    /// Settlements that were rejected because the lease was lost.
    pub leases_lost: usize,
    /// Redrives.
    pub redriven: usize,
    /// Jobs that are succeeded, dead or cancelled at the end.
    pub ended: [usize; 3],
    /// Random faults: failed calls, delays and lost wake-ups.
    pub faults: u64,
    /// Workers that were killed.
    pub crashes: u64,
}

impl SimulationReport {
    /// Panics if there was a violation, and says how to replay the simulation.
    pub fn expect_sound(&self) {
        if let Some(violation) = self.violations.first() {
            let about = violation.job.map(|id| self.history.describe_job(id)).unwrap_or_default();
            panic!(
                "seed {seed} violates {violation}\n{}\nreplay it: REDRIVE_SEED={seed} cargo test -p redrive-testkit --test testkit simulation::",
                about.join("\n"),
                seed = self.seed,
            );
        }
    }
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimulationCounts { jobs, claims, reclaims, leases_lost, redriven, ended, faults, crashes } =
            self.counts;
        let [succeeded, dead, cancelled] = ended;
        write!(
            f,
            "seed {}: {} s, {jobs} jobs, {claims} claims, {reclaims} reclaims, {leases_lost} leases lost, {redriven} redriven, \
             {succeeded} succeeded, {dead} dead, {cancelled} cancelled, {faults} faults, {crashes} crashes",
            self.seed,
            self.simulated.as_secs(),
        )
    }
}

fn run(seed: u64, mutation: Option<Mutation>) -> SimulationReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let clock = SimulatedClock::start();
        let history = History::new(clock.clone());
        // Workers and checks must not depend on how a store numbers its epochs.
        let model = if seed.is_multiple_of(2) {
            ModelStore::new(clock.clone())
        } else {
            ModelStore::with_claim_numbers(clock.clone())
        };
        let store: Arc<dyn Backend> = match mutation {
            None => Arc::new(model),
            Some(mutation) => Arc::new(MutantStore::new(model, mutation)),
        };
        let store = Arc::new(RecordingStore::new(store, history.clone()));
        let system = Arc::new(SimulatedSystem::new(seed, store, clock, history).await);
        let violations = run_system(&system).await;
        system.report(violations).await
    })
}

/// The state that all parts of a simulation share.
struct SimulatedSystem {
    seed: u64,
    plan: Plan,
    /// The store without faults.
    store: Arc<dyn Backend>,
    clock: SimulatedClock,
    history: History,
    switch: Arc<FaultSwitch>,
    /// Ids that the client does not enqueue again.
    known: Mutex<Vec<JobId>>,
    crashes: Mutex<u64>,
    /// Cancelled when the faults are over.
    faults_over: CancellationToken,
    /// Cancelled when all jobs have ended.
    all_ended: CancellationToken,
    began: Instant,
}

impl SimulatedSystem {
    async fn new(seed: u64, store: Arc<dyn Backend>, clock: SimulatedClock, history: History) -> Self {
        let plan = Plan::draw(&mut Rng::with_seed(seed), &*store).await;
        Self {
            seed,
            plan,
            store,
            clock,
            history,
            switch: Arc::default(),
            known: Mutex::default(),
            crashes: Mutex::default(),
            faults_over: CancellationToken::new(),
            all_ended: CancellationToken::new(),
            began: Instant::now(),
        }
    }

    /// A random source for one part, so that parts do not influence each other.
    fn rng(&self, part: u64) -> Rng {
        Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part))
    }

    /// The store with faults, for one part.
    fn faulty(&self, rng: &mut Rng) -> Arc<dyn Backend> {
        let store = self.store.clone();
        Arc::new(FaultyStore::new(store, self.plan.faults, self.switch.clone(), rng.fork()))
    }

    fn known(&self) -> Vec<JobId> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn report(&self, violations: Vec<Violation>) -> SimulationReport {
        let mut counts = SimulationCounts { faults: self.switch.faults(), ..SimulationCounts::default() };
        counts.crashes = *self.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = std::collections::BTreeSet::new();
        for (_, event) in self.history.all() {
            match event {
                HistoryEvent::Acknowledged(id) => drop(jobs.insert(id)),
                HistoryEvent::Leased(leased) => match leased.source {
                    LeaseSource::Claim => counts.claims += 1,
                    LeaseSource::Reclaim => counts.reclaims += 1,
                },
                HistoryEvent::LeaseLost(_) => counts.leases_lost += 1,
                HistoryEvent::Redriven(_) => counts.redriven += 1,
                HistoryEvent::Started(_)
                | HistoryEvent::Settled(_)
                | HistoryEvent::Cancelled(_)
                | HistoryEvent::CancelRequested(_)
                | HistoryEvent::Discarded(_)
                | HistoryEvent::Pruned(_) => {}
            }
        }
        counts.jobs = jobs.len();
        if let Ok(stats) = self.store.stats().await {
            let count = |state| usize::try_from(stats.in_state(state)).unwrap_or(usize::MAX);
            counts.ended = [State::Succeeded, State::Dead, State::Cancelled].map(count);
        }
        let simulated = self.began.elapsed();
        SimulationReport { seed: self.seed, simulated, counts, history: self.history.clone(), violations }
    }
}

/// Runs the time with faults, then waits until all jobs have ended, and returns the violations.
async fn run_system(system: &Arc<SimulatedSystem>) -> Vec<Violation> {
    let mut callers = JoinSet::new();
    callers.spawn(client::run(system.clone()));
    callers.spawn(operator::run(system.clone()));
    let mut nodes = JoinSet::new();
    for number in 0..system.plan.nodes {
        nodes.spawn(node::run(system.clone(), number));
    }
    sleep(system.plan.fault_time).await;
    system.switch.stop_faults();
    system.faults_over.cancel();
    callers.join_all().await;
    let drained = drain(system).await;
    system.all_ended.cancel();
    let died = nodes.join_all().await.into_iter().find_map(Result::err);
    let end =
        FinalState::read(&*system.store, &system.history).await.expect("the store without faults answers");
    let mut found = violations(&system.history, &end, WAIT_MAX);
    found.extend(drained.err());
    found.extend(died.map(|detail| Violation { check: NO_WEDGE, job: None, detail }));
    found
}

/// Waits until every job has ended.
async fn drain(system: &SimulatedSystem) -> Result<(), Violation> {
    let deadline = Instant::now() + DRAIN_MAX;
    while count_live_jobs(&*system.store).await.expect("the store without faults answers") > 0 {
        if Instant::now() > deadline {
            let detail = format!("jobs have not ended {} s after the faults", DRAIN_MAX.as_secs());
            return Err(Violation { check: NO_WEDGE, job: None, detail });
        }
        sleep(Duration::from_secs(10)).await;
    }
    Ok(())
}

async fn count_live_jobs(store: &dyn Backend) -> Result<u64, StoreError> {
    let stats = store.stats().await?;
    Ok(stats.counts.iter().filter(|((_, state), _)| !state.is_final()).map(|(_, count)| count).sum())
}
