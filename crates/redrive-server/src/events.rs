//! Publishes the changes of tasks on this node to subscribers, as they happen.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    closing: CancellationToken,
}

struct PublishedEvent {
    number: u64,
    id: JobId,
    tenant: Tenant,
    name: &'static str,
    data: String,
}

impl Events {
    /// A broadcast that ends when `closing` is cancelled.
    pub fn new(closing: CancellationToken) -> Self {
        Self { sender: broadcast::channel(EVENTS_KEPT_MAX).0, count: AtomicU64::new(0), closing }
    }

    /// Publishes a change. `describe` is not called if there is no subscriber.
    pub fn publish(&self, id: JobId, tenant: &Tenant, describe: impl FnOnce() -> TaskEvent) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let event = describe();
        let event = PublishedEvent {
            number: self.count.fetch_add(1, Ordering::Relaxed) + 1,
            id,
            tenant: tenant.clone(),
            name: event.state.name(),
            data: serde_json::to_string(&event).unwrap_or_default(),
        };
        // The last subscriber may have left since the check above.
        let _ = self.sender.send(Arc::new(event));
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
        self.caller.sees(&event.tenant) && self.task.is_none_or(|task| task == event.id)
    }
}

impl PublishedEvent {
    fn event(&self) -> Event {
        Event::default().id(self.number.to_string()).event(self.name).data(&self.data)
    }
}

#[cfg(test)]
mod tests {
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

    fn publish(events: &Events, number: u128, tenant: &str) {
        let id = JobId(uuid::Uuid::from_u128(number));
        events.publish(id, &Tenant::new(tenant).unwrap(), || TaskEvent {
            task_id: id.to_string(),
            state: JobState::Succeeded,
            attempt_number: 1,
            at: 7,
            next_attempt_at: None,
            reason: None,
            error: None,
            response_status: Some(200),
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
            events.subscribe(caller(Some("a")), Some(JobId(uuid::Uuid::from_u128(2))), open()),
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
