//! Leases due jobs where a quota or a partition bounds what may start.
//!
//! A claim looks for candidates, keeps everyone else from counting where they belong, counts what runs there, decides about one
//! after the other, and writes that down. The order matters: counts are of a statement that began when the locks were held, so that
//! they hold whatever other nodes claim. Each round is a transaction of its own, since its locks are taken in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use redrive_core::quota::Bounds;
use redrive_core::rooms::{Admission, Candidate, Quotas, Rooms, Starts};
use redrive_core::store::ClaimRequest;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Kind, Queue, Quota, StoreError, Timestamp};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::enqueue::Query;
use crate::error::Sorted;
use crate::locks;
use crate::open::Inner;
use crate::row::{self, Read};

const CANDIDATES: &str = concat!(
    include_str!("../sql/claim_lanes.sql"),
    include_str!("../sql/claim_many.sql"),
    include_str!("../sql/claim_due.sql")
);

/// How often a claim looks on when it had to leave jobs; what is due then is left to the next one.
const ROUNDS_MAX: usize = 16;
/// How many candidates a round looks at at least: jobs that have to be set aside often stand one behind the other.
const CANDIDATES_MIN: usize = 16;

/// A due job that a claim decides about.
#[derive(Debug)]
struct Due {
    id: Uuid,
    lane: i32,
    state: i16,
    next_run_at: i64,
    partition: Option<String>,
    strict: bool,
}

impl Due {
    fn candidate(&self) -> Candidate<'_> {
        Candidate { id: JobId(self.id), partition: self.partition.as_deref(), strict: self.strict }
    }
}

/// What this node has met bounds in. It only saves a statement that would lease nothing: the statement looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Met {
    claims: HashSet<(Vec<Queue>, Vec<Kind>)>,
    queues: HashSet<Queue>,
}

impl Met {
    /// Whether such a claim met bounds the last time.
    pub(crate) fn in_claim(&self, request: &ClaimRequest) -> bool {
        !self.claims.is_empty() && self.claims.contains(&sort(request))
    }

    /// Whether any queue had a quota the last time.
    pub(crate) fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether a queue had a quota the last time.
    pub(crate) fn in_queue(&self, queue: &Queue) -> bool {
        self.queues.contains(queue)
    }

    fn note(&mut self, request: &ClaimRequest, wanted: &Wanted) {
        if wanted.is_bounded() {
            self.claims.insert(sort(request));
        } else {
            self.claims.remove(&sort(request));
        }
        for queue in wanted.lanes.values() {
            if wanted.quotas.contains_key(queue.as_str()) {
                self.queues.insert(queue.clone());
            } else {
                self.queues.remove(queue);
            }
        }
    }
}

fn sort(request: &ClaimRequest) -> (Vec<Queue>, Vec<Kind>) {
    (request.queues.clone(), request.kinds.clone())
}

