//! Applies verdicts under their leases, each with its log entry and what follows it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redrive_core::store::{Enqueued, Settled, Settlement};
use redrive_core::{Lease, NewJob, Order, Start, State, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::enqueue::{self, Limit, Query};
use crate::error::{Sorted, nothing};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;
use crate::settle_columns::{FollowUps, Given, key};
use crate::trees::{self, Tree};
use crate::turns::Left;

/// Also says whether there is room for others afterwards, as far as this node knows.
pub(crate) async fn settle(
    inner: &Inner,
    settlements: &[Settlement],
) -> Result<(Vec<Settled>, bool), StoreError> {
    if settlements.iter().all(Settlement::is_plain) {
        let rows = plain(inner, settlements).await?;
        let settled = Outcome::read(inner, settlements, &rows, &HashSet::new(), Tree::new(None))?;
        return Ok(settled.finish(inner).await);
    }
    let call = Call::new(inner, settlements).await?;
    let (mut results, mut made_room) = (Vec::with_capacity(settlements.len()), false);
    while results.len() < settlements.len() {
        let settled = call.settle_next(&settlements[results.len()..]).await?;
        let (next, room) = settled.finish(inner).await;
        results.extend(next);
        made_room |= room;
    }
    Ok((results, made_room))
}

/// Settles in a transaction that someone else commits, and who then settles the tree down.
pub(crate) async fn settle_in(
    inner: &Inner,
    client: &Client,
    settlements: &[Settlement],
) -> Result<Outcome, StoreError> {
    let call = Call { within: Some(client), ..Call::new(inner, settlements).await? };
    let mut all = Outcome { results: Vec::new(), tree: Tree::new(inner.manual_now()), made_room: false };
    while all.results.len() < settlements.len() {
        let mut settled = call.settle_next(&settlements[all.results.len()..]).await?;
        settled.tree.end_below(client).await?;
        all.results.extend(settled.results);
        all.made_room |= settled.made_room;
        all.tree.requested |= settled.tree.requested;
        all.tree.left.extend(settled.tree.left);
    }
    Ok(all)
}

/// What settlements came to, and what is left to do about it once they are committed.
pub(crate) struct Outcome {
    pub(crate) results: Vec<Settled>,
    /// The jobs that have ended early, and the places in partitions that all of them have left.
    pub(crate) tree: Tree,
    /// Whether there is room for others afterwards, as far as this node knows.
    pub(crate) made_room: bool,
}

impl Outcome {
    fn read(
        inner: &Inner,
        settlements: &[Settlement],
        rows: &[Row],
        added: &HashSet<Uuid>,
        mut tree: Tree,
    ) -> Result<Self, StoreError> {
        let mut applied = applied(rows)?;
        let made_room = frees_slots(inner, &applied);
        let (mut results, mut left) = (Vec::with_capacity(settlements.len()), Vec::new());
        for settlement in settlements {
            // The first of several settlements under one lease is the one that was made.
            let one = applied.remove(&key(settlement.lease));
            results.push(one.as_ref().map_or(Settled::LeaseLost, |one| Settled::Applied(one.state)));
            left.extend(one.and_then(|one| one.left(settlement, added)));
        }
        left.append(&mut tree.left);
        tree.left = left;
        Ok(Self { results, tree, made_room })
    }

    /// Ends what is below jobs that ended early, and passes on the places that were left.
    async fn finish(self, inner: &Inner) -> (Vec<Settled>, bool) {
        let passed_on = trees::finish(inner, self.tree).await;
        (self.results, self.made_room || passed_on)
    }
}

/// What the settlements of one call have in common.
struct Call<'a> {
    inner: &'a Inner,
    /// The transaction to settle in, if someone else has one open.
    within: Option<&'a Client>,
    lanes: Arc<Lanes>,
    limit: Limit,
    /// Whether a follow-up has a unique key: its holder has to be looked at first, which takes statements of their own.
    has_unique: bool,
    /// Whether a follow-up has a parent, which may be among the jobs that end: then it comes after everything below that one
    /// has ended.
    has_children: bool,
}

impl<'a> Call<'a> {
    async fn new(inner: &'a Inner, settlements: &[Settlement]) -> Result<Self, StoreError> {
        let follow_ups: Vec<NewJob> = settlements.iter().flat_map(|each| each.follow_ups.clone()).collect();
        enqueue::check(&follow_ups)?;
        let lanes = inner.lanes.with(&inner.pool, &follow_ups).await?;
        inner.expect(&follow_ups);
        Ok(Self {
            inner,
            within: None,
            lanes,
            limit: Limit::new(inner.manual_now(), &follow_ups),
            has_unique: follow_ups.iter().any(|job| job.unique.is_some()),
            has_children: follow_ups.iter().any(|job| job.parent.is_some()),
        })
    }

    /// Settles as many, from the first one on, as can be settled together. A job that ends live children may change what becomes
    /// of those after it, so these come later.
    async fn settle_next(&self, rest: &[Settlement]) -> Result<Outcome, StoreError> {
        let mut count = if self.has_children { 1 } else { rest.len() };
        loop {
            let settlements = &rest[..count];
            let mut tree = Tree::new(self.limit.now);
            match self.apply(&Given::new(settlements), &mut tree).await? {
                Applied::Done { rows, added } => {
                    return Outcome::read(self.inner, settlements, &rows, &added, tree);
                }
                Applied::Tangled(jobs) => {
                    let first = settlements.iter().position(|each| jobs.contains(&each.lease.id.0));
                    count = first.unwrap_or_default().max(1);
                }
            }
        }
    }

