//! Wake-ups between nodes. One connection listens for them. Notifications are merged, and never part of the commit of a job.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::error::{Error, Result};
use crate::lifecycle::scan_start::ClaimPositions;
use crate::open::ServerAccess;
use crate::pool::{Connector, Pool, within};
use crate::sql;
use redrive_sql::Statement;

static LISTEN: Statement = sql::WAKE.statement("listen");
static NOTIFY: Statement = sql::WAKE.statement("notify");

/// The time between two notifications of a node. A notification takes a lock that all notifying commits of the server share.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(10);
/// How long the notification about new jobs waits if it wakes a worker of this node. That worker claims the jobs, and other nodes that try it
/// at the same time would only make it slower.
const LOCAL_CLAIM_TIME: Duration = Duration::from_millis(1);
/// The first and the longest pause before the node tries to listen again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// The maximum number of lanes in one notification, because the server accepts at most 8,000 bytes. Claims from other lanes find
/// early jobs in their next full scan.
const LANES_MAX: usize = 200;

/// Wake-ups, from this node and others, and the positions where claims start.
#[derive(Debug)]
pub(crate) struct WakeState {
    /// Counts how often jobs may have become claimable.
    pub(crate) wakes: watch::Sender<u64>,
    /// Counts the requests to cancel a running job.
    pub(crate) cancels: watch::Sender<u64>,
    claim_positions: Mutex<ClaimPositions>,
}

impl Default for WakeState {
    fn default() -> Self {
        Self {
            wakes: watch::Sender::new(0),
            cancels: watch::Sender::new(0),
            claim_positions: Mutex::default(),
        }
    }
}

impl WakeState {
    /// Wakes the workers of this node. Returns whether one was waiting.
    pub(crate) fn wake(&self) -> bool {
        let is_awaited = self.wakes.receiver_count() > 0;
        self.wakes.send_modify(|wakes| *wakes += 1);
        is_awaited
    }

    pub(crate) fn cancel(&self) {
        self.cancels.send_modify(|cancels| *cancels += 1);
    }

    /// The positions where claims start.
    pub(crate) fn claim_positions(&self) -> MutexGuard<'_, ClaimPositions> {
        self.claim_positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everyone, because any notification may have been missed.
    fn wake_all(&self) {
        self.claim_positions().forget();
        self.wake();
        self.cancel();
    }

    /// Applies a message of another node.
    fn apply(&self, message: &NodeMessage) {
        if !message.early.is_empty() {
            self.claim_positions().lower_lanes(&message.early);
        }
        if message.wake {
            self.wake();
        }
        if message.cancel {
            self.cancel();
        }
    }
}

/// A message to the other nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeMessage {
    /// Jobs may have become claimable.
    pub(crate) wake: bool,
    /// A running job was cancelled.
    pub(crate) cancel: bool,
    /// Lanes in which jobs became due before the position where claims may start, with their due times.
    early: HashMap<i32, i64>,
}

impl NodeMessage {
    pub(crate) fn announce_early(&mut self, early: &HashMap<i32, i64>) {
        for (lane, at) in early {
            let first = self.early.entry(*lane).or_insert(*at);
            *first = (*at).min(*first);
        }
    }

    /// The payload: the name of the sender, and the parts of the message. A name alone is a wake-up, as in older versions.
    fn payload(&self, sender: &str) -> String {
        let mut payload = sender.to_owned();
        if self.wake && (self.cancel || !self.early.is_empty()) {
            payload += " wake";
        }
        if self.cancel {
            payload += " cancel";
        }
        for (lane, at) in self.early.iter().take(LANES_MAX) {
            // Writing to a string cannot fail.
            let _ = write!(payload, " {lane}@{at}");
        }
        payload
    }

    /// Parses a payload. None if this node sent it.
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

/// Collects the message of the next notification.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    next: Mutex<OutgoingMessage>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct OutgoingMessage {
    message: NodeMessage,
    /// Whether to send it at once.
    is_urgent: bool,
}

