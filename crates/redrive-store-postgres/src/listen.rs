//! Wake-ups between nodes: one connection hears of them; telling is coalesced and never part of a job's commit.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::StoreError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::error::{Sorted, explain};
use crate::floors::Floors;
use crate::open::Opened;
use crate::pool::{Connect, Pool};

/// Between two notifications of one node: a notification takes a lock that all of the server's notifying commits share.
const TELL_EVERY: Duration = Duration::from_millis(10);
/// The first and the longest pause before another try to listen.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LONGEST: Duration = Duration::from_secs(5);
/// Lanes that one notification lists at most: the server takes 8,000 bytes. Claims in other lanes wait for their next full look.
const LANES_MAX: usize = 200;

/// What a node must know, wherever it happened.
#[derive(Debug)]
pub(crate) struct News {
    /// How often something may have become claimable.
    pub(crate) wakes: watch::Sender<u64>,
    /// How often the end of a running job was requested.
    pub(crate) cancels: watch::Sender<u64>,
    floors: Mutex<Floors>,
}

impl Default for News {
    fn default() -> Self {
        Self { wakes: watch::Sender::new(0), cancels: watch::Sender::new(0), floors: Mutex::default() }
    }
}

impl News {
    pub(crate) fn wake(&self) {
        self.wakes.send_modify(|wakes| *wakes += 1);
    }

    pub(crate) fn cancel(&self) {
        self.cancels.send_modify(|cancels| *cancels += 1);
    }

    /// Where claims begin.
    pub(crate) fn floors(&self) -> MutexGuard<'_, Floors> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Anything may have happened.
    fn all(&self) {
        self.floors().forget();
        self.wake();
        self.cancel();
    }

    /// Takes note of a message of another node.
    fn hear(&self, message: &Message) {
        if !message.early.is_empty() {
            self.floors().lower_lanes(&message.early);
        }
        if message.wake {
            self.wake();
        }
        if message.cancel {
            self.cancel();
        }
    }
}

/// What a node tells the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// Something may have become claimable.
    pub(crate) wake: bool,
    /// The end of a running job was requested.
    pub(crate) cancel: bool,
    /// Lanes in which jobs have become due before the place where claims may begin, and when.
    early: HashMap<i32, i64>,
}

impl Message {
    pub(crate) fn expect_early(&mut self, early: &HashMap<i32, i64>) {
        for (lane, at) in early {
            let first = self.early.entry(*lane).or_insert(*at);
            *first = (*at).min(*first);
        }
    }

    /// The payload: the name of the sender, then what there is to say. A name alone is a wake-up, as nodes of older versions send
    /// and understand it.
    fn payload(&self, sender: &str) -> String {
        let mut payload = sender.to_owned();
        if self.wake && (self.cancel || !self.early.is_empty()) {
            payload += " wake";
        }
        if self.cancel {
            payload += " cancel";
        }
        for (lane, at) in self.early.iter().take(LANES_MAX) {
            // Writing to a string does not fail.
            let _ = write!(payload, " {lane}@{at}");
        }
        payload
    }

    /// Reads a payload; none if it is the node's own.
    fn read(payload: &str, own: &str) -> Option<Self> {
        let mut words = payload.split(' ');
        if words.next() == Some(own) {
            return None;
        }
        let mut message = Self::default();
        for word in words {
            match word.split_once('@') {
                Some((lane, at)) => {
                    let place = lane.parse().ok().zip(at.parse().ok());
                    message.early.extend::<Option<(i32, i64)>>(place);
                }
                None if word == "cancel" => message.cancel = true,
                None => message.wake = true,
            }
        }
        message.wake |= !message.cancel && message.early.is_empty();
        Some(message)
    }
}

/// What other nodes are to be told with the next notification.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    next: Mutex<Message>,
    filled: Notify,
}

impl Outbox {
    /// Adds something to the next notification.
    pub(crate) fn add(&self, add: impl FnOnce(&mut Message)) {
        add(&mut self.next.lock().unwrap_or_else(PoisonError::into_inner));
        self.filled.notify_one();
    }

