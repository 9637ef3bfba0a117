//! Wake-ups between nodes: one connection hears of them; telling is coalesced and never part of a job's write.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::PubSub;
use redis::{Client, RedisResult};
use redrive_core::StoreError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::address::Address;
use crate::error::Sorted;
use crate::homes::Layout;
use crate::link::Link;

/// Between two messages of one node: it wakes everyone there is.
const TELL_EVERY: Duration = Duration::from_millis(5);
/// The first and the longest pause before another try to listen.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LONGEST: Duration = Duration::from_secs(5);

/// Hears of wake-ups, and tells of them, until it is dropped.
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
        wakes: Arc<watch::Sender<u64>>,
        told: Arc<Notify>,
    ) -> Result<Self, StoreError> {
        // By which a node knows its own messages.
        let name = format!("{:016x}", fastrand::u64(..));
        let channel = format!("{}:wake", layout.prefix);
        let tell = tokio::spawn(tell(link.clone(), channel.clone(), name.clone(), told));
        let ear = Ear { servers: address.servers.clone(), channel, name, wakes };
        let heard = ear.begin().await.sorted()?;
        let listen = tokio::spawn(ear.listen(heard));
        Ok(Self { tasks: vec![tell, listen] })
    }
}

struct Ear {
    /// Any of them hears what is told to another of the same cluster.
    servers: Vec<String>,
    channel: String,
    name: String,
    wakes: Arc<watch::Sender<u64>>,
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
                if message.get_payload_bytes() != self.name.as_bytes() {
                    self.wakes.send_modify(|wakes| *wakes += 1);
                }
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
            self.wakes.send_modify(|wakes| *wakes += 1);
        }
    }
}

/// Tells other nodes, at once and then at most every [`TELL_EVERY`]. What cannot be told is found by polling.
async fn tell(link: Link, channel: String, name: String, told: Arc<Notify>) {
    loop {
        told.notified().await;
        if let Err(error) = link.send(redis::cmd("PUBLISH").arg(&channel).arg(&name)).await {
            tracing::debug!(%error, "other nodes were not told");
        }
        sleep(TELL_EVERY).await;
    }
}
