//! Opening a store: its thread, its connections, its layout, and what its clones share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use redrive_core::store::Wake;
use redrive_core::{Clock, JobId, Lease, StoreError};
use tokio::runtime::Runtime;

use crate::RedisStore;
use crate::address::{Address, PARTITIONS, SpreadBy};
use crate::answer;
use crate::arguments::Arguments;
use crate::durability;
use crate::error::Sorted;
use crate::homes::{Homes, Layout};
use crate::link::Link;
use crate::listen::{Ears, Notices};
use crate::script::{self, Source};

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tells the time instead of the server, for tests; the server's clock by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a call may take before it counts as failed; 15 s by default.
    pub patience: Duration,
    /// Attempts kept of each job; the oldest go first. 1,000 by default.
    pub attempts_kept: usize,
    /// Whether a place without a store becomes one, which it does by default; it is refused otherwise.
    pub create: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: None, patience: Duration::from_secs(15), attempts_kept: 1_000, create: true }
    }
}

impl Options {
    /// Tells the time by `clock`.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Gives a call so much time.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl RedisStore {
    /// Connects to the server or the cluster at `address`. One whose settings would lose acknowledged jobs is refused, and
    /// so is a layout that differs from the one that is there.
    pub async fn open(address: &str, options: Options) -> Result<Self, StoreError> {
        let address: Address = address.parse()?;
        let thread = Thread::start()?;
        let opening = thread.run(open(address, options.clone()));
        let Opened { link, heartbeats, layout, notices, ears } = opening.await??;
        let inner = Inner {
            link,
            heartbeats,
            layout,
            homes: Homes::default(),
            first: AtomicUsize::new(fastrand::usize(..)),
            options,
            notices,
            _ears: ears,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl RedisStore {
    /// The layout of the keys that this program writes.
    pub fn layout(&self) -> u32 {
        LAYOUT
    }
}

struct Opened {
    link: Link,
    heartbeats: Link,
    layout: Layout,
    notices: Notices,
    ears: Ears,
}

async fn open(address: Address, options: Options) -> Result<Opened, StoreError> {
    let link = Link::open(&address, options.patience).await?;
    durability::check(&link, address.durability).await?;
    // Its own connection: leases are renewed however busy the others are.
    let one = Address { connections: 1, ..address.clone() };
    let heartbeats = Link::open(&one, options.patience).await?;
    let layout = layout(&link, &address, options.create).await?;
    let notices = Notices::default();
    let ears = Ears::open(&address, &link, &layout, &notices).await?;
    Ok(Opened { link, heartbeats, layout, notices, ears })
}

/// The layout of the keys; another needs another program.
const LAYOUT: u32 = 1;

/// Agrees with everyone else on how jobs are spread: the first to open a store says how.
async fn layout(link: &Link, address: &Address, create: bool) -> Result<Layout, StoreError> {
    let wanted = Layout {
        prefix: address.prefix.clone(),
        partitions: address.partitions.unwrap_or(PARTITIONS),
        spread_by: address.spread_by.unwrap_or(SpreadBy::Tenant),
    };
    let name = format!("{}layout", wanted.records_tag());
    if !create && link.send(redis::cmd("EXISTS").arg(&name)).await.sorted()? == Value::Int(0) {
        return Err(StoreError::Refused(format!("there is no store under the prefix {:?}", wanted.prefix)));
    }
    let mut fields = Vec::new();
    let asked = [
        ("layout", LAYOUT.to_string()),
        ("partitions", wanted.partitions.to_string()),
        ("spread_by", wanted.spread_by.name().to_owned()),
    ];
    for (field, value) in asked {
        link.send(redis::cmd("HSETNX").arg(&name).arg(field).arg(value)).await.sorted()?;
        fields.push(answer::text(link.send(redis::cmd("HGET").arg(&name).arg(field)).await.sorted()?)?);
    }
    let there = Layout {
        prefix: wanted.prefix.clone(),
        partitions: fields[1].parse().map_err(|_| answer::odd("a number of partitions"))?,
        spread_by: fields[2].parse()?,
    };
    if fields[0] != LAYOUT.to_string() {
        let problem = format!(
            "the keys under {:?} have layout {}, this program knows {LAYOUT}: use the program that made them, or another prefix",
            wanted.prefix, fields[0]
        );
        return Err(StoreError::Refused(problem));
    }
    let differs = address.partitions.is_some_and(|n| n != there.partitions)
        || address.spread_by.is_some_and(|by| by != there.spread_by);
    if differs {
        let problem = format!(
            "the jobs are spread over {} partitions by {}: leave partitions and spread_by out of the address, or use `redrive move` to another prefix",
            there.partitions,
            there.spread_by.name()
        );
        return Err(StoreError::Refused(problem));
    }
    Ok(there)
}

/// The thread that drives a store's connections. It is let go rather than waited for: a runtime must not be waited for
/// from inside another, and that is where stores are dropped.
pub(crate) struct Thread(Option<Runtime>);

impl Thread {
    pub(crate) fn start() -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redrive-redis")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Self(Some(runtime)))
    }

    /// Runs something on the thread to its end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(runtime) = &self.0 else {
            return Err(StoreError::Refused("the store is closed".to_owned()));
        };
        runtime.spawn(work).await.map_err(|error| StoreError::Failed(Box::new(error)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the clones of a store share.
pub(crate) struct Inner {
    link: Link,
    heartbeats: Link,
    pub(crate) layout: Layout,
    pub(crate) homes: Homes,
    /// Where the next claim begins, so that no partition starves.
    first: AtomicUsize,
    pub(crate) options: Options,
    notices: Notices,
    _ears: Ears,
    thread: Thread,
}

impl Inner {
    /// The beginning of a script's arguments: a clock of the store's own, or none.
    pub(crate) fn arguments(&self) -> Arguments {
        let now = self.options.clock.as_ref().map(|clock| clock.now().as_ms().to_string());
        Arguments(vec![now.unwrap_or_default().into_bytes()])
    }

    /// Runs a script on a partition.
    pub(crate) async fn run(
        &self,
        script: &'static Source,
        partition: usize,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        self.run_on(self.link.clone(), script, self.layout.tag(partition), arguments).await
    }

    /// Runs a script on the records.
    pub(crate) async fn run_on_records(
        &self,
        script: &'static Source,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        self.run_on(self.link.clone(), script, self.layout.records_tag(), arguments).await
    }

    /// Runs a script on every partition, with the same arguments.
    pub(crate) async fn run_on_all(
        &self,
        script: &'static Source,
        arguments: &Arguments,
    ) -> Result<Vec<Value>, StoreError> {
        let calls =
            (0..self.layout.partitions).map(|partition| self.run(script, partition, arguments.clone()));
        try_join_all(calls).await
    }

    /// Sends a command of the server's.
    pub(crate) async fn send(&self, command: redis::Cmd) -> Result<Value, StoreError> {
        let link = self.link.clone();
        self.thread.run(async move { link.send(&command).await }).await?.sorted()
    }

    async fn run_on(
        &self,
        link: Link,
        script: &'static Source,
        tag: String,
        arguments: Arguments,
    ) -> Result<Value, StoreError> {
        self.thread.run(async move { link.run(script, &tag, &arguments.0).await }).await?.sorted()
    }

    /// In which partition each job is; one that is nowhere is looked for in the first.
    pub(crate) async fn partitions_of(&self, ids: &[JobId]) -> Result<Vec<usize>, StoreError> {
        if self.layout.partitions == 1 {
            return Ok(vec![0; ids.len()]);
        }
        Ok(self.get_homes(ids).await?.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// In which partition each job is, from memory or by asking everywhere.
    pub(crate) async fn get_homes(&self, ids: &[JobId]) -> Result<Vec<Option<usize>>, StoreError> {
        let mut found: Vec<Option<usize>> =
            ids.iter().map(|id| self.homes.find(*id).map(|home| home.partition)).collect();
        let unknown: Vec<usize> = (0..ids.len()).filter(|n| found[*n].is_none()).collect();
        if unknown.is_empty() {
            return Ok(found);
        }
        let mut arguments = self.arguments();
        arguments.count(unknown.len());
        unknown.iter().for_each(|n| arguments.id(ids[*n]));
        for (partition, answer) in self.run_on_all(&script::LOCATE, &arguments).await?.into_iter().enumerate()
        {
            for (n, here) in unknown.iter().zip(answer::items(answer)?) {
                if here == Value::Int(1) {
                    found[*n] = Some(partition);
                    self.homes.learn_partition(ids[*n], partition);
                }
            }
        }
        Ok(found)
    }

    /// Runs a script once on each partition that has some of the jobs, and puts the answers in the order of the jobs.
    pub(crate) async fn run_by_home<T>(
        &self,
        ids: &[JobId],
        spread: Spread<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
        read: impl FnMut(usize, Value) -> Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.run_in(&self.partitions_of(ids).await?, spread, read).await
    }

    /// Runs a script once on each partition that some of the items go to. `read` reads what it says there: an answer for
    /// each, in their order.
    pub(crate) async fn run_in<T>(
        &self,
        partitions: &[usize],
        spread: Spread<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
        mut read: impl FnMut(usize, Value) -> Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let link = match spread.way {
            Way::Shared => &self.link,
            Way::Apart => &self.heartbeats,
        };
        let groups = by_partition(partitions);
        let calls = groups.iter().map(|(partition, members)| {
            let mut arguments = self.arguments();
            (spread.begin)(&mut arguments);
            arguments.count(members.len());
            members.iter().for_each(|n| (spread.add)(&mut arguments, *n));
            self.run_on(link.clone(), spread.script, self.layout.tag(*partition), arguments)
        });
        let mut answers: Vec<Option<T>> = partitions.iter().map(|_| None).collect();
        for ((partition, members), value) in groups.iter().zip(try_join_all(calls).await?) {
            for (n, answer) in members.iter().zip(read(*partition, value)?) {
                answers[*n] = Some(answer);
            }
        }
        answers.into_iter().map(|answer| answer.ok_or_else(|| answer::odd("every answer"))).collect()
    }

    /// The same for a script that takes ids alone and answers with a word for each.
    pub(crate) async fn ask<T>(
        &self,
        script: &'static Source,
        ids: &[JobId],
        word: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let read = |_, value| answer::texts(value)?.iter().map(|text| word(text)).collect();
        self.run_by_home(ids, Spread::of(script, |arguments, n| arguments.id(ids[n])), read).await
    }

    /// The number of the claim under which this store holds a lease, if it does.
    pub(crate) fn claim_of(&self, lease: Lease) -> String {
        let claim = self.homes.find(lease.id).and_then(|home| home.claim);
        claim
            .filter(|(epoch, _)| *epoch == lease.epoch)
            .map(|(_, claim)| claim.to_string())
            .unwrap_or_default()
    }

    /// Partitions in the order in which a claim goes through them.
    pub(crate) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, partitions) = (self.first.fetch_add(1, Ordering::Relaxed), self.layout.partitions);
        (0..partitions).map(move |n| (first.wrapping_add(n)) % partitions)
    }

    /// How far wake-ups have come.
    pub(crate) fn wakes(&self) -> Wake {
        self.notices.wakes.count()
    }

    /// Returns once wake-ups have gone beyond `seen`.
    pub(crate) async fn wait(&self, seen: Wake) {
        self.notices.wakes.wait(seen).await;
    }

    /// Returns how often the end of a running job was requested, once that differs from `seen`.
    pub(crate) async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.notices.cancels.wait(seen).await
    }

    /// Wakes workers here at once, and those of other nodes soon, if something may have become claimable.
    pub(crate) fn wake_if(&self, yes: bool) {
        if yes {
            self.notices.wakes.tell_everyone();
        }
    }

    /// Has workers renew their leases, here at once and on other nodes soon, if the end of a running job was requested.
    pub(crate) fn cancel_requested_if(&self, yes: bool) {
        if yes {
            self.notices.cancels.tell_everyone();
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// A script that many items go to, partition by partition.
pub(crate) struct Spread<B, A> {
    pub(crate) script: &'static Source,
    pub(crate) way: Way,
    /// Adds what the script reads first.
    pub(crate) begin: B,
    /// Adds what it reads for one of the items.
    pub(crate) add: A,
}

impl<A: Fn(&mut Arguments, usize)> Spread<fn(&mut Arguments), A> {
    /// One that reads nothing but the items.
    pub(crate) fn of(script: &'static Source, add: A) -> Self {
        Self { script, way: Way::Shared, begin: |_| {}, add }
    }
}

/// By which connections a script goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// By those that all calls share.
    Shared,
    /// By one of its own, however busy the others are.
    Apart,
}

/// Which items go to each partition, in their order.
fn by_partition(partitions: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (n, partition) in partitions.iter().enumerate() {
        groups.entry(*partition).or_default().push(n);
    }
    groups.into_iter().collect()
}
