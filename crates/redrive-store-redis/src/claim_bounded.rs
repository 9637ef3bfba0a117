//! Leases jobs that must keep to bounds or to an order: one claim at a time looks at all that counts, decides by core, and takes.
//!
//! A lock keeps claims apart. Should its holder stand still for longer than the lock lasts, a number that grows with each
//! holder, written into every partition at the look, shuts it out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use redis::Value;
use redrive_core::rooms::{Admission, Candidate, Rooms, Starts};
use redrive_core::{JobId, Queue, StoreError, Timestamp};

use crate::arguments::Arguments;
use crate::claim::{self, Claim, Heads};
use crate::open::Inner;
use crate::row::Lane;
use crate::settings::Settings;
use crate::{answer, script};

/// How long one claim may hold the lock before another takes it.
const LOCK: Duration = Duration::from_secs(2);
/// Due jobs to look at in a partition at a time.
const LOOK_MIN: usize = 64;

/// Takes what there is room for, and says when the next job is due that its queue has room for.
pub(crate) async fn go_on(
    claim: &mut Claim<'_>,
    settings: &Settings,
) -> Result<Option<Timestamp>, StoreError> {
    let patience = Instant::now() + claim.inner.options.patience;
    while Instant::now() < patience {
        let lock = Lock::take(claim.inner).await?;
        let gone = take_all(claim, settings, &lock).await;
        lock.give_back().await;
        if let Some(rooms) = gone? {
            return next_due(claim, settings, &rooms).await;
        }
        // Another claim has the lock by now: from the start.
    }
    Err(busy())
}

/// Nothing comes of it once another claim has the lock.
async fn take_all(
    claim: &mut Claim<'_>,
    settings: &Settings,
    lock: &Lock<'_>,
) -> Result<Option<Rooms>, StoreError> {
    let mut rooms = Rooms { quotas: settings.quotas.clone(), ..Rooms::default() };
    let mut full = Vec::new();
    loop {
        let most = claim.left().clamp(LOOK_MIN, 1_000);
        let Some(due) = look(claim, settings, lock, &mut rooms, &full, most).await? else { return Ok(None) };
        let met = due.len();
        let (decided, now_full) = decide(claim, &mut rooms, due);
        full.extend(now_full);
        let stuck = decided.is_empty() && full.is_empty();
        if !apply(claim, lock, &rooms, decided).await? {
            return Ok(None);
        }
        if claim.left() == 0 || met == 0 || stuck {
            return Ok(Some(rooms));
        }
    }
}

/// A due job, and where it is.
struct Due {
    partition: usize,
    lane: Lane,
    id: JobId,
    at: Timestamp,
    scope: String,
    strict: bool,
}

/// Looks at the first due jobs of every partition and at what runs beside them. They come in the order of a claim.
async fn look(
    claim: &mut Claim<'_>,
    settings: &Settings,
    lock: &Lock<'_>,
    rooms: &mut Rooms,
    full: &[Queue],
    most: usize,
) -> Result<Option<Vec<Due>>, StoreError> {
    let first = rooms.now == Timestamp::default();
    let calls = claim.heads.iter().enumerate().map(|(partition, heads)| {
        let lanes: Vec<&Lane> =
            heads.iter().map(|(lane, _)| lane).filter(|lane| !full.contains(&lane.queue)).collect();
        let mut arguments = claim.inner.arguments();
        arguments.text(&lock.token);
        arguments.count(most);
        arguments.count(lanes.len());
        lanes.iter().for_each(|lane| arguments.text(&lane.name));
        ask_about_queues(&mut arguments, settings, claim.now);
        claim.inner.run(&script::LOOK, partition, arguments)
    });
    let mut all = Vec::new();
    let mut seen = Seen::default();
    for (partition, value) in try_join_all(calls).await?.into_iter().enumerate() {
        let mut parts = answer::items(value)?.into_iter();
        let (now, word) =
            (answer::instant(parts.next().ok_or_else(|| answer::odd("a time"))?)?, parts.next());
        if answer::text(word.ok_or_else(|| answer::odd("a word"))?)? != "looked" {
            return Ok(None);
        }
        claim.now = claim.now.max(now);
        let (Some(due), Some(names), Some(queues)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(answer::odd("all its parts"));
        };
        for item in answer::items(due)? {
            all.push(read_due(partition, item)?);
        }
        seen.read(names, queues)?;
    }
    rooms.now = claim.now;
    seen.into_rooms(rooms, first);
    all.sort_by_key(|due| (std::cmp::Reverse(due.lane.priority), due.at, due.id));
    all.truncate(most);
    Ok(Some(all))
}