    /// Applies settlements with their follow-ups.
    async fn apply(&self, given: &Given<'_>, tree: &mut Tree) -> Result<Applied, StoreError> {
        if let Some(client) = self.within {
            return self.apply_in_steps(client, given, tree).await;
        }
        if self.has_unique || self.has_children {
            let steps = async |client: &Client| self.apply_in_steps(client, given, tree).await;
            return self.inner.pool.transaction(steps).await;
        }
        self.run(&*self.inner.pool, given, &FollowUps::new(given, &self.lanes)?, tree).await
    }

    /// Settles, and then enqueues what follows, in statements of their own inside a transaction.
    async fn apply_in_steps(
        &self,
        client: &Client,
        given: &Given<'_>,
        tree: &mut Tree,
    ) -> Result<Applied, StoreError> {
        let rows = match self.run(client, given, &FollowUps::default(), tree).await? {
            Applied::Done { rows, .. } => rows,
            tangled @ Applied::Tangled(_) => return Ok(tangled),
        };
        if self.has_children {
            tree.end_below(client).await?;
        }
        let applied = applied(&rows)?;
        let held = |settlement: &&&Settlement| applied.contains_key(&key(settlement.lease));
        let next = given.firsts.iter().filter(held).flat_map(|settlement| settlement.follow_ups.clone());
        let next: Vec<NewJob> = next.collect();
        let enqueued = enqueue::add_all(&mut &*client, &self.lanes, self.limit.now, &next).await?;
        let added = enqueued.into_iter().filter_map(|each| match each {
            Enqueued::Created(id) => Some(id.0),
            Enqueued::Existing(_) | Enqueued::Conflict(_) | Enqueued::Replaced(_) => None,
        });
        Ok(Applied::Done { rows, added: added.collect() })
    }

    /// Runs `settle.sql`.
    async fn run(
        &self,
        to: &(impl Query + Sync),
        given: &Given<'_>,
        follow_ups: &FollowUps<'_>,
        tree: &mut Tree,
    ) -> Result<Applied, StoreError> {
        let one_after_the_other = given.firsts.len() > 1;
        let mut parameters: Vec<Parameter<'_>> = self.limit.parameters().to_vec();
        parameters.extend(given.parameters());
        parameters.extend(follow_ups.parameters());
        parameters.extend([(&tree.number as _, Type::INT8), (&one_after_the_other as _, Type::BOOL)]);
        let rows = to.typed(include_str!("../sql/settle.sql"), &parameters).await?;
        let first = rows.first().ok_or_else(nothing)?;
        if first.try_get("late").sorted()? {
            return Err(Start::too_far().into());
        }
        if let Some(jobs) = first.try_get("tangled").sorted()? {
            return Ok(Applied::Tangled(jobs));
        }
        tree.marked = first.try_get("marked").sorted()?;
        let added: Option<Vec<Uuid>> = first.try_get("followed").sorted()?;
        Ok(Applied::Done { rows, added: added.into_iter().flatten().collect() })
    }
}

/// What came of a try to settle together.
enum Applied {
    /// The rows of `settle.sql`, and which follow-ups with partitions were added.
    Done { rows: Vec<Row>, added: HashSet<Uuid> },
    /// Nothing was settled, because these jobs end live children.
    Tangled(Vec<Uuid>),
}

/// Whether a queue with a quota has room again.
fn frees_slots(inner: &Inner, applied: &HashMap<(Uuid, i64), SettledRow>) -> bool {
    let (met, lanes) = (inner.met(), inner.lanes.snapshot());
    let mut queues = applied.values().filter_map(|one| lanes.get(one.lane)).map(|lane| &lane.queue);
    met.has_queues() && queues.any(|queue| met.in_queue(queue))
}

async fn plain(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Row>, StoreError> {
    let mut leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.into_iter().map(key).unzip();
    let now = inner.manual_now();
    let sql = include_str!("../sql/settle_plain.sql");
    inner.pool.query(sql, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY)]).await
}

/// What a settlement came to.
struct SettledRow {
    state: State,
    lane: i32,
    partition: Option<String>,
    strict: bool,
    /// Whether it can be claimed again at once.
    due: bool,
}

/// What settlements came to, by their leases.
fn applied(rows: &[Row]) -> Result<HashMap<(Uuid, i64), SettledRow>, StoreError> {
    let mut applied = HashMap::with_capacity(rows.len());
    for row in rows {
        let Some(id) = row.try_get::<_, Option<Uuid>>("id").sorted()? else { continue };
        let (epoch, code): (i64, i16) = (row.try_get("epoch").sorted()?, row.try_get("state").sorted()?);
        let state = row::state(code);
        let one = SettledRow {
            state: state.ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?,
            lane: row.try_get("lane").sorted()?,
            partition: row.try_get("partition").sorted()?,
            strict: row.try_get("strict").sorted()?,
            due: row.try_get("due").sorted()?,
        };
        applied.insert((id, epoch), one);
    }
    Ok(applied)
}

impl SettledRow {
    /// The place that the job has left in its partition, if it has one.
    fn left(self, settlement: &Settlement, added: &HashSet<Uuid>) -> Option<Left> {
        let partition = self.partition?;
        let beside = |job: &&NewJob| {
            let any = job.partition.as_ref().filter(|of| of.order == Order::Any);
            added.contains(&job.id.0) && any.map(|of| of.scope(&job.queue)).as_ref() == Some(&partition)
        };
        let added = settlement.follow_ups.iter().filter(beside).map(|job| job.start).collect();
        Some(Left {
            id: settlement.lease.id.0,
            strict: self.strict,
            ended: self.state.is_final(),
            ran: true,
            was_claimable: false,
            is_claimable: self.due,
            added,
            partition,
        })
    }
}
