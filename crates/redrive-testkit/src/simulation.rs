//! Hours of a whole deployment in moments: real workers on a model store, with everything going wrong by one seed.

mod client;
mod node;
mod operator;
mod plan;
mod script;
mod time;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redrive_core::store::Backend;
use redrive_core::{JobId, State, StoreError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::checks::{End, NO_WEDGE, Violation, violations};
use crate::faulty::{FaultyStore, Weather};
use crate::history::{By, Happening, History};
use crate::model_store::ModelStore;
use crate::mutant::{Flaw, Mutant};
use crate::recorded::Recorded;
use plan::Plan;
pub use time::SimulatedClock;

/// How long after the faults everything must have ended.
const DRAIN_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// How late a lease or a due job may be at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Simulates one deployment; the seed decides everything.
pub fn simulate(seed: u64) -> Report {
    run(seed, None)
}

/// Simulates one deployment on a store with a flaw, to prove that the checks notice.
pub fn simulate_flawed(seed: u64, flaw: Flaw) -> Report {
    run(seed, Some(flaw))
}

/// What a simulation came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How much time passed in the simulation.
    pub simulated: Duration,
    /// How much happened.
    pub counts: Counts,
    /// Everything that happened.
    pub history: History,
    /// What did not hold.
    pub violations: Vec<Violation>,
}

/// How much happened in a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were acknowledged.
    pub jobs: usize,
    /// Attempts that were claimed.
    pub claims: usize,
    /// Leases that were taken over.
    pub reclaims: usize,
    /// Settlements that came too late.
    pub shut_out: usize,
    /// Jobs that were driven again.
    pub redriven: usize,
    /// Jobs that succeeded, are dead, or were cancelled, at the end.
    pub ended: [usize; 3],
    /// Calls that failed or were late.
    pub faults: u64,
    /// Workers that were killed.
    pub crashes: u64,
}

impl Report {
    /// Panics, with how to replay it, if something did not hold.
    pub fn expect_sound(&self) {
        if let Some(violation) = self.violations.first() {
            let about = violation.job.map(|id| self.history.of_job(id)).unwrap_or_default();
            panic!(
                "seed {seed} broke {violation}\n{}\nreplay it: REDRIVE_SEED={seed} cargo test -p redrive-testkit --test simulation",
                about.join("\n"),
                seed = self.seed,
            );
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { jobs, claims, reclaims, shut_out, redriven, ended, faults, crashes } = self.counts;
        let [succeeded, dead, cancelled] = ended;
        write!(
            f,
            "seed {}: {} s, {jobs} jobs, {claims} claims, {reclaims} reclaims, {shut_out} shut out, {redriven} redriven, \
             {succeeded} succeeded, {dead} dead, {cancelled} cancelled, {faults} faults, {crashes} crashes",
            self.seed,
            self.simulated.as_secs(),
        )
    }
}

fn run(seed: u64, flaw: Option<Flaw>) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let clock = SimulatedClock::start();
        let history = History::new(clock.clone());
        let model = ModelStore::new(clock.clone());
        let store: Arc<dyn Backend> = match flaw {
            None => Arc::new(model),
            Some(flaw) => Arc::new(Mutant::new(model, flaw)),
        };
        let store = Arc::new(Recorded::new(store, history.clone()));
        let world = Arc::new(World::new(seed, store, clock, history).await);
        let violations = live(&world).await;
        world.report(violations).await
    })
}

/// What everyone in the simulation shares.
struct World {
    seed: u64,
    plan: Plan,
    /// The store without faults.
    store: Arc<dyn Backend>,
    clock: SimulatedClock,
    history: History,
    weather: Arc<Weather>,
    /// Ids that the client is done with.
    known: Mutex<Vec<JobId>>,
    crashes: Mutex<u64>,
    /// The time of troubles is over.
    calm: CancellationToken,
    /// Everything has ended.
    over: CancellationToken,
    began: Instant,
}