/// Asks what runs and has started of the queues that have quotas.
fn ask_about_queues(arguments: &mut Arguments, settings: &Settings, now: Timestamp) {
    arguments.count(settings.quotas.len());
    for (queue, quota) in &settings.quotas {
        let since = |rate: Option<redrive_core::quota::Rate>| {
            rate.map(|rate| rate.since(now).as_ms().to_string()).unwrap_or_default()
        };
        arguments.text(queue);
        arguments.text(since(quota.rate));
        arguments.text(since(quota.per_key.rate));
    }
}

fn read_due(partition: usize, value: Value) -> Result<Due, StoreError> {
    let [id, lane, at, scope, strict] = answer::parts(value)?;
    Ok(Due {
        partition,
        lane: Lane::read(answer::text(lane)?)?,
        id: answer::id(&answer::text(id)?)?,
        at: answer::instant(at)?,
        scope: answer::text(scope)?,
        strict: !answer::text(strict)?.is_empty(),
    })
}

/// What was counted in all partitions.
#[derive(Default)]
struct Seen {
    queues: BTreeMap<String, (u64, Vec<Timestamp>)>,
    keys: BTreeMap<String, (u64, Option<JobId>, Vec<Timestamp>)>,
}

impl Seen {
    fn read(&mut self, names: Value, queues: Value) -> Result<(), StoreError> {
        for name in answer::items(names)? {
            let mut parts = answer::items(name)?.into_iter();
            let (Some(scope), Some(running), Some(first)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(answer::odd("all its parts"));
            };
            let first = answer::text(first)?;
            let first = if first.is_empty() { None } else { Some(answer::id(&first)?) };
            let starts = parts.next().map(read_starts).transpose()?.unwrap_or_default();
            let known = self.keys.entry(answer::text(scope)?).or_default();
            known.0 += answer::number::<u64>(running)?;
            known.1 = known.1.min(first).or(first).or(known.1);
            known.2.extend(starts);
        }
        for queue in answer::items(queues)? {
            let [queue, running, starts] = answer::parts(queue)?;
            let known = self.queues.entry(answer::text(queue)?).or_default();
            known.0 += answer::number::<u64>(running)?;
            known.1.extend(read_starts(starts)?);
        }
        Ok(())
    }

    /// What this claim has taken since its first look is counted in the rooms already.
    fn into_rooms(self, rooms: &mut Rooms, first: bool) {
        let starts =
            |at: Vec<Timestamp>| Starts { before: at.into_iter().map(|at| (at, 1)).collect(), added: 0 };
        if first {
            for (queue, (running, started)) in self.queues {
                rooms.running.insert(queue.clone(), running);
                rooms.starts.insert(queue, starts(started));
            }
        }
        for (scope, (running, head, started)) in self.keys {
            if !rooms.running.contains_key(&scope) {
                rooms.running.insert(scope.clone(), running);
                rooms.starts.insert(scope.clone(), starts(started));
                if let Some(head) = head {
                    rooms.first.insert(scope, head);
                }
            }
        }
    }
}

fn read_starts(value: Value) -> Result<Vec<Timestamp>, StoreError> {
    let flat = answer::texts(value)?;
    flat.chunks_exact(2).map(|pair| answer::score(&pair[1])).collect()
}

/// What to do with each job, by partition, as core decides; and the queues that are full.
fn decide(claim: &Claim<'_>, rooms: &mut Rooms, due: Vec<Due>) -> (Vec<(Due, Admission)>, Vec<Queue>) {
    let (mut decided, mut full) = (Vec::new(), Vec::new());
    let mut taken = 0;
    for due in due {
        if taken == claim.left() {
            break;
        }
        let partition = (!due.scope.is_empty()).then_some(due.scope.as_str());
        let admission = rooms.admit(&due.lane.queue, Candidate { id: due.id, partition, strict: due.strict });
        match admission {
            Admission::PassOver => {
                if !full.contains(&due.lane.queue) {
                    full.push(due.lane.queue);
                }
            }
            Admission::Take => {
                taken += 1;
                decided.push((due, admission));
            }
            Admission::SetAside | Admission::PutOff(_) => decided.push((due, admission)),
        }
    }
    (decided, full)
}

