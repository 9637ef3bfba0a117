//! Takes due jobs in batches as large as there is room for, and sleeps exactly until there is more to do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ClaimRequest, Claimed, Store, StoreError, Unreadable, Wake};
use redrive_core::{Job, Outcome, Timestamp};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument;

use crate::engine::{Causes, Engine, StoreTime};
use crate::execute::{Attempt, execute};
use crate::hold::{Flight, lock};
use crate::node_pause::Intake;
use crate::settle::Evidence;

/// How long a claim may be put off for the sake of a larger batch: the least that timers can do.
const GATHER: Duration = Duration::from_millis(1);

/// The running attempts. Whoever ends the worker takes them out; no more can start then.
pub(crate) type Attempts = Mutex<Option<JoinSet<()>>>;

/// Claims until the shutdown begins.
pub(crate) async fn run(engine: Arc<Engine>, attempts: Arc<Attempts>) {
    // A request without kinds would mean all of them.
    if engine.handlers.is_empty() {
        return engine.stop.cancelled().await;
    }
    let mut pace = Pace::default();
    while let Some((probe, room)) = pace.intake(&engine).await {
        let sent = Instant::now();
        let limit = if probe.is_some() { 1 } else { room.num_permits() };
        match claim(&engine, limit).await {
            Ok(claimed) => {
                let rest = pace.rest(&engine, &claimed, sent);
                start(&engine, &attempts, Slots { room, probe }, claimed).await;
                rest.sleep(&engine).await;
            }
            Err(error) => {
                drop((room, probe));
                tracing::error!(error = %Causes(&error), "claim failed");
                pause(&engine).await;
            }
        }
    }
}

async fn claim(engine: &Engine, limit: usize) -> Result<Claimed, StoreError> {
    let request = ClaimRequest {
        worker: engine.settings.worker.clone(),
        queues: engine.settings.queues.clone(),
        kinds: engine.kinds(),
        limit,
        lease: engine.settings.lease,
    };
    engine.intake.claim(request).await
}

/// After an error, whatever the store's own retry has waited: never a hot loop.
async fn pause(engine: &Engine) {
    tokio::select! {
        biased;
        () = engine.stop.cancelled() => {}
        () = sleep(engine.settings.poll) => {}
    }
}

/// When to claim, and for how many.
#[derive(Default)]
struct Pace {
    last: Option<Instant>,
    /// Claims in a row that brought nothing although something was due.
    fruitless: u32,
}

impl Pace {
    /// Waits until the node may claim, then sets slots aside; none once the shutdown has begun.
    async fn intake(&self, engine: &Engine) -> Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)> {
        loop {
            let intake = tokio::select! {
                biased;
                () = engine.stop.cancelled() => return None,
                intake = engine.node_pause.intake() => intake,
            };
            let room = self.room(engine).await?;
            match intake {
                Intake::Probe(probe) => return Some((Some(probe), room)),
                // The wait for slots may have been long.
                Intake::Full if engine.node_pause.deferral().is_some() => {}
                Intake::Full => return Some((None, room)),
            }
        }
    }

    /// Sets slots aside for the next claim; none once the shutdown has begun.
    async fn room(&self, engine: &Engine) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => None,
            room = self.gather(engine) => room,
        }
    }

    /// Few free slots are worth a short wait for more: a claim is a write, whether it brings one job or a thousand.
    async fn gather(&self, engine: &Engine) -> Option<OwnedSemaphorePermit> {
        let slots = &engine.slots;
        let share = (engine.settings.concurrency / 2).clamp(1, BATCH_ITEMS_MAX);
        let mut until = self.last.map(|last| last + GATHER);
        if slots.available_permits() == 0 {
            // Attempts tend to end together: the first one to end is not the last.
            drop(slots.acquire().await);
            until = Some(Instant::now() + GATHER);
        }
        if slots.available_permits() < share
            && let Some(until) = until
            && until > Instant::now()
        {
            let _ = timeout_at(until, slots.acquire_many(u32::try_from(share).unwrap_or(u32::MAX))).await;
        }
        let room = slots.available_permits().clamp(1, BATCH_ITEMS_MAX);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        slots.clone().acquire_many_owned(room).await.ok()
    }

    /// How long to rest after `claimed`, which was asked for at `sent`.
    fn rest(&mut self, engine: &Engine, claimed: &Claimed, sent: Instant) -> Rest {
        self.last = Some(sent);
        let due = claimed.next_due.is_some_and(|due| due <= claimed.now);
        let brought = claimed.jobs.len() + claimed.unreadable.len();
        self.fruitless = if due && brought == 0 { self.fruitless.saturating_add(1) } else { 0 };
        if due && brought > 0 {
            return Rest::None;
        }
        let wait = match claimed.next_due {
            // Others are at work on what is due: look again soon, but not without end.
            Some(_) if due => GATHER.saturating_mul(1 << self.fruitless.min(20)),
            Some(next) => next.since(claimed.now),
            None => engine.settings.poll,
        };
        // Counted from before the call: early costs an empty claim, late would delay a job.
        Rest::Until { deadline: sent + wait.min(engine.settings.poll), wake: claimed.wake }
    }
}