impl World {
    async fn new(seed: u64, store: Arc<dyn Backend>, clock: SimulatedClock, history: History) -> Self {
        let plan = Plan::draw(&mut Rng::with_seed(seed), &*store).await;
        Self {
            seed,
            plan,
            store,
            clock,
            history,
            weather: Arc::default(),
            known: Mutex::default(),
            crashes: Mutex::default(),
            calm: CancellationToken::new(),
            over: CancellationToken::new(),
            began: Instant::now(),
        }
    }

    /// A source of randomness for one part; parts do not disturb each other's draws.
    fn rng(&self, part: u64) -> Rng {
        Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part))
    }

    /// The store as one part sees it.
    fn faulty(&self, rng: &mut Rng) -> Arc<dyn Backend> {
        let store = self.store.clone();
        Arc::new(FaultyStore::new(store, self.plan.faults, self.weather.clone(), rng.fork()))
    }

    fn known(&self) -> Vec<JobId> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn report(&self, violations: Vec<Violation>) -> Report {
        let mut counts = Counts { faults: self.weather.faults(), ..Counts::default() };
        counts.crashes = *self.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = std::collections::BTreeSet::new();
        for (_, happening) in self.history.all() {
            match happening {
                Happening::Acknowledged(id) => drop(jobs.insert(id)),
                Happening::Leased(leased) => match leased.by {
                    By::Claim => counts.claims += 1,
                    By::Reclaim => counts.reclaims += 1,
                },
                Happening::ShutOut(_) => counts.shut_out += 1,
                Happening::Redriven(_) => counts.redriven += 1,
                Happening::Started(_)
                | Happening::Settled(_)
                | Happening::Cancelled(_)
                | Happening::CancelRequested(_)
                | Happening::Discarded(_)
                | Happening::Pruned(_) => {}
            }
        }
        counts.jobs = jobs.len();
        if let Ok(stats) = self.store.stats().await {
            let count = |state| usize::try_from(stats.in_state(state)).unwrap_or(usize::MAX);
            counts.ended = [State::Succeeded, State::Dead, State::Cancelled].map(count);
        }
        let simulated = self.began.elapsed();
        Report { seed: self.seed, simulated, counts, history: self.history.clone(), violations }
    }
}

/// Trouble, then calm, then the end; returns what did not hold.
async fn live(world: &Arc<World>) -> Vec<Violation> {
    let mut people = JoinSet::new();
    people.spawn(client::run(world.clone()));
    people.spawn(operator::run(world.clone()));
    let mut nodes = JoinSet::new();
    for number in 0..world.plan.nodes {
        nodes.spawn(node::run(world.clone(), number));
    }
    sleep(world.plan.trouble).await;
    world.weather.calm_down();
    world.calm.cancel();
    people.join_all().await;
    let drained = drain(world).await;
    world.over.cancel();
    let died = nodes.join_all().await.into_iter().find_map(Result::err);
    let end = End::of(&*world.store, &world.history).await.expect("the store without faults answers");
    let mut broken = violations(&world.history, &end, PATIENCE);
    broken.extend(drained.err());
    broken.extend(died.map(|detail| Violation { check: NO_WEDGE, job: None, detail }));
    broken
}

/// Waits until every job has ended.
async fn drain(world: &World) -> Result<(), Violation> {
    let deadline = Instant::now() + DRAIN_MAX;
    while open(&*world.store).await.expect("the store without faults answers") > 0 {
        if Instant::now() > deadline {
            let detail = format!("jobs have not ended {} s after the troubles", DRAIN_MAX.as_secs());
            return Err(Violation { check: NO_WEDGE, job: None, detail });
        }
        sleep(Duration::from_secs(10)).await;
    }
    Ok(())
}

async fn open(store: &dyn Backend) -> Result<u64, StoreError> {
    let stats = store.stats().await?;
    Ok(stats.counts.iter().filter(|((_, state), _)| !state.is_final()).map(|(_, count)| count).sum())
}
