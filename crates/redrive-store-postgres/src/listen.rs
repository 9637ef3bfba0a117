//! Wake-ups between nodes: one connection hears of them; telling is coalesced and never part of a job's commit.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::StoreError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::error::{Sorted, explain};
use crate::open::Opened;
use crate::pool::{Connect, Pool};

/// Between two notifications of one node: a notification takes a lock that all of the server's notifying commits share.
const TELL_EVERY: Duration = Duration::from_millis(10);
/// The first and the longest pause before another try to listen.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LONGEST: Duration = Duration::from_secs(5);

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
        wakes: Arc<watch::Sender<u64>>,
        told: Arc<Notify>,
    ) -> Result<Self, StoreError> {
        // By which a node knows its own notifications.
        let name = format!("{:016x}", fastrand::u64(..));
        let runtime = &opened.connect.runtime;
        let mut tasks = vec![runtime.spawn(tell(opened.pool.clone(), name.clone(), told))];
        if let Some(config) = &opened.address.listen {
            let connect = Connect { config: config.clone(), ..opened.connect.clone() };
            let ear = Ear { connect, name, wakes };
            let heard = ear.begin().await?;
            tasks.push(runtime.spawn(ear.listen(heard)));
        }
        Ok(Self { tasks })
    }
}

struct Ear {
    connect: Connect,
    name: String,
    wakes: Arc<watch::Sender<u64>>,
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
        let (name, wakes) = (self.name.clone(), self.wakes.clone());
        let connecting = runtime.clone().spawn(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let end = runtime.spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(told) = message
                        && told.payload() != name
                    {
                        wakes.send_modify(|wakes| *wakes += 1);
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
            self.wakes.send_modify(|wakes| *wakes += 1);
        }
    }
}

/// Tells other nodes, at once and then at most every [`TELL_EVERY`]. What cannot be told is found by polling.
async fn tell(pool: Arc<Pool>, name: String, told: Arc<Notify>) {
    loop {
        told.notified().await;
        if let Err(error) = pool.query(include_str!("../sql/notify.sql"), &[(&name, Type::TEXT)]).await {
            tracing::debug!(error = explain(&error), "other nodes were not told");
        }
        sleep(TELL_EVERY).await;
    }
}
