//! The state that the clones of a store share, and how they run scripts on shards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;
use redis::Value;
use redrive_core::store::WakeToken;
use redrive_core::{JobId, Lease, StoreError};

use crate::connection::{Connections, IoThread};
use crate::error::store_error;
use crate::notifications::{NotificationTasks, Notifications};
use crate::open::Options;
use crate::schema::Layout;
use crate::script::{self, Arguments, Script, reply};
use crate::shards::JobLocations;

/// The state that the clones of a store share.
pub(crate) struct Inner {
    pub(crate) calls: Connections,
    pub(crate) heartbeats: Connections,
    pub(crate) layout: Layout,
    pub(crate) locations: JobLocations,
    /// The shard where the next claim starts, so that no shard starves.
    pub(crate) next_shard: AtomicUsize,
    pub(crate) options: Options,
    pub(crate) notifications: Notifications,
    pub(crate) _notification_tasks: NotificationTasks,
    pub(crate) thread: IoThread,
}

impl Inner {
    /// The first argument of a script on a shard: the time of a test clock, or an empty text.
    pub(crate) fn arguments(&self) -> Arguments {
        let now = self.options.clock.as_ref().map(|clock| clock.now().as_ms().to_string());
        Arguments(vec![now.unwrap_or_default().into_bytes()])
    }

