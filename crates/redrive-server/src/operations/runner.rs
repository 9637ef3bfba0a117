//! Runs operations: each node of the service takes over operations without an owner and runs them step by step.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::{DamagedRecord, Record};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actions::{act, watch};
use super::{Phase, StoredOperation, operations};
use crate::api::{self, Api};
use crate::error::Answer;
use redrive_wire::operation::OperationState;

/// How long a node owns an operation unless it renews the ownership.
const OWNERSHIP: Duration = Duration::from_secs(15);
/// Interval between reads of the operations while one is running.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between reads while none is running. An operation that was created on this node wakes the runner at once.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// How long one step counts jobs.
const COUNT_TIME: Duration = Duration::from_secs(1);
/// How long an operation is kept after its end.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Operations read at once.
const READ_ITEMS: usize = 100;
/// The wait after the first failed step of an operation. It doubles with each further failure.
const FAILURE_WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait after a failed step.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs operations until `closing` is cancelled.
pub(crate) async fn run(api: Arc<Api>, closing: CancellationToken) {
    let owner = uuid::Uuid::now_v7().to_string();
    let mut runner =
        OperationRunner { api, owner, due: HashMap::new(), failures: HashMap::new(), busy: false };
    loop {
        let progressed = runner.sweep().await.unwrap_or_else(|problem| {
            tracing::warn!(?problem, "cannot read the operations");
            false
        });
        let pause = if progressed { Duration::ZERO } else { runner.pause(Instant::now()) };
        tokio::select! {
            biased;
            () = closing.cancelled() => return,
            () = runner.api.operation_begun.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct OperationRunner {
    api: Arc<Api>,
    owner: String,
    /// When the next step of an operation with a rate limit may start.
    due: HashMap<String, Instant>,
    /// Operations whose last step on this node failed.
    failures: HashMap<String, StepFailure>,
    /// Whether an operation was running at the last read.
    busy: bool,
}

/// The consecutive failures of an operation on this node, and when this node tries again.
#[derive(Debug, Clone, Copy)]
struct StepFailure {
    count: u32,
    retry_at: Instant,
}

impl StepFailure {
    /// The failure that follows `earlier`. The wait doubles each time.
    fn after(earlier: Option<Self>, now: Instant) -> Self {
        let count = earlier.map_or(1, |earlier| earlier.count.saturating_add(1));
        let doubled = 2_u32.saturating_pow(count - 1);
        Self { count, retry_at: now + FAILURE_WAIT_MIN.saturating_mul(doubled).min(FAILURE_WAIT_MAX) }
    }
}

impl OperationRunner {
    /// Runs one step of each operation. Returns whether any operation can continue at once.
    async fn sweep(&mut self) -> Answer<bool> {
        let (mut after, mut progressed) = (None, false);
        self.busy = false;
        loop {
            let page = operations(&*self.api.store).scan("", after.as_deref(), READ_ITEMS).await?;
            page.damaged.into_iter().for_each(|record| self.report_damaged(record));
            for record in page.items {
                progressed |= self.try_visit(record).await;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(progressed),
            }
        }
    }

    /// Visits an operation. A failure delays only this operation.
    async fn try_visit(&mut self, record: Record<StoredOperation>) -> bool {
        let id = record.id.clone();
        // The ownership is not renewed during the wait, so another node can try in the meantime.
        if self.must_wait(&id) {
            return false;
        }
        match self.visit(record).await {
            Ok(progressed) => {
                self.failures.remove(&id);
                progressed
            }
            Err(problem) => {
                self.record_failure(&id, &problem);
                false
            }
        }
    }

    /// Logs an operation that cannot be read, at growing intervals.
    fn report_damaged(&mut self, record: DamagedRecord) {
        if !self.must_wait(&record.id) {
            self.record_failure(&record.id, &record.problem);
        }
    }

    fn must_wait(&self, id: &str) -> bool {
        self.failures.get(id).is_some_and(|failure| failure.retry_at > Instant::now())
    }

    fn record_failure(&mut self, operation: &str, problem: &dyn fmt::Debug) {
        let now = Instant::now();
        let failure = StepFailure::after(self.failures.get(operation).copied(), now);
        let (failures, wait) = (failure.count, failure.retry_at - now);
        tracing::warn!(operation, failures, ?wait, ?problem, "a step of an operation failed");
        self.failures.insert(operation.to_owned(), failure);
    }

    async fn visit(&mut self, record: Record<StoredOperation>) -> Answer<bool> {
        match record.value.state {
            OperationState::Running => {
                self.busy = true;
                self.step(record).await
            }
            OperationState::Done | OperationState::CanaryFailed | OperationState::Cancelled => {
                self.due.remove(&record.id);
                self.remove_if_expired(&record).await
            }
        }
    }

    async fn remove_if_expired(&self, record: &Record<StoredOperation>) -> Answer<bool> {
        if record.value.finished_at.is_some_and(|at| api::now().since(at) > RETENTION) {
            operations(&*self.api.store).remove_version(&record.id, record.version).await?;
        }
        Ok(false)
    }

    /// Runs one step if this node owns the operation or can become its owner, and saves the progress.
    async fn step(&mut self, record: Record<StoredOperation>) -> Answer<bool> {
        let Record { id, version, value: mut operation } = record;
        let Some(version) = self.take_ownership(&id, version, &mut operation).await? else {
            return Ok(false);
        };
        if self.due.get(&id).is_some_and(|due| *due > Instant::now()) {
            return Ok(false);
        }
        let progressed = match operation.phase() {
            Phase::Count => {
                self.count(&mut operation).await?;
                true
            }
            Phase::Watch => watch(&*self.api.store, &mut operation).await?,
            Phase::Act => {
                let acted = act(&self.api, &mut operation).await?;
                self.pace(&id, &operation, acted);
                true
            }
        };
        if progressed {
            operations(&*self.api.store).replace(&id, version, &operation).await?;
        }
        Ok(progressed && operation.rate_per_second.is_none())
    }

    /// Continues the count for a limited time, so that the ownership can be renewed between steps.
    async fn count(&self, operation: &mut StoredOperation) -> Answer<()> {
        let mut counter = operation.counter()?;
        counter.advance(&*self.api.store, &operation.selected_jobs()?, COUNT_TIME).await?;
        operation.save_count(&counter);
        Ok(())
    }

    /// Makes this node the owner, or renews its ownership. Returns the new version, or `None` if another node is the owner.
    async fn take_ownership(
        &self,
        id: &str,
        version: u64,
        operation: &mut StoredOperation,
    ) -> Answer<Option<u64>> {
        // The store's clock, which all nodes share.
        let now = self.api.store.stats().await?.now;
        let mine = operation.owner.as_ref() == Some(&self.owner);
        if !mine && operation.owner.is_some() && operation.owned_until > now {
            return Ok(None);
        }
        if mine && operation.owned_until.since(now) > OWNERSHIP / 2 {
            return Ok(Some(version));
        }
        operation.owner = Some(self.owner.clone());
        operation.owned_until = now.after(OWNERSHIP);
        Ok(operations(&*self.api.store).replace(id, version, operation).await?)
    }

    /// The time until the next read: until a rate limit allows a step or a failed operation is tried again, but at most the usual
    /// interval. Times in the past do not count, because those operations wait for something else.
    fn pause(&self, now: Instant) -> Duration {
        let retries = self.failures.values().map(|failure| failure.retry_at);
        let next = self.due.values().copied().chain(retries).filter(|due| *due > now).min();
        let tick = if self.busy { BUSY_INTERVAL } else { IDLE_INTERVAL };
        next.map_or(tick, |due| tick.min(due - now))
    }

    fn pace(&mut self, id: &str, operation: &StoredOperation, acted: usize) {
        if let Some(rate) = operation.rate_per_second {
            let wait = Duration::try_from_secs_f64(acted as f64 / rate).unwrap_or(OWNERSHIP);
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
            let next = StepFailure::after(failure, now);
            waits.push((next.retry_at - now).as_secs());
            failure = Some(next);
        }
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits[99], FAILURE_WAIT_MAX.as_secs());
    }
}