impl Outbox {
    /// Adds to the message, and sends it at once.
    pub(crate) fn add(&self, add: impl FnOnce(&mut NodeMessage)) {
        self.add_to_next(add, true);
    }

    /// Adds to the message that jobs may have become claimable. Sends it at once unless a worker of this node claims them.
    pub(crate) fn add_wake(&self, local_worker_claims: bool) {
        self.add_to_next(|message| message.wake = true, !local_worker_claims);
    }

    fn add_to_next(&self, add: impl FnOnce(&mut NodeMessage), is_urgent: bool) {
        let mut next = self.next();
        add(&mut next.message);
        next.is_urgent |= is_urgent;
        drop(next);
        self.filled.notify_one();
    }

    async fn take(&self) -> NodeMessage {
        loop {
            self.filled.notified().await;
            if !self.next().is_urgent {
                sleep(LOCAL_CLAIM_TIME).await;
            }
            let OutgoingMessage { message, .. } = std::mem::take(&mut *self.next());
            // What was added during the sleep is sent already.
            if message != NodeMessage::default() {
                return message;
            }
        }
    }

    fn next(&self) -> MutexGuard<'_, OutgoingMessage> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tasks that listen for notifications and send them. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct NotificationTasks {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for NotificationTasks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl NotificationTasks {
    /// Starts the tasks. Returns when the node listens, so that it misses nothing from then on. Without an address to listen at, the
    /// node polls.
    pub(crate) async fn start(
        opened: &ServerAccess,
        wake_state: Arc<WakeState>,
        outbox: Arc<Outbox>,
    ) -> Result<Self> {
        // A node recognises its own notifications by this name.
        let name = format!("{:016x}", fastrand::u64(..));
        let runtime = &opened.connector.runtime;
        let mut tasks = vec![runtime.spawn(send(opened.pool.clone(), name.clone(), outbox))];
        if let Some(config) = &opened.address.listen {
            let connector = Connector { config: config.clone(), ..opened.connector.clone() };
            let call_timeout = opened.pool.call_timeout;
            let listener = NotificationListener { connector, name, wake_state, call_timeout };
            let connection = listener.connect().await?;
            tasks.push(runtime.spawn(listener.run(connection)));
        }
        Ok(Self { tasks })
    }
}

/// Listens for the messages of other nodes.
struct NotificationListener {
    connector: Connector,
    name: String,
    wake_state: Arc<WakeState>,
    /// The time for a connection to listen.
    call_timeout: Duration,
}

/// A connection that listens. The task `end` ends when the connection breaks.
struct ListenConnection {
    _client: Client,
    end: JoinHandle<()>,
}

impl NotificationListener {
    /// Makes a connection that listens.
    async fn connect(&self) -> Result<ListenConnection> {
        let Connector { config, tls, runtime } = self.connector.clone();
        let (name, wake_state) = (self.name.clone(), self.wake_state.clone());
        let listening = async move {
            let (client, mut connection) = config.connect(tls).await?;
            let end = runtime.spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(notification) = message
                        && let Some(message) = NodeMessage::read(notification.payload(), &name)
                    {
                        wake_state.apply(&message);
                    }
                }
            });
            client.batch_execute(&LISTEN).await?;
            Ok(ListenConnection { _client: client, end })
        };
        let limit = self.call_timeout;
        let connecting = self.connector.runtime.spawn(async move { within(limit, listening).await });
        connecting.await.map_err(Error::failed)?
    }

    /// Listens until the store is dropped. After a break it wakes everyone, because any notification may have been missed.
    async fn run(self, mut connection: ListenConnection) {
        loop {
            let _ = connection.end.await;
            let mut pause = RETRY_FIRST;
            connection = loop {
                sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                match self.connect().await {
                    Ok(connection) => break connection,
                    Err(error) => tracing::warn!(
                        error = error.explain(),
                        "cannot listen for wake-ups; this node polls until it can"
                    ),
                }
                pause = (pause * 2).min(RETRY_LONGEST);
            };
            self.wake_state.wake_all();
        }
    }
}