/// What to do before the next claim.
enum Rest {
    None,
    Until { deadline: Instant, wake: Wake },
}

impl Rest {
    async fn sleep(self, engine: &Engine) {
        match self {
            Self::None => {}
            Self::Until { deadline, .. } if deadline <= Instant::now() => {}
            Self::Until { deadline, wake } => tokio::select! {
                biased;
                () = engine.stop.cancelled() => {}
                () = engine.intake.wait(wake) => {}
                () = sleep_until(deadline) => {}
            },
        }
    }
}

/// What claimed jobs are put into.
struct Slots {
    room: OwnedSemaphorePermit,
    /// For the first job, if it finds out whether the node works again.
    probe: Option<OwnedSemaphorePermit>,
}

/// Puts each job into a slot of its own task, so that a slow one holds up no other.
async fn start(engine: &Arc<Engine>, attempts: &Attempts, slots: Slots, claimed: Claimed) {
    let Slots { mut room, mut probe } = slots;
    let time = StoreTime::of_answer(claimed.now);
    tracing::debug!(count = claimed.jobs.len(), unreadable = claimed.unreadable.len(), "claim");
    engine.counts.claimed.add(claimed.jobs.len() + claimed.unreadable.len());
    let mut ready = Vec::with_capacity(claimed.jobs.len());
    for job in claimed.jobs {
        let flight = Arc::new(Flight::new(job.lease));
        let job = Arc::new(job);
        // A store that brings more than it was asked for finds no slot: the rest goes back when its lease runs out.
        if let Some(slot) = room.split(1) {
            ready.push(Attempt::new(engine.clone(), job, flight, time, slot).probing(probe.take()));
        }
    }
    drop((room, probe));
    let jobs: Vec<Arc<Job>> = ready.iter().map(|attempt| attempt.job.clone()).collect();
    engine.observer.claimed(&jobs, claimed.now);
    engine.held.add(ready.iter().map(|attempt| (attempt.job.lease(), attempt.flight.clone())));
    if engine.stop.is_cancelled() {
        // The shutdown began while the claim was under way.
        for attempt in ready {
            attempt.release().await;
        }
    } else {
        spawn(attempts, ready);
    }
    reject_unreadable(engine, claimed.unreadable, claimed.now).await;
}

fn spawn(attempts: &Attempts, ready: Vec<Attempt>) {
    if let Some(running) = &mut *lock(attempts) {
        for attempt in ready {
            let span = span_of(&attempt.job);
            // Boxed: a future of this size would be moved several times on its way into its task.
            running.spawn(Box::pin(execute(attempt).instrument(span)));
        }
        while running.try_join_next().is_some() {}
    }
}

fn span_of(job: &Job) -> tracing::Span {
    tracing::info_span!("execute", job = %job.id, kind = job.kind.as_str(), run = job.run, attempt = job.attempt)
}

/// Settles rows that could not be read, so that they end where an operator sees them.
pub(crate) async fn reject_unreadable(engine: &Engine, rows: Vec<Unreadable>, now: Timestamp) {
    engine.held.add(rows.iter().map(|row| (row.lease, Flight::grounded())));
    for row in rows {
        let outcome = Outcome::reject(format!("the job cannot be read: {}", row.problem));
        let evidence = Evidence {
            lease: row.lease,
            run: row.run,
            attempt: row.attempt,
            job: None,
            started_at: now,
            duration: Duration::ZERO,
            note: None,
        };
        let verdict = engine.decide_without_policy(&outcome);
        let settlement = engine.settlement(evidence, &outcome, verdict);
        engine.hand_over(None, settlement).await;
    }
}
