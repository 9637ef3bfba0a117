//! Publishes the changes of tasks on this node to subscribers, as they happen.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use redrive_core::{JobId, Tenant};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::auth::{Caller, KEY_CACHE_TTL, Keyring};
use redrive_wire::event::TaskEvent;

/// Events buffered for a slow subscriber. A subscriber that falls further behind gets the event `lagged` in place of the missed ones.
pub const EVENTS_KEPT_MAX: usize = 4096;
/// Interval between the comments that keep a quiet connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Broadcasts changes of tasks.
pub struct Events {
    sender: Sender<Arc<PublishedEvent>>,
    count: AtomicU64,
    /// The tasks that are being created, each with the events that wait for the event of its creation.
    creations: Mutex<HashMap<JobId, Vec<UnnumberedEvent>>>,
    closing: CancellationToken,
}

/// An event before it is sent.
struct UnnumberedEvent {
    id: JobId,
    tenant: Tenant,
    name: &'static str,
    data: String,
}

struct PublishedEvent {
    number: u64,
    content: UnnumberedEvent,
}

/// Tasks that are being created. When this is dropped, the events that were held back for them are published.
pub(crate) struct Creations<'a> {
    events: &'a Events,
    tasks: Vec<JobId>,
}

impl Events {
    /// A broadcast that ends when `closing` is cancelled.
    pub fn new(closing: CancellationToken) -> Self {
        let sender = broadcast::channel(EVENTS_KEPT_MAX).0;
        Self { sender, count: AtomicU64::new(0), creations: Mutex::default(), closing }
    }

    /// Publishes a change. `describe` is not called if there is no subscriber.
    pub fn publish(&self, id: JobId, tenant: &Tenant, describe: impl FnOnce() -> TaskEvent) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let event = UnnumberedEvent::new(id, tenant, &describe());
        match self.lock_creations().get_mut(&id) {
            Some(held) => held.push(event),
            None => self.send(event),
        }
    }

    /// Holds back the events of tasks that are about to be created: a worker may claim a task before its creation is published.
    pub(crate) fn creations(&self, tasks: impl Iterator<Item = JobId>) -> Creations<'_> {
        let tasks: Vec<JobId> = if self.sender.receiver_count() == 0 { Vec::new() } else { tasks.collect() };
        self.lock_creations().extend(tasks.iter().map(|task| (*task, Vec::new())));
        Creations { events: self, tasks }
    }

    fn lock_creations(&self) -> MutexGuard<'_, HashMap<JobId, Vec<UnnumberedEvent>>> {
        self.creations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, content: UnnumberedEvent) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        // The last subscriber may have left meanwhile.
        let _ = self.sender.send(Arc::new(PublishedEvent { number, content }));
    }

    /// Subscribes to one task or to all tasks that `caller` may see. The stream ends when `keyring` no longer admits the caller.
    pub fn subscribe(
        &self,
        caller: Caller,
        task: Option<JobId>,
        keyring: Arc<Keyring>,
    ) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send + use<>> {
        let mut check = interval(KEY_CACHE_TTL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (receiver, closing) = (self.sender.subscribe(), self.closing.clone());
        let subscription = Subscription { receiver, closing, caller, task, keyring, check };
        let stream = unfold(subscription, |mut subscription| async move {
            Some((Ok(subscription.next().await?), subscription))
        });
        Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
    }
}

impl Creations<'_> {
    /// Publishes the creation of a task, before every other event of it.
    pub(crate) fn publish(&self, id: JobId, tenant: &Tenant, describe: impl FnOnce() -> TaskEvent) {
        if !self.tasks.is_empty() {
            self.events.send(UnnumberedEvent::new(id, tenant, &describe()));
        }
    }
}

impl Drop for Creations<'_> {
    fn drop(&mut self) {
        // The lock keeps later events of these tasks behind those that were held back.
        let mut creations = self.events.lock_creations();
        let held = self.tasks.iter().filter_map(|task| creations.remove(task)).flatten();
        held.for_each(|event| self.events.send(event));
    }
}

struct Subscription {
    receiver: Receiver<Arc<PublishedEvent>>,
    closing: CancellationToken,
    caller: Caller,
    task: Option<JobId>,
    keyring: Arc<Keyring>,
    /// When to check again that the caller's key still exists.
    check: Interval,
}