/// Sends notifications: the first at once, then at most one per [`NOTIFY_INTERVAL`]. If one is lost, other nodes find the jobs by
/// polling.
async fn send(pool: Arc<Pool>, name: String, outbox: Arc<Outbox>) {
    loop {
        let payload = outbox.take().await.payload(&name);
        if let Err(error) = pool.query(&NOTIFY, &[(&payload, Type::TEXT)]).await {
            tracing::debug!(
                error = error.explain(),
                "could not notify other nodes; they find the jobs by polling"
            );
        }
        sleep(NOTIFY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Options;

    #[tokio::test]
    async fn a_server_that_does_not_answer_ends_the_wait_for_notifications_with_an_error() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address =
            format!("postgres://me@{}/jobs?sslmode=disable", silent.local_addr().expect("an address"));
        let options = Options::default().with_call_timeout(Duration::from_millis(100));
        let opened = ServerAccess::new(&address, &options).expect("a valid address");
        let starting = NotificationTasks::start(&opened, Arc::default(), Arc::default());
        let started = tokio::time::timeout(Duration::from_secs(20), starting).await.expect("the start ends");
        let error = started.expect_err("nobody answers").explain();
        assert!(error.contains("did not answer within 100ms"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_notification_about_jobs_waits_while_a_local_worker_claims_them() {
        let wait_of = async |add: fn(&Outbox)| {
            let (outbox, started) = (Outbox::default(), tokio::time::Instant::now());
            add(&outbox);
            let message = outbox.take().await;
            (message, started.elapsed())
        };
        let wake = || NodeMessage { wake: true, ..NodeMessage::default() };
        assert_eq!(wait_of(|outbox| outbox.add_wake(false)).await, (wake(), Duration::ZERO));
        assert_eq!(wait_of(|outbox| outbox.add_wake(true)).await, (wake(), LOCAL_CLAIM_TIME));
        let both = |outbox: &Outbox| {
            outbox.add_wake(true);
            outbox.add(|message| message.cancel = true);
        };
        assert_eq!(wait_of(both).await, (NodeMessage { cancel: true, ..wake() }, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_twice() {
        let outbox = Outbox::default();
        outbox.add_wake(true);
        // The second part runs while the first one sleeps.
        tokio::join!(biased; outbox.take(), async { outbox.add_wake(true) });
        let next = tokio::time::timeout(Duration::from_secs(1), outbox.take()).await;
        assert!(next.is_err(), "{next:?}");
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let early = HashMap::from([(3, 1_700_000_000_000), (12, -5)]);
        for (wake, cancel) in [(true, false), (false, true), (true, true)] {
            for early in [HashMap::new(), early.clone()] {
                let message = NodeMessage { wake, cancel, early };
                let payload = message.payload("one");
                assert_eq!(NodeMessage::read(&payload, "one"), None);
                assert_eq!(NodeMessage::read(&payload, "two"), Some(message), "{payload}");
            }
        }
    }

    #[test]
    fn a_name_alone_is_a_wake_up_as_in_older_versions() {
        let wake = NodeMessage { wake: true, ..NodeMessage::default() };
        assert_eq!(wake.payload("one"), "one");
        for payload in ["one", ""] {
            assert_eq!(NodeMessage::read(payload, "two").as_ref(), Some(&wake), "{payload:?}");
        }
    }

    #[test]
    fn the_longest_payload_fits_into_a_notification() {
        let early = (0..10_000).map(|lane| (i32::MAX - lane, i64::MIN)).collect();
        let payload = NodeMessage { wake: true, cancel: true, early }.payload("0123456789abcdef");
        assert!(payload.len() < 8_000, "{}", payload.len());
    }
}