    /// Runs a script on a shard.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        shard: usize,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        self.run_on(self.calls.clone(), script, self.layout.shard_prefix(shard), arguments).await
    }

    /// Runs a script on the records.
    pub(crate) async fn run_on_records(
        &self,
        script: &'static Script,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        self.run_on(self.calls.clone(), script, self.layout.records_prefix(), arguments).await
    }

    /// Runs a script on every shard, with the same arguments. The replies are in the order of the shards.
    pub(crate) async fn run_on_all_shards(
        &self,
        script: &'static Script,
        arguments: &Arguments,
    ) -> Result<Vec<Value>, StoreError> {
        try_join_all((0..self.layout.shards).map(|shard| self.run(script, shard, arguments.clone()))).await
    }

    /// Sends a plain command.
    pub(crate) async fn send(&self, command: redis::Cmd) -> Result<Value, StoreError> {
        let calls = self.calls.clone();
        self.thread.run(async move { calls.send(&command).await }).await?.map_err(store_error)
    }

    async fn run_on(
        &self,
        connections: Connections,
        script: &'static Script,
        prefix: String,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        let call = async move { connections.run(script, &prefix, &arguments.0).await };
        self.thread.run(call).await?.map_err(store_error)
    }

    /// The shard of each job. For a job that does not exist it is the first shard.
    pub(crate) async fn shards_of(&self, ids: &[JobId]) -> Result<Vec<usize>, StoreError> {
        if self.layout.shards == 1 {
            return Ok(vec![0; ids.len()]);
        }
        Ok(self.locate(ids).await?.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// The shard of each job, from the cache or by asking every shard; `None` for a job that does not exist.
    pub(crate) async fn locate(&self, ids: &[JobId]) -> Result<Vec<Option<usize>>, StoreError> {
        let mut found: Vec<Option<usize>> =
            ids.iter().map(|id| self.locations.get(*id).map(|location| location.shard)).collect();
        let unknown: Vec<usize> = (0..ids.len()).filter(|n| found[*n].is_none()).collect();
        if unknown.is_empty() {
            return Ok(found);
        }
        let mut arguments = self.arguments();
        arguments.ids(&unknown.iter().map(|n| ids[*n]).collect::<Vec<_>>());
        let replies = self.run_on_all_shards(&script::LOCATE, &arguments).await?;
        for (shard, reply) in replies.into_iter().enumerate() {
            for (n, _) in unknown.iter().zip(reply::flags(reply)?).filter(|(_, exists)| *exists) {
                found[*n] = Some(shard);
                self.locations.insert_shard(ids[*n], shard);
            }
        }
        Ok(found)
    }

    /// Runs a script once on each shard that has some of the jobs. The answers are in the order of the jobs.
    pub(crate) async fn run_for_jobs<T>(
        &self,
        ids: &[JobId],
        call: ShardedCall<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
        read: impl FnMut(usize, Value) -> Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.run_on_shards(&self.shards_of(ids).await?, call, read).await
    }

    /// Runs a script once on each of the `shards`, one for each item. `read` reads the reply of a shard: an answer for each of
    /// its items, in their order.
    pub(crate) async fn run_on_shards<T>(
        &self,
        shards: &[usize],
        call: ShardedCall<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
        mut read: impl FnMut(usize, Value) -> Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let connections = match call.connections {
            CallConnections::Shared => &self.calls,
            CallConnections::Heartbeats => &self.heartbeats,
        };
        let groups = group_by_shard(shards);
        let calls = groups.iter().map(|(shard, items)| {
            let mut arguments = self.arguments();
            (call.begin)(&mut arguments);
            arguments.count(items.len());
            items.iter().for_each(|n| (call.add)(&mut arguments, *n));
            self.run_on(connections.clone(), call.script, self.layout.shard_prefix(*shard), arguments)
        });
        let mut answers: Vec<Option<T>> = shards.iter().map(|_| None).collect();
        for ((shard, items), value) in groups.iter().zip(try_join_all(calls).await?) {
            for (n, answer) in items.iter().zip(read(*shard, value)?) {
                answers[*n] = Some(answer);
            }
        }
        answers.into_iter().map(|answer| answer.ok_or_else(|| reply::unexpected("every answer"))).collect()
    }

    /// The same for a script that takes ids only and answers with a word for each.
    pub(crate) async fn run_for_ids<T>(
        &self,
        script: &'static Script,
        ids: &[JobId],
        parse: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let read = |_, value| reply::texts(value)?.iter().map(|word| parse(word)).collect();
        self.run_for_jobs(ids, ShardedCall::new(script, |arguments, n| arguments.id(ids[n])), read).await
    }

    /// The number of the claim under which this store holds a lease; empty if it does not know.
    pub(crate) fn claim_number(&self, lease: Lease) -> String {
        let claim = self.locations.get(lease.id).and_then(|location| location.claim);
        claim
            .filter(|(epoch, _)| *epoch == lease.epoch)
            .map(|(_, claim)| claim.to_string())
            .unwrap_or_default()
    }

    /// All shards, starting with another one each time.
    pub(crate) fn rotated_shards(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, shards) = (self.next_shard.fetch_add(1, Ordering::Relaxed), self.layout.shards);
        (0..shards).map(move |n| first.wrapping_add(n) % shards)
    }

    /// How often jobs may have become claimable.
    pub(crate) fn wakes(&self) -> WakeToken {
        self.notifications.claimable.count()
    }

    /// Waits until jobs may have become claimable after `seen`.
    pub(crate) async fn wait(&self, seen: WakeToken) {
        self.notifications.claimable.wait(seen).await;
    }

    /// Waits until the count of cancel requests differs from `seen`, and returns it.
    pub(crate) async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.notifications.cancel_requested.wait(seen).await
    }

    /// Wakes workers if jobs may have become claimable: those of this node at once, others soon.
    pub(crate) fn wake_if(&self, claimable: bool) {
        if claimable {
            self.notifications.claimable.notify_all_nodes();
        }
    }

    /// Makes workers send a heartbeat if the cancel of a running job was requested: those of this node at once, others soon.
    pub(crate) fn notify_cancel_if(&self, requested: bool) {
        if requested {
            self.notifications.cancel_requested.notify_all_nodes();
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// A script for many items, which runs once per shard.
pub(crate) struct ShardedCall<B, A> {
    pub(crate) script: &'static Script,
    pub(crate) connections: CallConnections,
    /// Adds the arguments before the items.
    pub(crate) begin: B,
    /// Adds the arguments of one item, given its index.
    pub(crate) add: A,
}

impl<A: Fn(&mut Arguments, usize)> ShardedCall<fn(&mut Arguments), A> {
    /// A call with no arguments other than the items.
    pub(crate) fn new(script: &'static Script, add: A) -> Self {
        Self { script, connections: CallConnections::Shared, begin: |_| {}, add }
    }
}

/// Which connections a script uses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallConnections {
    /// Those that all calls share.
    Shared,
    /// The connection for heartbeats, which no other call delays.
    Heartbeats,
}

/// The indexes of the items of each shard, in their order.
fn group_by_shard(shards: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (n, shard) in shards.iter().enumerate() {
        groups.entry(*shard).or_default().push(n);
    }
    groups.into_iter().collect()
}
