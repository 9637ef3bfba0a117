//! Runs a waiting job in every order in which signals, a timer and its worker can act. No wake-up may be lost, the job
//! must choose once, and the other signals must stay.

use std::future::Future;
use std::time::Duration;

use redrive_core::steps::{NewStep, RememberResult, Signal, SignalResult, Step, StepKind, WaitCondition};
use redrive_core::store::{Backend, ClaimRequest, Settlement};
use redrive_core::{
    Job, JobId, Kind, Lease, NewJob, PolicyName, PolicyRef, Queue, SignalName, State, StepName, Timestamp,
    Verdict, Wait, WorkerId,
};
use uuid::Uuid;

use crate::clock::ManualClock;

/// How long the timer runs.
const TIMER: Duration = Duration::from_millis(1_000);

/// The steps of the worker that are interleaved: claim, look for signals, wait, resume.
const WORKER_STEPS: usize = 4;

/// The actor that takes the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    /// The worker that runs the job.
    Worker,
    /// Sends the signal with this name, and then resumes the job.
    Sender(&'static str),
    /// The clock, which moves past the timer.
    Clock,
}

/// Runs a job that waits for the first of two signals and a timer, in every order in which one sender, one sender and
/// the clock, or two senders can act between the steps of its worker. Panics with the order that fails.
pub async fn interleave<S, F, Fut>(open: F)
where
    F: FnOnce(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend,
{
    let scenarios: [&[(Actor, usize)]; 3] = [
        &[(Actor::Sender("b"), 2)],
        &[(Actor::Sender("a"), 2), (Actor::Clock, 1)],
        &[(Actor::Sender("a"), 2), (Actor::Sender("b"), 2)],
    ];
    run_scenarios(&scenarios, open).await;
}

/// Like [`interleave`], with both senders and the clock: thousands of orders.
pub async fn interleave_all<S, F, Fut>(open: F)
where
    F: FnOnce(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend,
{
    let scenario = [(Actor::Sender("a"), 2), (Actor::Sender("b"), 2), (Actor::Clock, 1)];
    run_scenarios(&[&scenario], open).await;
}

async fn run_scenarios<S, F, Fut>(scenarios: &[&[(Actor, usize)]], open: F)
where
    F: FnOnce(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend,
{
    let clock = ManualClock::new();
    let store = open(clock.clone()).await;
    let mut number = 0;
    for scenario in scenarios {
        let mut steps = vec![(Actor::Worker, WORKER_STEPS)];
        steps.extend_from_slice(scenario);
        let mut orders = Vec::new();
        all_orders(&mut steps, &mut Vec::new(), &mut orders);
        for order in orders {
            InterleavedJob::new(&store, clock.clone(), number).await.run(&order).await;
            number += 1;
        }
    }
}

/// Every order of the steps that keeps the steps of each actor in sequence.
fn all_orders(left: &mut [(Actor, usize)], order: &mut Vec<Actor>, orders: &mut Vec<Vec<Actor>>) {
    if left.iter().all(|(_, count)| *count == 0) {
        orders.push(order.clone());
        return;
    }
    for n in 0..left.len() {
        if left[n].1 > 0 {
            left[n].1 -= 1;
            order.push(left[n].0);
            all_orders(left, order, orders);
            order.pop();
            left[n].1 += 1;
        }
    }
}

/// A job that runs in one order of the steps.
struct InterleavedJob<'a, S> {
    store: &'a S,
    clock: ManualClock,
    id: JobId,
    queue: Queue,
    deadline: Timestamp,
    next: WorkerStep,
    /// The senders that have sent their signal.
    senders: Vec<&'static str>,
    /// The signals that the store accepted, in order. It rejects those that come after the end of the job.
    kept: Vec<&'static str>,
    chosen: Option<String>,
}

/// The next step of the worker.
enum WorkerStep {
    Claim,
    LookForSignals(Lease),
    Take(Lease, Signal),
    Wait(Lease),
    Resume,
    Finish(Lease),
    Nothing,
}

impl<'a, S: Backend> InterleavedJob<'a, S> {
    async fn new(store: &'a S, clock: ManualClock, number: u64) -> Self {
        let id = JobId(Uuid::from_u128(u128::from(number) + 1));
        let queue = Queue::new(format!("order-{number}")).expect("a legal queue");
        let policy = PolicyRef::first(PolicyName::new("default").expect("a legal name"));
        let kind = Kind::new("flow").expect("a legal kind");
        let job = NewJob { queue: queue.clone(), ..NewJob::new(id, kind, policy, Vec::new()) };
        store.enqueue(vec![job]).await.expect("enqueue");
        let deadline = clock.now().after(TIMER);
        Self {
            store,
            clock,
            id,
            queue,
            deadline,
            next: WorkerStep::Claim,
            senders: Vec::new(),
            kept: Vec::new(),
            chosen: None,
        }
    }

    async fn run(mut self, order: &[Actor]) {
        for actor in order {
            match actor {
                Actor::Worker => self.work().await,
                Actor::Sender(name) => self.send(name).await,
                Actor::Clock => self.clock.advance(TIMER),
            }
        }
        // No other actor has a step left, so nothing may keep the worker from finishing.
        for _ in 0..20 {
            self.work().await;
        }
        self.check(order).await;
    }

    /// Takes the next step of a worker whose handler waits for the first of several events.
    async fn work(&mut self) {
        self.next = match std::mem::replace(&mut self.next, WorkerStep::Nothing) {
            WorkerStep::Claim => {
                self.claim().await.map_or(WorkerStep::Claim, |job| WorkerStep::LookForSignals(job.lease()))
            }
            WorkerStep::LookForSignals(lease) => self.look_for_signals(lease).await,
            WorkerStep::Take(lease, signal) => self.take(lease, signal).await,
            WorkerStep::Wait(lease) => {
                let at_most = Some(self.deadline.since(self.clock.now()));
                self.settle(lease, Verdict::Wait(Wait { at_most, ..Wait::until(both()) })).await;
                WorkerStep::Resume
            }
            WorkerStep::Resume => {
                self.store.resume(vec![self.id]).await.expect("resume");
                WorkerStep::Claim
            }
            WorkerStep::Finish(lease) => {
                self.settle(lease, Verdict::Complete(None)).await;
                WorkerStep::Nothing
            }
            WorkerStep::Nothing => WorkerStep::Nothing,
        };
    }

    async fn claim(&self) -> Option<Job> {
        let request = ClaimRequest {
            worker: WorkerId::new("w").expect("a legal name"),
            queues: vec![self.queue.clone()],
            kinds: Vec::new(),
            limit: 1,
            lease: Duration::from_secs(3_600),
        };
        self.store.claim(request).await.expect("claim").jobs.pop()
    }

    async fn look_for_signals(&mut self, lease: Lease) -> WorkerStep {
        let names = ["a", "b"].map(signal_name).to_vec();
        let oldest = self.store.pending_signals(self.id, names, 1).await.expect("pending_signals").pop();
        match oldest {
            Some(signal) => WorkerStep::Take(lease, signal),
            None if self.deadline <= self.clock.now() => {
                let answer = self.remember(lease, "timer", None).await;
                assert!(matches!(answer, RememberResult::Stored(_)), "{answer:?}");
                WorkerStep::Finish(lease)
            }
            None => WorkerStep::Wait(lease),
        }
    }

    async fn take(&mut self, lease: Lease, signal: Signal) -> WorkerStep {
        let answer = self.remember(lease, signal.name.as_str(), Some(signal.id)).await;
        assert!(matches!(answer, RememberResult::Stored(_)), "{answer:?}");
        WorkerStep::Finish(lease)
    }

    async fn remember(&mut self, lease: Lease, chosen: &str, takes: Option<Uuid>) -> RememberResult {
        let name = StepName::new("select").expect("a legal name");
        let step = Step { place: 0, name, kind: StepKind::Selected, value: chosen.as_bytes().to_vec() };
        let new_step = NewStep { takes, ..NewStep::new(lease, step) };
        assert_eq!(self.chosen.replace(chosen.to_owned()), None, "the job chooses once");
        self.store.remember(vec![new_step]).await.expect("remember").remove(0)
    }

    async fn settle(&self, lease: Lease, verdict: Verdict) {
        self.store.settle(vec![Settlement::new(lease, verdict)]).await.expect("settle");
    }

    /// Sends the signal, or resumes the job if the signal was sent before.
    async fn send(&mut self, name: &'static str) {
        if self.senders.contains(&name) {
            self.store.resume(vec![self.id]).await.expect("resume");
            return;
        }
        self.senders.push(name);
        let id = Uuid::from_u128(u128::from(name.as_bytes()[0]));
        let signal = Signal { job: self.id, id, name: signal_name(name), value: b"x".to_vec() };
        let answer = self.store.signal(vec![signal]).await.expect("signal").remove(0);
        self.kept.extend((answer == SignalResult::Stored).then_some(name));
    }

    async fn check(&self, order: &[Actor]) {
        let job = self.store.get(vec![self.id]).await.expect("get").remove(0).expect("the job exists");
        let chosen = self.chosen.as_deref();
        assert_eq!(job.state, State::Succeeded, "a wake-up was lost, {chosen:?} was chosen: {order:?}");
        let steps = self.store.recall(self.id, 0, 9).await.expect("recall");
        let remembered: Vec<&[u8]> = steps.iter().map(|step| step.value.as_slice()).collect();
        assert_eq!(remembered, [chosen.expect("something was chosen").as_bytes()], "{order:?}");
        let names = ["a", "b"].map(signal_name).to_vec();
        let left = self.store.pending_signals(self.id, names, 9).await.expect("pending_signals");
        let unchosen: Vec<&str> = self.kept.iter().copied().filter(|name| Some(*name) != chosen).collect();
        let left: Vec<&str> = left.iter().map(|signal| signal.name.as_str()).collect();
        assert_eq!(left, unchosen, "{order:?}");
    }
}

fn signal_name(name: &str) -> SignalName {
    SignalName::new(name).expect("a legal name")
}

fn both() -> WaitCondition {
    WaitCondition::any(["a", "b"].map(|name| WaitCondition::Signal(signal_name(name)))).expect("a legal wait")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelStore;
    use crate::mutant_store::{MutantStore, Mutation};

    #[test]
    fn all_orders_are_listed() {
        let mut orders = Vec::new();
        all_orders(
            &mut [(Actor::Worker, 4), (Actor::Sender("a"), 2), (Actor::Clock, 1)],
            &mut Vec::new(),
            &mut orders,
        );
        assert_eq!(orders.len(), 105);
    }

    #[tokio::test]
    async fn the_model_loses_no_wake_up() {
        interleave(|clock| async { ModelStore::new(clock) }).await;
        interleave_all(|clock| async { ModelStore::new(clock) }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "a wake-up was lost")]
    async fn a_store_that_checks_only_one_signal_is_detected() {
        interleave(|clock| async { MutantStore::new(ModelStore::new(clock), Mutation::OnlyFirstAwaited) })
            .await;
    }
}
