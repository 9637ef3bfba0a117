//! Tells listeners of this node's changes of state, as they happen.

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

use crate::auth::{Caller, KEY_TRUSTED, Keyring};
use crate::wire::event::TaskEvent;

/// Events kept for a slow reader; beyond them it is told that it lagged.
pub const EVENTS_KEPT_MAX: usize = 4096;
/// Time from one comment that keeps a quiet connection open to the next.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A broadcast of changes of state.
pub struct Events {
    sender: Sender<Arc<Told>>,
    count: AtomicU64,
    closing: CancellationToken,
}

struct Told {
    number: u64,
    id: JobId,
    tenant: Tenant,
    status: &'static str,
    data: String,
}

impl Events {
    /// A broadcast that ends when `closing` is cancelled.
    pub fn new(closing: CancellationToken) -> Self {
        Self { sender: broadcast::channel(EVENTS_KEPT_MAX).0, count: AtomicU64::new(0), closing }
    }

    /// Tells of a change; `describe` is not called when nobody listens.
    pub fn tell(&self, id: JobId, tenant: &Tenant, describe: impl FnOnce() -> TaskEvent) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let event = describe();
        let told = Told {
            number: self.count.fetch_add(1, Ordering::Relaxed) + 1,
            id,
            tenant: tenant.clone(),
            status: event.status.name(),
            data: serde_json::to_string(&event).unwrap_or_default(),
        };
        // Nobody may be listening any more: then there is nobody to tell.
        let _ = self.sender.send(Arc::new(told));
    }

    /// What `caller` may hear, of one task or of all, as long as `keyring` admits them.
    pub fn listen(
        &self,
        caller: Caller,
        task: Option<JobId>,
        keyring: Arc<Keyring>,
    ) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send + use<>> {
        let mut check = interval(KEY_TRUSTED);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (receiver, closing) = (self.sender.subscribe(), self.closing.clone());
        let ear = Ear { receiver, closing, caller, task, keyring, check };
        let stream = unfold(ear, |mut ear| async move { Some((Ok(ear.next().await?), ear)) });
        Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
    }
}

struct Ear {
    receiver: Receiver<Arc<Told>>,
    closing: CancellationToken,
    caller: Caller,
    task: Option<JobId>,
    keyring: Arc<Keyring>,
    /// When to look again whether the caller's key still exists.
    check: Interval,
}

impl Ear {
    /// The next event for this listener; none when the service ends or the caller's key is revoked.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let heard = tokio::select! {
                biased;
                () = self.closing.cancelled() => return None,
                _ = self.check.tick() => {
                    if self.is_shut_out().await {
                        return None;
                    }
                    continue;
                }
                heard = self.receiver.recv() => heard,
            };
            match heard {
                Ok(told) if self.concerns(&told) => return Some(told.event()),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => {
                    return Some(Event::default().event("lagged").data(format!("{{\"missed\":{missed}}}")));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// A store that cannot answer shuts nobody out: it has nothing new to tell either.
    async fn is_shut_out(&self) -> bool {
        matches!(self.keyring.still_admits(&self.caller.credential).await, Ok(false))
    }

    fn concerns(&self, told: &Told) -> bool {
        self.caller.sees(&told.tenant) && self.task.is_none_or(|task| task == told.id)
    }
}

impl Told {
    fn event(&self) -> Event {
        Event::default().id(self.number.to_string()).event(self.status).data(&self.data)
    }
}

#[cfg(test)]
mod tests {
    use redrive_store_sqlite::SqliteStore;

    use super::*;
    use crate::auth::Credential;
    use crate::keys::Scope;
    use crate::wire::status::Status;

    fn caller(tenant: Option<&str>) -> Caller {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        let (scope, credential) = (Scope::Read, Credential::Nothing);
        Caller { acts_for: tenant.clone().unwrap_or_default(), tenant, scope, bodies: false, credential }
    }

    fn open() -> Arc<Keyring> {
        Arc::new(Keyring::new(Arc::new(SqliteStore::open_in_memory().unwrap()), true))
    }

    fn tell(events: &Events, number: u128, tenant: &str) {
        let id = JobId(uuid::Uuid::from_u128(number));
        events.tell(id, &Tenant::new(tenant).unwrap(), || TaskEvent {
            task_id: id.to_string(),
            status: Status::Succeeded,
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
    async fn a_listener_hears_its_own_tenant_and_task_and_then_the_end() {
        let closing = CancellationToken::new();
        let events = Events::new(closing.clone());
        tell(&events, 1, "a");
        let ears = [
            events.listen(caller(None), None, open()),
            events.listen(caller(Some("a")), None, open()),
            events.listen(caller(Some("a")), Some(JobId(uuid::Uuid::from_u128(2))), open()),
            events.listen(caller(Some("c")), None, open()),
        ];
        for (number, tenant) in [(1, "a"), (2, "a"), (3, "b")] {
            tell(&events, number, tenant);
        }
        let readers: Vec<_> = ears.into_iter().map(|ear| tokio::spawn(text(ear))).collect();
        // Cancellation is looked at first, so it waits until all that was told is read.
        tokio::task::yield_now().await;
        while !events.sender.is_empty() {
            tokio::task::yield_now().await;
        }
        closing.cancel();
        let mut counts = Vec::new();
        for reader in readers {
            counts.push(reader.await.unwrap().matches("event: SUCCEEDED").count());
        }
        assert_eq!(counts, [3, 2, 1, 0]);
    }

    #[tokio::test]
    async fn a_slow_listener_is_told_that_it_lagged_and_goes_on() {
        let closing = CancellationToken::new();
        let events = Events::new(closing.clone());
        let ear = events.listen(caller(None), None, open());
        for number in 0..EVENTS_KEPT_MAX as u128 + 5 {
            tell(&events, number, "a");
        }
        let reader = tokio::spawn(text(ear));
        while !events.sender.is_empty() {
            tokio::task::yield_now().await;
        }
        closing.cancel();
        let heard = reader.await.unwrap();
        assert!(heard.starts_with("event: lagged\ndata: {\"missed\":5}"), "{}", &heard[..60]);
        assert_eq!(heard.matches("event: SUCCEEDED").count(), EVENTS_KEPT_MAX);
    }
}