    async fn take(&self) -> Message {
        self.filled.notified().await;
        std::mem::take(&mut self.next.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hears of wake-ups, and tells of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ears {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Ears {
    /// Returns when it listens, so that nothing is missed from here on; without an address to listen at, polling has to do.
    pub(crate) async fn open(
        opened: &Opened,
        news: Arc<News>,
        outbox: Arc<Outbox>,
    ) -> Result<Self, StoreError> {
        // By which a node knows its own notifications.
        let name = format!("{:016x}", fastrand::u64(..));
        let runtime = &opened.connect.runtime;
        let mut tasks = vec![runtime.spawn(tell(opened.pool.clone(), name.clone(), outbox))];
        if let Some(config) = &opened.address.listen {
            let connect = Connect { config: config.clone(), ..opened.connect.clone() };
            let ear = Ear { connect, name, news };
            let heard = ear.begin().await?;
            tasks.push(runtime.spawn(ear.listen(heard)));
        }
        Ok(Self { tasks })
    }
}

struct Ear {
    connect: Connect,
    name: String,
    news: Arc<News>,
}

/// A connection that listens, and its end.
struct Heard {
    _client: Client,
    end: JoinHandle<()>,
}

impl Ear {
    /// Begins to listen.
    async fn begin(&self) -> Result<Heard, StoreError> {
        let Connect { config, tls, runtime } = self.connect.clone();
        let (name, news) = (self.name.clone(), self.news.clone());
        let connecting = runtime.clone().spawn(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let end = runtime.spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(told) = message
                        && let Some(message) = Message::read(told.payload(), &name)
                    {
                        news.hear(&message);
                    }
                }
            });
            client.batch_execute(include_str!("../sql/listen.sql")).await?;
            Ok(Heard { _client: client, end })
        });
        connecting.await.map_err(|error| StoreError::Failed(Box::new(error)))?.sorted()
    }

    /// Listens for ever. After a break anything may have been missed, so everyone wakes.
    async fn listen(self, mut heard: Heard) {
        loop {
            let _ = heard.end.await;
            let mut pause = AGAIN_FIRST;
            heard = loop {
                sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                match self.begin().await {
                    Ok(heard) => break heard,
                    Err(error) => tracing::warn!(error = explain(&error), "cannot listen; polling meanwhile"),
                }
                pause = (pause * 2).min(AGAIN_LONGEST);
            };
            self.news.all();
        }
    }
}

/// Tells other nodes, at once and then at most every [`TELL_EVERY`]. What cannot be told is found by polling.
async fn tell(pool: Arc<Pool>, name: String, outbox: Arc<Outbox>) {
    loop {
        let payload = outbox.take().await.payload(&name);
        if let Err(error) = pool.query(include_str!("../sql/notify.sql"), &[(&payload, Type::TEXT)]).await {
            tracing::debug!(error = explain(&error), "other nodes were not told");
        }
        sleep(TELL_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let early = HashMap::from([(3, 1_700_000_000_000), (12, -5)]);
        for (wake, cancel) in [(true, false), (false, true), (true, true)] {
            for early in [HashMap::new(), early.clone()] {
                let message = Message { wake, cancel, early };
                let payload = message.payload("one");
                assert_eq!(Message::read(&payload, "one"), None);
                assert_eq!(Message::read(&payload, "two"), Some(message), "{payload}");
            }
        }
    }

    #[test]
    fn a_name_alone_is_a_wake_up_as_in_older_versions() {
        let wake = Message { wake: true, ..Message::default() };
        assert_eq!(wake.payload("one"), "one");
        for payload in ["one", ""] {
            assert_eq!(Message::read(payload, "two").as_ref(), Some(&wake), "{payload:?}");
        }
    }

    #[test]
    fn the_longest_payload_is_one_that_the_server_takes() {
        let early = (0..10_000).map(|lane| (i32::MAX - lane, i64::MIN)).collect();
        let payload = Message { wake: true, cancel: true, early }.payload("0123456789abcdef");
        assert!(payload.len() < 8_000, "{}", payload.len());
    }
}