impl Subscription {
    /// The next event for this subscriber; `None` when the service ends or the caller's key is revoked.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let received = tokio::select! {
                biased;
                () = self.closing.cancelled() => return None,
                _ = self.check.tick() => {
                    if self.is_revoked().await {
                        return None;
                    }
                    continue;
                }
                received = self.receiver.recv() => received,
            };
            match received {
                Ok(event) if self.includes(&event) => return Some(event.event()),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => {
                    return Some(Event::default().event("lagged").data(format!("{{\"missed\":{missed}}}")));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Whether the caller's credential is no longer valid. If the store does not answer, the subscription continues.
    async fn is_revoked(&self) -> bool {
        matches!(self.keyring.still_admits(&self.caller.credential).await, Ok(false))
    }

    fn includes(&self, event: &PublishedEvent) -> bool {
        let UnnumberedEvent { id, tenant, .. } = &event.content;
        self.caller.sees(tenant) && self.task.is_none_or(|task| task == *id)
    }
}

impl UnnumberedEvent {
    fn new(id: JobId, tenant: &Tenant, event: &TaskEvent) -> Self {
        let data = serde_json::to_string(event).unwrap_or_default();
        Self { id, tenant: tenant.clone(), name: event.state.name(), data }
    }
}

impl PublishedEvent {
    fn event(&self) -> Event {
        let UnnumberedEvent { name, data, .. } = &self.content;
        Event::default().id(self.number.to_string()).event(name).data(data)
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::Timestamp;
    use redrive_store_sqlite::SqliteStore;

    use super::*;
    use crate::auth::Credential;
    use redrive_wire::Scope;
    use redrive_wire::state::JobState;

    fn caller(tenant: Option<&str>) -> Caller {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        let (scope, credential) = (Scope::Read, Credential::Anonymous);
        Caller {
            acts_for: tenant.clone().unwrap_or_default(),
            is_bound: tenant.is_some(),
            tenant,
            scope,
            bodies: false,
            credential,
        }
    }

    fn open() -> Arc<Keyring> {
        Arc::new(Keyring::new(Arc::new(SqliteStore::open_in_memory().unwrap()), true))
    }

    fn job_id(number: u128) -> JobId {
        JobId(uuid::Uuid::from_u128(number))
    }

    fn publish(events: &Events, number: u128, tenant: &str) {
        let id = job_id(number);
        events.publish(id, &Tenant::new(tenant).unwrap(), || TaskEvent {
            response_status: Some(200),
            ..TaskEvent::new(id, JobState::Succeeded, 1, Timestamp::from_ms(7))
        });
    }

    async fn text(sse: impl axum::response::IntoResponse) -> String {
        let body = axum::body::to_bytes(sse.into_response().into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_subscriber_gets_the_events_of_its_tenant_and_task_until_the_service_ends() {
        let closing = CancellationToken::new();
        let events = Events::new(closing.clone());
        publish(&events, 1, "a");
        let subscriptions = [
            events.subscribe(caller(None), None, open()),
            events.subscribe(caller(Some("a")), None, open()),
            events.subscribe(caller(Some("a")), Some(job_id(2)), open()),
            events.subscribe(caller(Some("c")), None, open()),
        ];
        for (number, tenant) in [(1, "a"), (2, "a"), (3, "b")] {
            publish(&events, number, tenant);
        }
        let readers: Vec<_> =
            subscriptions.into_iter().map(|subscription| tokio::spawn(text(subscription))).collect();
        // A cancellation ends the stream at once, so wait until every event is read.
        tokio::task::yield_now().await;
        while !events.sender.is_empty() {
            tokio::task::yield_now().await;
        }
        closing.cancel();
        let mut counts = Vec::new();
        for reader in readers {
            counts.push(reader.await.unwrap().matches("event: succeeded").count());
        }
        assert_eq!(counts, [3, 2, 1, 0]);
    }

    #[tokio::test]
    async fn the_creation_of_a_task_is_published_before_its_other_events() {
        let closing = CancellationToken::new();
        let events = Events::new(closing.clone());
        let subscription = events.subscribe(caller(None), None, open());
        let (created, repeated) = (job_id(1), job_id(2));
        let creations = events.creations([created, repeated].into_iter());
        publish(&events, 1, "a");
        publish(&events, 2, "a");
        publish(&events, 3, "a");
        creations.publish(created, &Tenant::new("a").unwrap(), || {
            TaskEvent::new(created, JobState::Pending, 0, Timestamp::from_ms(7))
        });
        drop(creations);
        publish(&events, 1, "a");
        let reader = tokio::spawn(text(subscription));
        tokio::task::yield_now().await;
        while !events.sender.is_empty() {
            tokio::task::yield_now().await;
        }
        closing.cancel();
        let received = reader.await.unwrap();
        let names: Vec<&str> = received.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(names, ["succeeded", "pending", "succeeded", "succeeded", "succeeded"], "{received}");
        assert!(events.lock_creations().is_empty());
    }

    #[tokio::test]
    async fn a_slow_subscriber_gets_a_lagged_event_and_continues() {
        let closing = CancellationToken::new();
        let events = Events::new(closing.clone());
        let subscription = events.subscribe(caller(None), None, open());
        for number in 0..EVENTS_KEPT_MAX as u128 + 5 {
            publish(&events, number, "a");
        }
        let reader = tokio::spawn(text(subscription));
        while !events.sender.is_empty() {
            tokio::task::yield_now().await;
        }
        closing.cancel();
        let received = reader.await.unwrap();
        assert!(received.starts_with("event: lagged\ndata: {\"missed\":5}"), "{}", &received[..60]);
        assert_eq!(received.matches("event: succeeded").count(), EVENTS_KEPT_MAX);
    }
}