/// Does what was decided; false if another claim has the lock by now.
async fn apply(
    claim: &mut Claim<'_>,
    lock: &Lock<'_>,
    rooms: &Rooms,
    decided: Vec<(Due, Admission)>,
) -> Result<bool, StoreError> {
    let mut by_partition: BTreeMap<usize, Vec<(Due, Admission)>> = BTreeMap::new();
    for (due, admission) in decided {
        by_partition.entry(due.partition).or_default().push((due, admission));
    }
    for (partition, decided) in by_partition {
        let mut arguments = claim.inner.arguments();
        arguments.text(&lock.token);
        arguments.text(&claim.request.worker);
        arguments.text(claim.number);
        arguments.text(claim.request.lease.as_millis());
        arguments.count(decided.len());
        for (due, admission) in &decided {
            arguments.id(due.id);
            arguments.text(match admission {
                Admission::SetAside | Admission::PassOver => "aside".to_owned(),
                Admission::Take => "take".to_owned(),
                Admission::PutOff(at) => at.as_ms().to_string(),
            });
        }
        write_starts(&mut arguments, rooms, &decided);
        let value = claim.inner.run(&script::TAKE, partition, arguments).await?;
        let mut parts = answer::items(value)?.into_iter();
        let (Some(now), Some(word)) = (parts.next(), parts.next()) else { return Err(answer::odd("a word")) };
        if answer::text(word)? != "taken" {
            return Ok(false);
        }
        let leased = parts.next().ok_or_else(|| answer::odd("what was leased"))?;
        claim.keep(partition, answer::instant(now)?, leased)?;
    }
    Ok(true)
}

/// The starts that a rate counts, and since when.
fn write_starts(arguments: &mut Arguments, rooms: &Rooms, decided: &[(Due, Admission)]) {
    let mut starts: BTreeMap<&str, (usize, i64)> = BTreeMap::new();
    for (due, _) in decided.iter().filter(|(_, admission)| *admission == Admission::Take) {
        let quota = rooms.quota(&due.lane.queue);
        let of_key = (!due.scope.is_empty()).then_some((due.scope.as_str(), quota.per_key.rate));
        for (name, rate) in [Some((due.lane.queue.as_str(), quota.rate)), of_key].into_iter().flatten() {
            if let Some(rate) = rate {
                let known = starts.entry(name).or_insert((0, rate.since(rooms.now).as_ms()));
                known.0 += 1;
            }
        }
    }
    arguments.count(starts.len());
    for (name, (added, since)) in starts {
        arguments.text(name);
        arguments.count(added);
        arguments.text(since);
    }
}

/// When the next job is due that its queue has room for, or when a used up rate makes room.
async fn next_due(
    claim: &mut Claim<'_>,
    settings: &Settings,
    rooms: &Rooms,
) -> Result<Option<Timestamp>, StoreError> {
    let (_, heads) = claim::heads(claim.inner).await?;
    let wanted: Vec<Heads> =
        heads.into_iter().map(|lanes| claim::wanted(lanes, claim.request, settings)).collect();
    let first = first_by_queue(&wanted);
    let next = first.into_iter().filter_map(|(queue, first)| {
        if rooms.queue_room(queue) > 0 {
            Some(first)
        } else {
            rooms.queue_frees(queue).map(|free| first.max(free))
        }
    });
    Ok(next.min())
}

/// When the first job of each queue is due.
fn first_by_queue(heads: &[Heads]) -> BTreeMap<&Queue, Timestamp> {
    let mut first = BTreeMap::new();
    for (lane, due) in heads.iter().flatten() {
        let known = first.entry(&lane.queue).or_insert(*due);
        *known = (*known).min(*due);
    }
    first
}

fn busy() -> StoreError {
    StoreError::Busy("other claims hold the lock of bounded claims".into())
}

/// The right to make a bounded claim.
struct Lock<'a> {
    inner: &'a Inner,
    token: String,
}

impl<'a> Lock<'a> {
    /// Waits until nobody else has it.
    async fn take(inner: &'a Inner) -> Result<Self, StoreError> {
        let wait = async {
            loop {
                let mut arguments = Arguments::none();
                arguments.text(LOCK.as_millis());
                let token = answer::text(inner.run_on_records(&script::LOCK, arguments).await?)?;
                if !token.is_empty() {
                    return Ok(Self { inner, token });
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(500..2_000))).await;
            }
        };
        tokio::time::timeout(inner.options.patience, wait).await.map_err(|_| busy())?
    }

    /// What cannot be given back runs out by itself.
    async fn give_back(self) {
        let mut arguments = Arguments::none();
        arguments.text(&self.token);
        let _ = self.inner.run_on_records(&script::UNLOCK, arguments).await;
    }
}
