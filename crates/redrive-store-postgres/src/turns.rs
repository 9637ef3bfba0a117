//! Whose turn it is in a partition, once a job has left its place there or someone asks.

use std::collections::{BTreeSet, HashMap};

use redrive_core::quota::Bounds;
use redrive_core::rooms::Quotas;
use redrive_core::{Order, Partition, Start, StoreError, Timestamp};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::enqueue::Query;
use crate::error::{Sorted, explain};
use crate::locks;
use crate::open::Inner;

/// How many of a partition go on at once where nothing bounds it; a sweep finds the others.
const NEXT_MAX: usize = 1_000;
/// How often a turn is passed on before it is left to a sweep.
const PASS_ON_TRIES: u32 = 3;

/// A job that has left its place in a partition, by a settlement or a cancel.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) partition: String,
    pub(crate) id: Uuid,
    pub(crate) strict: bool,
    /// Whether it has ended.
    pub(crate) ended: bool,
    /// Whether it was running.
    pub(crate) ran: bool,
    /// Whether it could have been claimed before, and whether it can be now.
    pub(crate) was_claimable: bool,
    pub(crate) is_claimable: bool,
    /// When the jobs are due that were added to its partition after it, those in strict order left out.
    pub(crate) added: Vec<Start>,
}

/// A job that someone has looked at because it waits.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) id: Uuid,
    pub(crate) partition: Option<String>,
    pub(crate) strict: bool,
    /// Whether it waits for its turn.
    pub(crate) turn: bool,
    /// Whether its time has come, if it waits for its turn.
    pub(crate) due: bool,
    /// Whether it could be claimed from then on.
    pub(crate) adds: bool,
}

/// A partition as it is at one moment.
#[derive(Debug)]
struct Line {
    /// How many may run at once.
    slots: Option<u32>,
    now: Timestamp,
    running: u64,
    claimable: u64,
    /// The first of those in strict order that have not ended, and whether it waits for its turn.
    first: Option<(Waiting, bool)>,
    /// Others that wait for their turn, in order.
    waiting: Vec<Waiting>,
}

/// A job that waits for its turn, and whether its time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    id: Uuid,
    due: bool,
}

/// Makes those due whose turn it is after jobs have left their places, in this order. Says whether there were any. What fails here
/// is made up for by a sweep: the jobs have left their places already.
pub(crate) async fn pass_on(inner: &Inner, left: &[Left]) -> bool {
    let mut most: HashMap<&str, usize> = HashMap::new();
    for each in left {
        *most.entry(&each.partition).or_default() += 1 + each.added.len();
    }
    let mut tries = 1;
    loop {
        let passed = resume(inner, &most, |lines| {
            let of = |scope: &str| left.iter().filter(|each| each.partition == *scope).collect::<Vec<_>>();
            lines.iter().flat_map(|(scope, line)| line.pass_on(&of(scope))).collect()
        });
        match passed.await {
            Ok(resumed) => return !resumed.is_empty(),
            // A claim that passes a row over may hold it all the same while it waits for the locks of others.
            Err(StoreError::Busy(_)) if tries < PASS_ON_TRIES => tries += 1,
            Err(error) => {
                tracing::warn!(error = explain(&error), "a turn was not passed on; the next sweep does it");
                return false;
            }
        }
    }
}

/// Makes those due whose turn it is among jobs that were looked at, in this order; says which.
pub(crate) async fn take_turns<'a>(
    inner: &Inner,
    looked: impl Iterator<Item = &'a Looked>,
) -> Result<BTreeSet<Uuid>, StoreError> {
    let looked: Vec<&Looked> = looked.collect();
    let turns = looked.iter().filter(|each| each.turn);
    let most = turns.filter_map(|each| Some((each.partition.as_deref()?, looked.len()))).collect();
    resume(inner, &most, |lines| whose_turn(&looked, lines)).await
}

/// Looks at partitions while nobody else acts by what is there, lets `decide` say who goes on, and makes those due. No more of
/// a partition is counted than its slots and so many as come with it.
async fn resume(
    inner: &Inner,
    partitions: &HashMap<&str, usize>,
    decide: impl FnOnce(&HashMap<String, Line>) -> Vec<Uuid>,
) -> Result<BTreeSet<Uuid>, StoreError> {
    if partitions.is_empty() {
        return make_due(&*inner.pool, decide(&HashMap::new())).await;
    }
    let now = inner.manual_now();
    let resuming = inner.pool.transaction(async |client| {
        let queues: BTreeSet<&str> =
            partitions.keys().map(|partition| Partition::queue_of_scope(partition)).collect();
        let queues: Vec<&str> = queues.into_iter().collect();
        let quotas = locks::lock(client, partitions.keys().copied(), &queues).await?;
        let lines = look(client, now, partitions, &quotas).await?;
        make_due(client, decide(&lines)).await
    });
    resuming.await
}