/// What a claim came to.
pub(crate) struct Taken {
    pub(crate) reads: Vec<Read>,
    pub(crate) now: Timestamp,
    pub(crate) next_due: Option<Timestamp>,
}

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<Taken, StoreError> {
    let mut wanted = wanted(inner, request).await?;
    inner.met().note(request, &wanted);
    let mut rooms = count(&*inner.pool, inner.manual_now(), &wanted, &BTreeMap::new()).await?;
    let mut reads = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let left = request.limit - reads.len();
        let lanes = open(&wanted, &rooms, left);
        if left == 0 || lanes.is_empty() {
            break;
        }
        match round(inner, request, &wanted, &lanes, left).await {
            Ok(round) => {
                reads.extend(round.reads);
                wanted.quotas = round.rooms.quotas.clone();
                rooms = round.rooms;
                if !round.again {
                    break;
                }
            }
            // What was leased in earlier rounds is there to be worked on.
            Err(_) if !reads.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let next_due = match next_due(inner, &wanted, &rooms).await {
        Err(_) if !reads.is_empty() => Some(rooms.now),
        next_due => next_due?,
    };
    Ok(Taken { reads, now: rooms.now, next_due })
}

/// The lanes that a claim looks at, with their queues and the quotas of these.
struct Wanted {
    lanes: BTreeMap<i32, Queue>,
    partitioned: bool,
    quotas: Quotas,
}

impl Wanted {
    fn is_bounded(&self) -> bool {
        self.partitioned || !self.quotas.is_empty()
    }

    fn queues(&self) -> Vec<&str> {
        let queues: BTreeSet<&str> = self.lanes.values().map(Queue::as_str).collect();
        queues.into_iter().collect()
    }
}

async fn wanted(inner: &Inner, request: &ClaimRequest) -> Result<Wanted, StoreError> {
    let queues: Vec<&str> = request.queues.iter().map(Queue::as_str).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(Kind::as_str).collect();
    let sql = include_str!("../sql/claim_bounds.sql");
    let rows = inner.pool.query(sql, &[(&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)]).await?;
    let mut wanted = Wanted { lanes: BTreeMap::new(), partitioned: false, quotas: Quotas::new() };
    for row in &rows {
        let queue = Queue::new(row.try_get::<_, &str>("queue").sorted()?)?;
        if let Some(quota) = row.try_get::<_, Option<&[u8]>>("quota").sorted()? {
            wanted.quotas.insert(queue.to_string(), Quota::read(quota));
        }
        wanted.partitioned |= row.try_get::<_, bool>("partitioned").sorted()?;
        wanted.lanes.insert(row.try_get("lane").sorted()?, queue);
    }
    Ok(wanted)
}

/// Lanes whose queue has room, with how many candidates each may give: of a queue that is almost full no more are locked than
/// there is some use for.
fn open(wanted: &Wanted, rooms: &Rooms, left: usize) -> BTreeMap<i32, usize> {
    let most = left.max(CANDIDATES_MIN);
    let room = |queue: &Queue| usize::try_from(rooms.queue_room(queue)).unwrap_or(usize::MAX);
    let lanes = wanted.lanes.iter().map(|(lane, queue)| (*lane, room(queue)));
    let open = lanes.filter(|(_, room)| *room > 0);
    open.map(|(lane, room)| (lane, room.saturating_mul(2).max(CANDIDATES_MIN).min(most))).collect()
}

/// What a round came to.
struct Round {
    reads: Vec<Read>,
    rooms: Rooms,
    /// Whether jobs had to be left that others may come after.
    again: bool,
}

async fn round(
    inner: &Inner,
    request: &ClaimRequest,
    wanted: &Wanted,
    lanes: &BTreeMap<i32, usize>,
    left: usize,
) -> Result<Round, StoreError> {
    let now = inner.manual_now();
    let claiming = inner.pool.transaction(async |client| {
        let due = candidates(client, now, lanes, left).await?;
        let partitions = partitions(wanted, &due);
        lock(client, wanted, &due, &partitions).await?;
        let mut rooms = count(client, now, wanted, &partitions).await?;
        // Bounds that changed meanwhile may have needed other locks.
        if rooms.quotas != wanted.quotas {
            return Ok((vec![], rooms, Decided { again: true, ..Decided::default() }));
        }
        let decided = decide(&mut rooms, wanted, lanes, due, left);
        Ok((take(client, request, &rooms, &decided).await?, rooms, decided))
    });
    let (rows, rooms, decided) = claiming.await.inspect_err(|_| inner.floors().forget())?;
    inner.floors().lower_lanes(&decided.left);
    let lanes = inner.lanes_of(&rows).await?;
    Ok(Round { reads: row::reads(&rows, &lanes)?, rooms, again: decided.again })
}

async fn candidates(
    client: &Client,
    now: Option<i64>,
    lanes: &BTreeMap<i32, usize>,
    left: usize,
) -> Result<Vec<Due>, StoreError> {
    let numbers: Vec<i32> = lanes.keys().copied().collect();
    let most: Vec<i64> = lanes.values().map(|most| *most as i64).collect();
    let limit = left.max(CANDIDATES_MIN) as i64;
    let rows = client
        .typed(
            CANDIDATES,
            &[
                (&now, Type::INT8),
                (&numbers, Type::INT4_ARRAY),
                (&most, Type::INT8_ARRAY),
                (&limit, Type::INT8),
            ],
        )
        .await?;
    let due = |row: &Row| {
        Ok(Due {
            id: row.try_get("id").sorted()?,
            lane: row.try_get("lane").sorted()?,
            state: row.try_get("state").sorted()?,
            next_run_at: row.try_get("next_run_at").sorted()?,
            partition: row.try_get("partition").sorted()?,
            strict: row.try_get("strict").sorted()?,
        })
    };
    rows.iter().map(due).collect()
}

/// The partitions among candidates that something depends on, with their bounds.
fn partitions<'a>(wanted: &Wanted, due: &'a [Due]) -> BTreeMap<&'a str, Bounds> {
    let per_key = |job: &Due| {
        let queue = wanted.lanes.get(&job.lane);
        queue
            .and_then(|queue| wanted.quotas.get(queue.as_str()))
            .map(|quota| quota.per_key)
            .unwrap_or_default()
    };
    let bounded = due.iter().filter(|job| job.strict || per_key(job) != Bounds::default());
    bounded.filter_map(|job| Some((job.partition.as_deref()?, per_key(job)))).collect()
}

