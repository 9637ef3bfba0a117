//! Drives operations: each node that serves the API takes those that nobody has, and goes on step by step.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::{Change, Expect, Record};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::act::{act, watch};
use super::{KIND, Kept, Phase, decode, save};
use crate::api::{self, Api};
use crate::error::Answer;
use crate::wire::operation::OperationState;

/// How long a node that fell silent keeps an operation.
const OWNED: Duration = Duration::from_secs(15);
/// Time from one look at the operations to the next while one is under way.
const TICK: Duration = Duration::from_millis(500);
/// The same while none is: what begins here is looked at sooner, what begins elsewhere is driven there.
const REST: Duration = Duration::from_secs(5);
/// How long one step counts.
const COUNT_FOR: Duration = Duration::from_secs(1);
/// How long an operation that has ended is shown.
const SHOWN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Operations read at once.
const READ_ITEMS: usize = 100;
/// The wait after the first failed step of an operation; it doubles with each further one.
const FAILURE_WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait after a failed step.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Drives operations until `closing` is cancelled.
pub(crate) async fn drive(api: Arc<Api>, closing: CancellationToken) {
    let me = uuid::Uuid::now_v7().to_string();
    let mut driver = Driver { api, me, due: HashMap::new(), failures: HashMap::new(), busy: false };
    loop {
        let moved = driver.sweep().await.unwrap_or_else(|problem| {
            tracing::warn!(?problem, "operations could not be driven");
            false
        });
        let pause = if moved { Duration::ZERO } else { driver.pause(Instant::now()) };
        tokio::select! {
            biased;
            () = closing.cancelled() => return,
            () = driver.api.begun.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Driver {
    api: Arc<Api>,
    me: String,
    /// When the next step of an operation with a rate may go.
    due: HashMap<String, Instant>,
    /// Operations whose last step on this node failed.
    failures: HashMap<String, Failure>,
    /// Whether an operation was under way at the last look.
    busy: bool,
}

/// How often an operation has failed in a row on this node, and when this node tries it again.
#[derive(Debug, Clone, Copy)]
struct Failure {
    count: u32,
    retry_at: Instant,
}

impl Failure {
    /// The failure after `earlier`; the wait doubles with each one.
    fn after(earlier: Option<Self>, now: Instant) -> Self {
        let count = earlier.map_or(1, |earlier| earlier.count.saturating_add(1));
        let doubled = 2_u32.saturating_pow(count - 1);
        Self { count, retry_at: now + FAILURE_WAIT_MIN.saturating_mul(doubled).min(FAILURE_WAIT_MAX) }
    }
}

impl Driver {
    /// One step of each operation; says whether any could go on at once.
    async fn sweep(&mut self) -> Answer<bool> {
        let (mut after, mut moved) = (None, false);
        self.busy = false;
        loop {
            let records = self.api.store.scan(KIND, after.as_deref(), READ_ITEMS).await?;
            for record in &records {
                moved |= self.try_visit(record).await;
            }
            match records.last() {
                Some(last) if records.len() == READ_ITEMS => after = Some(last.id.clone()),
                Some(_) | None => return Ok(moved),
            }
        }
    }

    /// Visits an operation. A failure makes this operation wait, and no other.
    async fn try_visit(&mut self, record: &Record) -> bool {
        let earlier = self.failures.get(&record.id).copied();
        // Ownership is not renewed during the wait, so another node can try meanwhile.
        if earlier.is_some_and(|failure| failure.retry_at > Instant::now()) {
            return false;
        }
        match self.visit(record).await {
            Ok(moved) => {
                self.failures.remove(&record.id);
                moved
            }
            Err(problem) => {
                let (now, operation) = (Instant::now(), record.id.as_str());
                let failure = Failure::after(earlier, now);
                let (failures, wait) = (failure.count, failure.retry_at - now);
                tracing::warn!(operation, failures, ?wait, ?problem, "a step of an operation failed");
                self.failures.insert(record.id.clone(), failure);
                false
            }
        }
    }

    async fn visit(&mut self, record: &Record) -> Answer<bool> {
        let kept = decode(record)?;
        match kept.state {
            OperationState::Running => {
                self.busy = true;
                self.step(record, kept).await
            }
            OperationState::Done | OperationState::CanaryFailed | OperationState::Stopped => {
                self.due.remove(&record.id);
                self.forget(record, &kept).await
            }
        }
    }

    async fn forget(&self, record: &Record, kept: &Kept) -> Answer<bool> {
        if kept.finished_at.is_some_and(|at| api::now().since(at) > SHOWN) {
            let (kind, id) = (KIND.to_owned(), record.id.clone());
            let change = Change { kind, id, expect: Expect::Version(record.version), value: None };
            self.api.store.write(change).await?;
        }
        Ok(false)
    }

    /// Takes the operation if nobody else has it, does a little of it, and saves how far it has come.
    async fn step(&mut self, record: &Record, mut kept: Kept) -> Answer<bool> {
        let Some(version) = self.own(record, &mut kept).await? else { return Ok(false) };
        if self.due.get(&record.id).is_some_and(|due| *due > Instant::now()) {
            return Ok(false);
        }
        let moved = match kept.phase() {
            Phase::Count => {
                self.count(&mut kept).await?;
                true
            }
            Phase::Watch => watch(&*self.api.store, &mut kept).await?,
            Phase::Act => {
                let acted = act(&self.api, &mut kept).await?;
                self.pace(&record.id, &kept, acted);
                true
            }
        };
        if moved {
            save(&*self.api.store, &record.id, Expect::Version(version), &kept).await?;
        }
        Ok(moved && kept.rate_per_second.is_none())
    }

    /// Counts a little further; what matches may be more than can be counted before the ownership ends.
    async fn count(&self, kept: &mut Kept) -> Answer<()> {
        let mut counting = kept.counting()?;
        counting.go_on(&*self.api.store, &kept.wanted()?, COUNT_FOR).await?;
        kept.note(&counting);
        Ok(())
    }

    /// Makes this node the owner, or renews that; none means that another node has it.
    async fn own(&self, record: &Record, kept: &mut Kept) -> Answer<Option<u64>> {
        // The store's clock, on which all nodes agree.
        let now = self.api.store.stats().await?.now;
        let mine = kept.owner.as_ref() == Some(&self.me);
        if !mine && kept.owner.is_some() && kept.owned_until > now {
            return Ok(None);
        }
        if mine && kept.owned_until.since(now) > OWNED / 2 {
            return Ok(Some(record.version));
        }
        kept.owner = Some(self.me.clone());
        kept.owned_until = now.after(OWNED);
        Ok(save(&*self.api.store, &record.id, Expect::Version(record.version), kept).await?)
    }

    /// The time to the next step that a rate allows or to the next try after a failure; one that is overdue waits for
    /// something else.
    fn pause(&self, now: Instant) -> Duration {
        let retries = self.failures.values().map(|failure| failure.retry_at);
        let next = self.due.values().copied().chain(retries).filter(|due| *due > now).min();
        let tick = if self.busy { TICK } else { REST };
        next.map_or(tick, |due| tick.min(due - now))
    }

    fn pace(&mut self, id: &str, kept: &Kept, acted: usize) {
        if let Some(rate) = kept.rate_per_second {
            let wait = Duration::try_from_secs_f64(acted as f64 / rate).unwrap_or(OWNED);
            self.due.insert(id.to_owned(), Instant::now() + wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_after_a_failure_doubles_up_to_its_maximum() {
        let now = Instant::now();
        let mut failure = None;
        let mut waits = Vec::new();
        for _ in 0..100 {
            let next = Failure::after(failure, now);
            waits.push((next.retry_at - now).as_secs());
            failure = Some(next);
        }
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits[99], FAILURE_WAIT_MAX.as_secs());
    }
}