async fn make_due(to: &(impl Query + Sync), ids: Vec<Uuid>) -> Result<BTreeSet<Uuid>, StoreError> {
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = to.typed(include_str!("../sql/turns_resume.sql"), &[(&ids, Type::UUID_ARRAY)]).await?;
    rows.iter().map(|row| row.try_get("id").sorted()).collect()
}

async fn look(
    client: &Client,
    now: Option<i64>,
    partitions: &HashMap<&str, usize>,
    quotas: &Quotas,
) -> Result<HashMap<String, Line>, StoreError> {
    let slots_of = |partition: &str| {
        quotas.get(Partition::queue_of_scope(partition)).and_then(|quota| quota.per_key.concurrency)
    };
    let (mut scopes, mut most, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, more) in partitions {
        let slots = slots_of(partition).map(|slots| slots as usize);
        scopes.push(*partition);
        most.push(slots.map_or(0, |slots| slots + more + 1) as i64);
        next.push(slots.unwrap_or(NEXT_MAX).min(NEXT_MAX) as i64);
    }
    let sql = include_str!("../sql/turns.sql");
    let rows = client
        .typed(
            sql,
            &[
                (&now, Type::INT8),
                (&scopes, Type::TEXT_ARRAY),
                (&most, Type::INT8_ARRAY),
                (&next, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let line = |row: &Row| {
        let partition: String = row.try_get("scope").sorted()?;
        let slots = slots_of(&partition);
        Ok((partition, Line::read(row, slots)?))
    };
    rows.iter().map(line).collect()
}

impl Line {
    fn read(row: &Row, slots: Option<u32>) -> Result<Self, StoreError> {
        let number = |name: &str| row.try_get::<_, i64>(name).sorted();
        let first: Option<Uuid> = row.try_get("first").sorted()?;
        let first_due = row.try_get("first_due").sorted()?;
        let first_waits = row.try_get("first_waits").sorted()?;
        let ids: Option<Vec<Uuid>> = row.try_get("ids").sorted()?;
        let due: Option<Vec<bool>> = row.try_get("due").sorted()?;
        let waiting = ids.into_iter().flatten().zip(due.into_iter().flatten());
        Ok(Self {
            slots,
            now: Timestamp::from_ms(number("now")?),
            running: number("running")?.unsigned_abs(),
            claimable: number("claimable")?.unsigned_abs(),
            first: first.map(|id| (Waiting { id, due: first_due }, first_waits)),
            waiting: waiting.map(|(id, due)| Waiting { id, due }).collect(),
        })
    }

    fn lets_go_on(&self, order: Order, running: u64, claimable: u64) -> bool {
        Bounds { concurrency: self.slots, rate: None }.lets_go_on(order, running, claimable)
    }

    /// Who goes on after jobs have left their places. All of them have by now: what each left behind is told as if they went
    /// one after the other, and so is what was added after each.
    fn pass_on(&self, left: &[&Left]) -> Vec<Uuid> {
        let added = |each: &Left| {
            let due =
                each.added.iter().filter(|start| start.resolve(self.now).is_ok_and(|at| at <= self.now));
            due.count() as u64
        };
        let sum = |count: &dyn Fn(&Left) -> u64| left.iter().map(|each| count(each)).sum::<u64>();
        let mut running = self.running + sum(&|each| each.ran.into());
        let mut claimable = (self.claimable + sum(&|each| (each.was_claimable && !each.strict).into()))
            .saturating_sub(sum(&|each| u64::from(each.is_claimable && !each.strict) + added(each)));
        let mut first = self.first.filter(|(_, waits)| *waits).map(|(first, _)| first);
        let mut waiting = self.waiting.iter().copied().peekable();
        let mut resumed = Vec::new();
        for (index, each) in left.iter().enumerate() {
            running = running.saturating_sub(each.ran.into());
            if !each.strict {
                claimable =
                    (claimable + u64::from(each.is_claimable)).saturating_sub(each.was_claimable.into());
            }
            let comes_first = |id: Uuid| {
                left[index + 1..].iter().all(|later| !(later.strict && later.ended) || later.id > id)
            };
            let strict = first
                .take_if(|first| comes_first(first.id) && self.lets_go_on(Order::Strict, running, claimable));
            resumed.extend(strict.map(|next| next.id));
            while let Some(next) = waiting.next_if(|_| self.lets_go_on(Order::Any, running, claimable)) {
                resumed.push(next.id);
                claimable += u64::from(next.due);
            }
            claimable += added(each);
        }
        resumed
    }
}

/// Whose turn it is of those that were looked at. What else became claimable is there by now: it is told as if they were looked
/// at one after the other.
fn whose_turn(looked: &[&Looked], lines: &HashMap<String, Line>) -> Vec<Uuid> {
    let mut claimable: HashMap<&str, u64> = HashMap::new();
    for (scope, line) in lines {
        let adds =
            looked.iter().filter(|each| each.adds && !each.strict && each.partition.as_ref() == Some(scope));
        let adds = adds.count();
        claimable.insert(scope, line.claimable.saturating_sub(adds as u64));
    }
    let mut resumed = Vec::new();
    for each in looked {
        let scope = each.partition.as_deref().unwrap_or_default();
        let claimable = claimable.entry(scope).or_default();
        let its_turn = match lines.get(scope) {
            None => true,
            Some(line) => {
                let comes_first = !each.strict || line.first.is_some_and(|(first, _)| first.id == each.id);
                let order = if each.strict { Order::Strict } else { Order::Any };
                comes_first && line.lets_go_on(order, line.running, *claimable)
            }
        };
        if each.turn && its_turn {
            resumed.push(each.id);
        }
        *claimable += u64::from(!each.strict && (each.adds || (each.turn && its_turn && each.due)));
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn line(slots: Option<u32>, running: u64, claimable: u64, waiting: &[u128]) -> Line {
        let waiting = waiting.iter().map(|n| Waiting { id: id(*n), due: true }).collect();
        Line { slots, now: NOW, running, claimable, first: None, waiting }
    }

    fn done(n: u128) -> Left {
        let partition = "q\u{1f}k".to_owned();
        let (ran, was_claimable, is_claimable) = (true, false, false);
        let (strict, ended) = (false, true);
        Left { partition, id: id(n), strict, ended, ran, was_claimable, is_claimable, added: vec![] }
    }

    fn check(line: &Line, left: &[Left], expected: &[u128]) {
        let expected: Vec<Uuid> = expected.iter().map(|n| id(*n)).collect();
        assert_eq!(line.pass_on(&left.iter().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn each_end_lets_one_go_on() {
        check(&line(Some(2), 1, 0, &[7, 8]), &[done(1)], &[7]);
        check(&line(Some(2), 0, 0, &[7, 8, 9]), &[done(1), done(2)], &[7, 8]);
        check(&line(Some(2), 2, 0, &[7]), &[done(1)], &[]);
        check(&line(None, 5, 5, &[7, 8]), &[done(1)], &[7, 8]);
    }

    #[test]
    fn what_could_be_claimed_at_once_comes_before() {
        let again = || Left { ended: false, is_claimable: true, ..done(1) };
        check(&line(Some(1), 0, 1, &[7]), &[again()], &[]);
        check(&line(Some(1), 0, 0, &[7]), &[Left { was_claimable: true, ran: false, ..done(1) }], &[7]);
        // What follows up comes after those that waited.
        check(&line(Some(1), 0, 1, &[7]), &[Left { added: vec![Start::Now], ..done(1) }], &[7]);
        check(&line(Some(2), 0, 1, &[7, 8]), &[Left { added: vec![Start::Now], ..done(1) }, done(2)], &[7]);
    }

    #[test]
    fn strict_order_waits_for_the_end_of_those_before() {
        let mut line = line(Some(2), 0, 0, &[7, 8]);
        line.first = Some((Waiting { id: id(5), due: true }, true));
        check(&line, &[done(1)], &[5, 7, 8]);
        check(&line, &[done(1), Left { strict: true, ..done(2) }], &[7, 5, 8]);
    }

    #[test]
    fn those_that_were_looked_at_go_on_in_their_order() {
        let looked = |n, turn| Looked {
            id: id(n),
            partition: Some("q\u{1f}k".to_owned()),
            strict: false,
            turn,
            due: turn,
            adds: !turn,
        };
        let lines = HashMap::from([("q\u{1f}k".to_owned(), line(Some(2), 0, 1, &[]))]);
        let all = [looked(1, true), looked(2, false), looked(3, true)];
        let all: Vec<&Looked> = all.iter().collect();
        assert_eq!(whose_turn(&all, &lines), [id(1)]);
        assert_eq!(whose_turn(&all[1..], &lines), [id(3)]);
    }
}