async fn lock(
    client: &Client,
    wanted: &Wanted,
    due: &[Due],
    partitions: &BTreeMap<&str, Bounds>,
) -> Result<(), StoreError> {
    let queues = due.iter().filter_map(|job| wanted.lanes.get(&job.lane)).map(Queue::as_str);
    let queues = queues.filter(|queue| wanted.quotas.contains_key(*queue));
    let scopes: Vec<&str> = queues.chain(partitions.keys().copied()).collect();
    if !scopes.is_empty() {
        locks::lock(client, scopes, &[]).await?;
    }
    Ok(())
}

/// Counts what runs and has started in the queues that are wanted and in these partitions.
async fn count(
    to: &(impl Query + Sync),
    now: Option<i64>,
    wanted: &Wanted,
    partitions: &BTreeMap<&str, Bounds>,
) -> Result<Rooms, StoreError> {
    let span = |bounds: &Bounds| bounds.rate.map(|rate| ceil_ms(rate.per()));
    let (queues, queue_spans): (Vec<&str>, Vec<Option<i64>>) =
        wanted.quotas.iter().map(|(queue, quota)| (queue.as_str(), span(&quota.whole()))).unzip();
    let (scopes, spans): (Vec<&str>, Vec<Option<i64>>) =
        partitions.iter().map(|(scope, bounds)| (*scope, span(bounds))).unzip();
    let rows = to
        .typed(
            include_str!("../sql/claim_facts.sql"),
            &[
                (&now, Type::INT8),
                (&wanted.queues(), Type::TEXT_ARRAY),
                (&queues, Type::TEXT_ARRAY),
                (&queue_spans, Type::INT8_ARRAY),
                (&scopes, Type::TEXT_ARRAY),
                (&spans, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let mut rooms = Rooms::default();
    for row in &rows {
        fact(&mut rooms, row)?;
    }
    Ok(rooms)
}

/// Takes note of a row of `claim_facts.sql`.
fn fact(rooms: &mut Rooms, row: &Row) -> Result<(), StoreError> {
    let number = || row.try_get::<_, Option<i64>>("number").sorted().map(Option::unwrap_or_default);
    let scope = || row.try_get::<_, String>("scope").sorted();
    match row.try_get::<_, i32>("what").sorted()? {
        0 => rooms.now = Timestamp::from_ms(number()?),
        1 => drop(rooms.quotas.insert(scope()?, Quota::read(row.try_get("value").sorted()?))),
        2 => drop(rooms.running.insert(scope()?, u64::try_from(number()?).unwrap_or_default())),
        3 => {
            let at = Timestamp::from_ms(row.try_get("at").sorted()?);
            let starts: &mut Starts = rooms.starts.entry(scope()?).or_default();
            starts.before.push((at, number()?.unsigned_abs()));
        }
        _ => {
            if let Some(id) = row.try_get::<_, Option<Uuid>>("id").sorted()? {
                rooms.first.insert(scope()?, JobId(id));
            }
        }
    }
    Ok(())
}

/// What was decided about candidates.
#[derive(Default)]
struct Decided {
    taken: Vec<Due>,
    aside: Vec<Due>,
    off: Vec<(Uuid, Timestamp)>,
    /// Lanes with the earliest time of those that stay as they are.
    left: HashMap<i32, i64>,
    again: bool,
}

impl Decided {
    fn leave(&mut self, job: &Due) {
        let at = self.left.entry(job.lane).or_insert(job.next_run_at);
        *at = job.next_run_at.min(*at);
    }
}

/// Decides about candidates in their order. A lane that gave all it was asked for may have more: once one of those was not taken,
/// no later one of its queue may go before what the lane has left.
fn decide(
    rooms: &mut Rooms,
    wanted: &Wanted,
    lanes: &BTreeMap<i32, usize>,
    due: Vec<Due>,
    left: usize,
) -> Decided {
    let mut decided = Decided::default();
    let mut seen: HashMap<i32, (usize, bool)> = HashMap::new();
    let mut stopped: HashSet<&Queue> = HashSet::new();
    for job in due {
        let Some(queue) = wanted.lanes.get(&job.lane) else { continue };
        if decided.taken.len() == left || stopped.contains(queue) {
            decided.again |= decided.taken.len() < left;
            decided.leave(&job);
            continue;
        }
        let admission = rooms.admit(queue, job.candidate());
        let (count, missed) = seen.entry(job.lane).or_default();
        *count += 1;
        *missed |= admission != Admission::Take;
        if *missed && lanes.get(&job.lane) == Some(count) {
            stopped.insert(queue);
        }
        decided.again |= admission != Admission::Take;
        match admission {
            Admission::Take => decided.taken.push(job),
            Admission::PassOver => decided.leave(&job),
            Admission::SetAside => decided.aside.push(job),
            Admission::PutOff(at) => decided.off.push((job.id, at)),
        }
    }
    decided
}

/// Writes down what was decided; brings back the jobs that were leased.
async fn take(
    client: &Client,
    request: &ClaimRequest,
    rooms: &Rooms,
    decided: &Decided,
) -> Result<Vec<Row>, StoreError> {
    let Decided { taken, aside, off, .. } = decided;
    if taken.is_empty() && aside.is_empty() && off.is_empty() {
        return Ok(vec![]);
    }
    let ids = |jobs: &[Due]| jobs.iter().map(|job| job.id).collect::<Vec<Uuid>>();
    let (off, until): (Vec<Uuid>, Vec<i64>) = off.iter().map(|(id, at)| (*id, at.as_ms())).unzip();
    let started = rooms.starts.iter().filter(|(_, starts)| starts.added > 0);
    let (scopes, starts): (Vec<&str>, Vec<i64>) =
        started.map(|(scope, starts)| (scope.as_str(), starts.added as i64)).unzip();
    let moved = || taken.iter().chain(aside);
    let lanes: Vec<i32> = moved().map(|job| job.lane).collect();
    let states: Vec<i16> = moved().map(|job| job.state).collect();
    let leased: Vec<bool> = (0..lanes.len()).map(|index| index < taken.len()).collect();
    client
        .typed(
            include_str!("../sql/claim_take.sql"),
            &[
                (&rooms.now.as_ms(), Type::INT8),
                (&ids(taken), Type::UUID_ARRAY),
                (&request.worker.as_str(), Type::TEXT),
                (&ceil_ms(request.lease), Type::INT8),
                (&ids(aside), Type::UUID_ARRAY),
                (&off, Type::UUID_ARRAY),
                (&until, Type::INT8_ARRAY),
                (&scopes, Type::TEXT_ARRAY),
                (&starts, Type::INT8_ARRAY),
                (&lanes, Type::INT4_ARRAY),
                (&states, Type::INT2_ARRAY),
                (&leased, Type::BOOL_ARRAY),
            ],
        )
        .await
}

/// When the next job is due that its queue has room for, or when a used up rate makes room.
async fn next_due(inner: &Inner, wanted: &Wanted, rooms: &Rooms) -> Result<Option<Timestamp>, StoreError> {
    let lanes: Vec<i32> = wanted.lanes.keys().copied().collect();
    let rows = inner.pool.query(include_str!("../sql/claim_next.sql"), &[(&lanes, Type::INT4_ARRAY)]).await?;
    let mut next = None;
    for row in &rows {
        let queue = Queue::new(row.try_get::<_, &str>("queue").sorted()?)?;
        let first = Timestamp::from_ms(row.try_get("due").sorted()?);
        let first = match rooms.queue_room(&queue) {
            0 => rooms.queue_frees(&queue).map(|free| first.max(free)),
            _ => Some(first),
        };
        next = [next, first].into_iter().flatten().min();
    }
    Ok(next)
}
