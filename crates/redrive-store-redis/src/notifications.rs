//! Notifications between nodes: jobs became claimable, or the cancel of a running job was requested.
//!
//! One connection of each node subscribes to them. Sending is coalesced and is not part of any write of a job, so a notification may
//! be lost; polling finds what it would have announced.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::PubSub;
use redis::{Client, RedisResult};
use redrive_core::StoreError;
use redrive_core::store::WakeToken;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::connection::Connections;
use crate::error::store_error;
use crate::open::Address;
use crate::schema::Layout;

/// The shortest time between two messages of one node, since each wakes every node.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(5);
/// The start of a message about a cancel request.
const CANCEL: &str = "cancel:";
/// The first and the longest pause before the next attempt to subscribe.
const RESUBSCRIBE_FIRST: Duration = Duration::from_millis(100);
const RESUBSCRIBE_LONGEST: Duration = Duration::from_secs(5);

/// The two kinds of notifications.
#[derive(Default)]
pub(crate) struct Notifications {
    /// Jobs may have become claimable.
    pub(crate) claimable: NotificationCounter,
    /// The cancel of a running job was requested.
    pub(crate) cancel_requested: NotificationCounter,
}

/// Counts notifications of one kind, from this node and from others.
#[derive(Clone, Default)]
pub(crate) struct NotificationCounter {
    count: Arc<watch::Sender<u64>>,
    /// Wakes the task that publishes to other nodes.
    publish: Arc<Notify>,
}

impl NotificationCounter {
    pub(crate) fn count(&self) -> WakeToken {
        WakeToken(*self.count.borrow())
    }

    /// Returns the count once it differs from `seen`.
    pub(crate) async fn wait(&self, seen: WakeToken) -> WakeToken {
        let mut counts = self.count.subscribe();
        match counts.wait_for(|count| *count != seen.0).await.map(|count| *count) {
            Ok(count) => WakeToken(count),
            // The channel cannot close while `self` lives.
            Err(_) => std::future::pending().await,
        }
    }

    /// Notifies this node at once, and others soon.
    pub(crate) fn notify_all_nodes(&self) {
        self.notify_this_node();
        self.publish.notify_one();
    }

    fn notify_this_node(&self) {
        self.count.send_modify(|count| *count += 1);
    }
}

/// The tasks that publish and receive notifications. They end when this is dropped.
pub(crate) struct NotificationTasks(Vec<JoinHandle<()>>);

impl Drop for NotificationTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl NotificationTasks {
    /// Returns once the listener is subscribed, so that no later notification is missed.
    pub(crate) async fn start(
        address: &Address,
        connections: &Connections,
        layout: &Layout,
        notifications: &Notifications,
        call_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let node = format!("{:016x}", fastrand::u64(..));
        let channel = format!("{}:wake", layout.prefix);
        let start_publisher = |counter: &NotificationCounter, message: String| {
            let publish = Arc::clone(&counter.publish);
            tokio::spawn(publish_notifications(connections.clone(), channel.clone(), message, publish))
        };
        let claimable = start_publisher(&notifications.claimable, node.clone());
        let cancels = start_publisher(&notifications.cancel_requested, format!("{CANCEL}{node}"));
        let listener = NotificationListener {
            servers: address.servers.clone(),
            channel,
            node,
            claimable: notifications.claimable.clone(),
            cancel_requested: notifications.cancel_requested.clone(),
            call_timeout,
        };
        let subscription = listener.subscribe().await.map_err(store_error)?;
        Ok(Self(vec![claimable, cancels, tokio::spawn(listener.listen(subscription))]))
    }
}

struct NotificationListener {
    /// A message that is published at one server of a cluster arrives at all of them.
    servers: Vec<String>,
    channel: String,
    /// The name in the messages of this node, which it ignores.
    node: String,
    claimable: NotificationCounter,
    cancel_requested: NotificationCounter,
    /// The time for a connection and its subscription. A server that accepts connections may still not answer.
    call_timeout: Duration,
}

impl NotificationListener {
    /// Subscribes at the first server that answers.
    async fn subscribe(&self) -> RedisResult<PubSub> {
        let mut last = None;
        for server in &self.servers {
            match timeout(self.call_timeout, self.subscribe_at(server)).await {
                Ok(Ok(subscription)) => return Ok(subscription),
                Ok(Err(error)) => last = Some(error),
                Err(elapsed) => last = Some(std::io::Error::from(elapsed).into()),
            }
        }
        Err(last.unwrap_or_else(|| (redis::ErrorKind::InvalidClientConfig, "no server").into()))
    }

    async fn subscribe_at(&self, server: &str) -> RedisResult<PubSub> {
        let mut subscription = Client::open(server)?.get_async_pubsub().await?;
        subscription.subscribe(&self.channel).await?;
        Ok(subscription)
    }

    /// Forwards messages for ever. After a lost connection it notifies this node, because messages may have been missed.
    async fn listen(self, mut subscription: PubSub) {
        loop {
            while let Some(message) = subscription.on_message().next().await {
                self.receive(message.get_payload_bytes());
            }
            subscription = self.resubscribe().await;
            self.claimable.notify_this_node();
            self.cancel_requested.notify_this_node();
        }
    }

    async fn resubscribe(&self) -> PubSub {
        let mut pause = RESUBSCRIBE_FIRST;
        loop {
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            match self.subscribe().await {
                Ok(subscription) => return subscription,
                Err(error) => {
                    tracing::warn!(%error, "cannot subscribe to notifications; polling until it works again");
                }
            }
            pause = (pause * 2).min(RESUBSCRIBE_LONGEST);
        }
    }

    /// A message is the name of a node, after [`CANCEL`] if it is about a cancel request.
    fn receive(&self, message: &[u8]) {
        let (counter, node) = match message.strip_prefix(CANCEL.as_bytes()) {
            Some(node) => (&self.cancel_requested, node),
            None => (&self.claimable, message),
        };
        if node != self.node.as_bytes() {
            counter.notify_this_node();
        }
    }
}

/// Publishes `message` whenever `publish` is notified, at most once per [`PUBLISH_INTERVAL`].
async fn publish_notifications(
    connections: Connections,
    channel: String,
    message: String,
    publish: Arc<Notify>,
) {
    loop {
        publish.notified().await;
        if let Err(error) = connections.send(redis::cmd("PUBLISH").arg(&channel).arg(&message)).await {
            tracing::debug!(%error, "a notification could not be published; other nodes find the job by polling");
        }
        sleep(PUBLISH_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_does_not_answer_ends_the_subscription_with_an_error() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listener = NotificationListener {
            servers: vec![format!("redis://{}", silent.local_addr().expect("an address"))],
            channel: "redrive:wake".to_owned(),
            node: "node".to_owned(),
            claimable: NotificationCounter::default(),
            cancel_requested: NotificationCounter::default(),
            call_timeout: Duration::from_millis(100),
        };
        let subscribed = timeout(Duration::from_secs(20), listener.subscribe()).await;
        assert!(subscribed.expect("the subscription ends").is_err_and(|error| error.is_timeout()));
    }
}
