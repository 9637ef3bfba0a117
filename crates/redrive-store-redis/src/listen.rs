//! Wake-ups and requests for the end of running jobs, between nodes: one connection hears of them; telling is coalesced and never
//! part of a job's write.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::PubSub;
use redis::{Client, RedisResult};
use redrive_core::StoreError;
use redrive_core::store::Wake;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::address::Address;
use crate::error::Sorted;
use crate::homes::Layout;
use crate::link::Link;

/// Between two messages of one node: it wakes everyone there is.
const TELL_EVERY: Duration = Duration::from_millis(5);
/// Begins a message that the end of a running job was requested.
const CANCEL: &str = "cancel:";
/// The first and the longest pause before another try to listen.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LONGEST: Duration = Duration::from_secs(5);

/// What nodes tell each other.
#[derive(Default)]
pub(crate) struct Notices {
    /// Something may have become claimable.
    pub(crate) wakes: Notice,
    /// The end of a running job was requested.
    pub(crate) cancels: Notice,
}

/// Counts how often something happened, here or on another node.
#[derive(Clone, Default)]
pub(crate) struct Notice {
    count: Arc<watch::Sender<u64>>,
    /// Asks for other nodes to be told.
    told: Arc<Notify>,
}

impl Notice {
    pub(crate) fn count(&self) -> Wake {
        Wake(*self.count.borrow())
    }

    /// Returns the count once it differs from `seen`.
    pub(crate) async fn wait(&self, seen: Wake) -> Wake {
        let mut counts = self.count.subscribe();
        match counts.wait_for(|count| *count != seen.0).await.map(|count| *count) {
            Ok(count) => Wake(count),
            // It cannot end while `self` lives.
            Err(_) => std::future::pending().await,
        }
    }

    /// Tells this node at once, and others soon.
    pub(crate) fn tell_everyone(&self) {
        self.heard();
        self.told.notify_one();
    }

    fn heard(&self) {
        self.count.send_modify(|count| *count += 1);
    }
}

/// Hears of wake-ups and requests, and tells of them, until it is dropped.
pub(crate) struct Ears {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Ears {
    /// Returns when it listens, so that nothing is missed from here on.
    pub(crate) async fn open(
        address: &Address,
        link: &Link,
        layout: &Layout,
        notices: &Notices,
    ) -> Result<Self, StoreError> {
        // By which a node knows its own messages.
        let name = format!("{:016x}", fastrand::u64(..));
        let channel = format!("{}:wake", layout.prefix);
        let tell_of =
            |notice: &Notice, text| tell(link.clone(), channel.clone(), text, Arc::clone(&notice.told));
        let tell_wakes = tokio::spawn(tell_of(&notices.wakes, name.clone()));
        let tell_cancels = tokio::spawn(tell_of(&notices.cancels, format!("{CANCEL}{name}")));
        let (wakes, cancels) = (notices.wakes.clone(), notices.cancels.clone());
        let ear = Ear { servers: address.servers.clone(), channel, name, wakes, cancels };
        let heard = ear.begin().await.sorted()?;
        let listen = tokio::spawn(ear.listen(heard));
        Ok(Self { tasks: vec![tell_wakes, tell_cancels, listen] })
    }
}

struct Ear {
    /// Any of them hears what is told to another of the same cluster.
    servers: Vec<String>,
    channel: String,
    name: String,
    wakes: Notice,
    cancels: Notice,
}

impl Ear {
    async fn begin(&self) -> RedisResult<PubSub> {
        let mut last = None;
        for server in &self.servers {
            match self.subscribe(server).await {
                Ok(heard) => return Ok(heard),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (redis::ErrorKind::InvalidClientConfig, "no server").into()))
    }

    async fn subscribe(&self, server: &str) -> RedisResult<PubSub> {
        let mut heard = Client::open(server)?.get_async_pubsub().await?;
        heard.subscribe(&self.channel).await?;
        Ok(heard)
    }

    /// Listens for ever. After a break anything may have been missed, so everyone wakes.
    async fn listen(self, mut heard: PubSub) {
        loop {
            while let Some(message) = heard.on_message().next().await {
                self.hear(message.get_payload_bytes());
            }
            let mut pause = AGAIN_FIRST;
            heard = loop {
                sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                match self.begin().await {
                    Ok(heard) => break heard,
                    Err(error) => tracing::warn!(%error, "cannot listen; polling meanwhile"),
                }
                pause = (pause * 2).min(AGAIN_LONGEST);
            };
            self.wakes.heard();
            self.cancels.heard();
        }
    }

    /// A message is a node's name, after [`CANCEL`] if it is a request.
    fn hear(&self, message: &[u8]) {
        let (notice, name) = match message.strip_prefix(CANCEL.as_bytes()) {
            Some(name) => (&self.cancels, name),
            None => (&self.wakes, message),
        };
        if name != self.name.as_bytes() {
            notice.heard();
        }
    }
}

/// Tells other nodes, at once and then at most every [`TELL_EVERY`]. What cannot be told is found by polling.
async fn tell(link: Link, channel: String, text: String, told: Arc<Notify>) {
    loop {
        told.notified().await;
        if let Err(error) = link.send(redis::cmd("PUBLISH").arg(&channel).arg(&text)).await {
            tracing::debug!(%error, "other nodes were not told");
        }
        sleep(TELL_EVERY).await;
    }
}
