//! Where the scans of claims and reclaims start.
//!
//! A claim leaves dead entries at the head of its index. Vacuum removes them, but not while any session holds an old
//! snapshot, and then every claim would walk over all of them. So each node caches, for each lane, where its last claims ended, and
//! starts a little before that. Jobs that appear earlier, such as one whose transaction took long to commit, are found by scans that
//! start further back once in a while: a near scan half a second back, a full scan at the beginning of the index. A node that makes a job
//! due before the position lowers it, on the other nodes too. A read of the oldest due job has positions of its own, so that it never
//! makes claims miss a job. The same holds for leases: settled leases leave dead entries.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use redrive_core::store::ClaimRequest;
use redrive_core::{Kind, Queue, Timestamp};
use uuid::Uuid;

use crate::row::JobRow;

/// The time between two full scans of claims, and of reads of the oldest due job, while these are fast.
const FULL_CLAIM_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two near scans of claims while these are fast.
const NEAR_CLAIM_SCAN_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two full scans of leases while these are fast.
const FULL_LEASE_SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Near scans start this long before the current time at the latest, because jobs that are due may still be committed.
const LATE_JOB: Duration = Duration::from_millis(500);
/// Claims walk over at most this many dead entries of this node's own claims, and so start later than near scans during a backlog.
const DEAD_ENTRIES_MAX: usize = 2_000;
/// Lease scans start this long before the last complete one, because a claim may take long to commit.
const LATE_LEASE: Duration = Duration::from_secs(60);
/// Slow near and full scans become less frequent, so that each sort takes at most a twentieth of the time.
const SCAN_SHARE: u32 = 20;
/// A scan that has not ended after this time is assumed to be lost, because its caller was dropped.
const LOST_SCAN: Duration = Duration::from_secs(60);

/// A position in a lane: a due time and an id.
type Position = (i64, Uuid);

/// The position in each lane where this node's next claim starts.
#[derive(Debug, Default)]
pub(crate) struct ClaimPositions {
    by_lane: HashMap<i32, LanePosition>,
    /// Counts how often positions were lowered. A claim that started before the last time may have missed the job that appeared
    /// there, so it does not raise any position.
    lowered: u64,
    /// One for each set of queues and kinds, because a scan only covers the lanes of its own claim.
    schedules: HashMap<(Vec<Queue>, Vec<Kind>), ScanSchedules>,
    oldest_due: OldestDuePositions,
}

#[derive(Debug)]
struct ScanSchedules {
    near: ScanSchedule,
    full: ScanSchedule,
}

impl Default for ScanSchedules {
    fn default() -> Self {
        Self {
            near: ScanSchedule::new(NEAR_CLAIM_SCAN_INTERVAL),
            full: ScanSchedule::new(FULL_CLAIM_SCAN_INTERVAL),
        }
    }
}

/// Where claims from one lane start.
#[derive(Debug)]
struct LanePosition {
    /// Where near scans start.
    near: Position,
    /// Where the last claims ended, the earliest first, each with the number of its jobs. The jobs after the first end are dead entries
    /// that a claim which starts there walks over.
    ends: VecDeque<(Position, usize)>,
}

impl LanePosition {
    fn new(near: Position) -> Self {
        Self { near, ends: [(near, 0)].into() }
    }

    /// Where claims start that are no near scans.
    fn recent(&self) -> Position {
        self.ends.front().map_or(self.near, |(end, _)| self.near.max(*end))
    }

    fn raise(&mut self, near: Position, end: Position, jobs: usize) {
        self.near = self.near.max(near);
        if self.ends.back().is_none_or(|(last, _)| *last < end) {
            self.ends.push_back((end, jobs));
        }
        let dead =
            |ends: &VecDeque<(Position, usize)>| ends.iter().skip(1).map(|(_, jobs)| jobs).sum::<usize>();
        while dead(&self.ends) > DEAD_ENTRIES_MAX {
            self.ends.pop_front();
        }
    }

    fn lower(&mut self, to: Position) {
        if to < self.ends.back().map_or(self.near, |(end, _)| *end) {
            *self = Self::new(self.near.min(to));
        }
    }
}

/// How far back a claim starts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ScanRange {
    #[default]
    Recent,
    Near,
    Full,
}

/// The positions where a claim starts, as columns. A lane that is not listed is scanned from its beginning.
#[derive(Debug, Default)]
pub(crate) struct ClaimStart {
    range: ScanRange,
    lowered: u64,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
}

/// The due time in each lane from which on this node looks for the oldest due job.
#[derive(Debug)]
struct OldestDuePositions {
    by_lane: HashMap<i32, i64>,
    /// Counts how often positions were lowered. A read that started before the last time raises no position.
    lowered: u64,
    full_scan: ScanSchedule,
}

impl Default for OldestDuePositions {
    fn default() -> Self {
        Self { by_lane: HashMap::new(), lowered: 0, full_scan: ScanSchedule::new(FULL_CLAIM_SCAN_INTERVAL) }
    }
}

impl OldestDuePositions {
    fn lower(&mut self, at: i64) {
        self.lowered += 1;
        self.by_lane.values_mut().for_each(|position| *position = at.min(*position));
    }

    fn lower_lanes(&mut self, early: &HashMap<i32, i64>) {
        self.lowered += u64::from(!early.is_empty());
        for (lane, at) in early {
            self.by_lane.entry(*lane).and_modify(|position| *position = (*at).min(*position));
        }
    }
}

/// Where a read of the oldest due job starts, as columns. A lane that is not listed is read from its beginning.
#[derive(Debug)]
pub(crate) struct OldestDueStart {
    is_full: bool,
    lowered: u64,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<i64>,
}

/// The first due job of each lane.
#[derive(Debug)]
pub(crate) struct OldestDueRead {
    /// The store's time.
    pub(crate) now: Timestamp,
    pub(crate) lanes: Vec<i32>,
    /// Due times. None for a lane without a due job.
    pub(crate) first_due: Vec<Option<i64>>,
}

impl ClaimPositions {
    /// Returns where the next claim starts.
    pub(crate) fn start(&mut self, request: &ClaimRequest, now: Instant) -> ClaimStart {
        let schedules = self.schedules(request);
        let range = if schedules.full.try_start(now) {
            ScanRange::Full
        } else if schedules.near.try_start(now) {
            ScanRange::Near
        } else {
            ScanRange::Recent
        };
        let mut start = ClaimStart { range, lowered: self.lowered, ..ClaimStart::default() };
        for (lane, position) in &self.by_lane {
            let (at, id) = match range {
                ScanRange::Full => continue,
                ScanRange::Near => position.near,
                ScanRange::Recent => position.recent(),
            };
            start.lanes.push(*lane);
            start.at.push(at);
            start.ids.push(id);
        }
        start
    }

    /// Records that the statement of a claim has ended, and how long it took.
    pub(crate) fn record_scan(&mut self, request: &ClaimRequest, start: &ClaimStart, took: Duration) {
        let schedules = self.schedules(request);
        match start.range {
            ScanRange::Recent => {}
            ScanRange::Near => schedules.near.record(Instant::now(), took),
            ScanRange::Full => schedules.full.record(Instant::now(), took),
        }
    }

    /// Moves the positions to where a claim ended.
    pub(crate) fn record_claim(&mut self, start: &ClaimStart, claimed: &[JobRow], now: Timestamp) {
        if start.lowered != self.lowered {
            return;
        }
        let latest = (now.before(LATE_JOB).as_ms(), Uuid::nil());
        let mut last: HashMap<i32, (Position, usize)> = HashMap::new();
        for row in claimed {
            let (end, jobs) = last.entry(row.lane).or_insert(((i64::MIN, Uuid::nil()), 0));
            *end = (*end).max((row.next_run_at, row.id.0));
            *jobs += 1;
        }
        for (lane, (end, jobs)) in last {
            let near = end.min(latest);
            let position = self.by_lane.entry(lane).or_insert_with(|| LanePosition::new(near));
            // A scan that found early jobs may have left others behind them.
            if start.range != ScanRange::Recent && end < position.recent() {
                *position = LanePosition::new(near);
            }
            position.raise(near, end, jobs);
        }
    }

    /// Returns where a read of the oldest due job of all lanes starts.
    pub(crate) fn start_of_oldest_due(&mut self, now: Instant) -> OldestDueStart {
        let positions = &mut self.oldest_due;
        let is_full = positions.full_scan.try_start(now);
        let listed = positions.by_lane.iter().filter(|_| !is_full);
        let (lanes, at) = listed.map(|(lane, at)| (*lane, *at)).unzip();
        OldestDueStart { is_full, lowered: positions.lowered, lanes, at }
    }

    /// Records the first due job of each lane. The next read starts there, or close to the current time in lanes without one.
    pub(crate) fn record_oldest_due(&mut self, start: &OldestDueStart, read: &OldestDueRead, took: Duration) {
        let positions = &mut self.oldest_due;
        if start.is_full {
            positions.full_scan.record(Instant::now(), took);
        }
        if start.lowered != positions.lowered {
            return;
        }
        let latest = read.now.before(LATE_JOB).as_ms();
        for (lane, due) in read.lanes.iter().zip(&read.first_due) {
            positions.by_lane.insert(*lane, due.map_or(latest, |due| due.min(latest)));
        }
    }

    fn schedules(&mut self, request: &ClaimRequest) -> &mut ScanSchedules {
        self.schedules.entry((request.queues.clone(), request.kinds.clone())).or_default()
    }

    /// Lowers the position in every lane to this time, because a job will appear there.
    pub(crate) fn lower(&mut self, at: Timestamp) {
        self.oldest_due.lower(at.as_ms());
        for position in self.by_lane.values_mut() {
            position.lower((at.as_ms(), Uuid::nil()));
        }
    }

    /// Lowers the positions in these lanes to these times. Claims that run now may have passed the jobs there.
    pub(crate) fn lower_lanes(&mut self, early: &HashMap<i32, i64>) {
        self.lower_oldest_due(early);
        self.lowered += u64::from(!early.is_empty());
        for (lane, at) in early {
            if let Some(position) = self.by_lane.get_mut(lane) {
                position.lower((*at, Uuid::nil()));
            }
        }
    }

    /// Lowers the positions of reads of the oldest due job in these lanes. For lanes whose claims have no positions.
    pub(crate) fn lower_oldest_due(&mut self, early: &HashMap<i32, i64>) {
        self.oldest_due.lower_lanes(early);
    }

    /// Makes the next claims, and the next read of the oldest due job, start at the beginning of every lane.
    pub(crate) fn forget(&mut self) {
        let oldest_due =
            OldestDuePositions { lowered: self.oldest_due.lowered + 1, ..OldestDuePositions::default() };
        *self = Self { lowered: self.lowered + 1, oldest_due, ..Self::default() };
    }
}

/// The time at which this node's next scan for expired leases starts, by the kinds that it scans for.
#[derive(Debug, Default)]
pub(crate) struct LeasePositions {
    by_kinds: HashMap<Vec<Kind>, LeasePosition>,
}

#[derive(Debug)]
struct LeasePosition {
    /// The store's time at the last complete scan.
    scanned_at: Option<Timestamp>,
    full_scan: ScanSchedule,
}

impl LeasePositions {
    /// Returns the earliest end of a lease to scan, and whether the scan is a full one.
    ///
    /// `store_now` is the time of a store with a clock of its own, which may have been set back.
    pub(crate) fn start(&mut self, kinds: &[Kind], now: Instant, store_now: Option<i64>) -> (i64, bool) {
        let position = self.position(kinds);
        let scanned_at = position.scanned_at.filter(|at| store_now.is_none_or(|now| at.as_ms() <= now));
        match scanned_at {
            Some(at) if !position.full_scan.try_start(now) => (at.before(LATE_LEASE).as_ms(), false),
            Some(_) | None => (i64::MIN, true),
        }
    }

    /// Records a scan.
    pub(crate) fn record(&mut self, kinds: &[Kind], scan: LeaseScan) {
        let position = self.position(kinds);
        if scan.full {
            position.full_scan.record(Instant::now(), scan.took);
        }
        if scan.complete {
            position.scanned_at = Some(scan.now);
        }
    }

    fn position(&mut self, kinds: &[Kind]) -> &mut LeasePosition {
        let new =
            || LeasePosition { scanned_at: None, full_scan: ScanSchedule::new(FULL_LEASE_SCAN_INTERVAL) };
        self.by_kinds.entry(kinds.to_vec()).or_insert_with(new)
    }
}

/// A scan for expired leases.
pub(crate) struct LeaseScan {
    /// It started at the beginning of the index.
    pub(crate) full: bool,
    /// It took every lease that had expired.
    pub(crate) complete: bool,
    /// The store's time.
    pub(crate) now: Timestamp,
    pub(crate) took: Duration,
}

/// Schedules scans that may be slow: one now, then one per interval, less often while they are slow.
#[derive(Debug)]
pub(crate) struct ScanSchedule {
    interval: Duration,
    next: Option<Instant>,
}

impl ScanSchedule {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, next: None }
    }

    /// Returns true to one caller at a time, once per interval. That caller makes the scan; the others continue.
    pub(crate) fn try_start(&mut self, now: Instant) -> bool {
        let due = self.next.is_none_or(|next| next <= now);
        if due {
            self.next = Some(now + LOST_SCAN);
        }
        due
    }

    /// Records that a scan has ended, and how long it took.
    pub(crate) fn record(&mut self, now: Instant, took: Duration) {
        self.next = Some(now + (took * SCAN_SHARE).max(self.interval));
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::store::UnreadableJob;
    use redrive_core::{JobId, Lease, WorkerId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000_000);
    const SOON: Duration = Duration::from_millis(1);

    /// A claimed row. Only its lane and due time matter here.
    fn taken(lane: i32, next_run_at: i64) -> JobRow {
        let lease = Lease { id: JobId(Uuid::from_u128(next_run_at.unsigned_abs().into())), epoch: 1 };
        let job = Err(UnreadableJob { lease, run: 1, attempt: 1, problem: String::new() });
        JobRow { id: lease.id, lane, next_run_at, job }
    }

    fn request(queues: &[&str]) -> ClaimRequest {
        let queues = queues.iter().map(|queue| queue.parse().unwrap()).collect();
        let worker = WorkerId::new("w").unwrap();
        ClaimRequest { worker, queues, kinds: vec![], limit: 1, lease: SOON }
    }

    fn first_position(positions: &mut ClaimPositions, now: Instant) -> Option<i64> {
        let start = positions.start(&request(&[]), now);
        assert_ne!(start.range, ScanRange::Full);
        positions.record_scan(&request(&[]), &start, SOON);
        start.at.first().copied()
    }

    fn record(positions: &mut ClaimPositions, start: &ClaimStart, claimed: &[JobRow]) {
        positions.record_scan(&request(&[]), start, SOON);
        positions.record_claim(start, claimed, NOW);
    }

    #[test]
    fn claims_start_where_the_last_one_ended_minus_time_for_late_commits() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        assert!(full.range == ScanRange::Full && full.lanes.is_empty());
        record(&mut positions, &full, &[taken(1, 5_000), taken(1, 7_000)]);
        assert_eq!(first_position(&mut positions, start), Some(7_000));
        let next = positions.start(&request(&[]), start);
        record(&mut positions, &next, &[taken(1, 999_900)]);
        assert_eq!(first_position(&mut positions, start), Some(999_500));
        record(&mut positions, &next, &[taken(1, 8_000)]);
        assert_eq!(
            first_position(&mut positions, start),
            Some(999_500),
            "the position does not move back by itself"
        );
    }

    /// Claims `count` jobs that are due one after the other within the last 500 ms.
    fn claim_recent(positions: &mut ClaimPositions, start: Instant, first: i64, count: i64) {
        let claim = positions.start(&request(&[]), start);
        let claimed: Vec<JobRow> = (first..first + count).map(|n| taken(1, 999_600 + n / 100)).collect();
        record(positions, &claim, &claimed);
    }

    #[test]
    fn claims_during_a_backlog_walk_over_few_dead_entries() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        claim_recent(&mut positions, start, 0, 1_000);
        claim_recent(&mut positions, start, 1_000, 1_000);
        assert_eq!(first_position(&mut positions, start), Some(999_500));
        claim_recent(&mut positions, start, 2_000, 1_000);
        claim_recent(&mut positions, start, 3_000, 1_000);
        assert_eq!(first_position(&mut positions, start), Some(999_619), "where the second claim ended");
        let near = positions.start(&request(&[]), Instant::now() + 2 * NEAR_CLAIM_SCAN_INTERVAL);
        assert_eq!((near.range, near.at[0]), (ScanRange::Near, 999_500));
        record(&mut positions, &near, &[taken(1, 999_550)]);
        assert_eq!(
            first_position(&mut positions, start),
            Some(999_500),
            "an early job may not be the only one"
        );
    }

    #[test]
    fn an_early_job_found_by_a_full_scan_lowers_the_position() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        record(&mut positions, &full, &[taken(1, 500_000)]);
        let again = positions.start(&request(&[]), start + 2 * FULL_CLAIM_SCAN_INTERVAL);
        assert_eq!(again.range, ScanRange::Full);
        record(&mut positions, &again, &[taken(1, 3_000)]);
        assert_eq!(first_position(&mut positions, start), Some(3_000));
        positions.lower(Timestamp::from_ms(2_000));
        assert_eq!(first_position(&mut positions, start), Some(2_000));
        positions.forget();
        assert_eq!(positions.start(&request(&[]), start).range, ScanRange::Full);
    }

    #[test]
    fn a_claim_that_started_before_an_early_job_appeared_does_not_hide_it() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        record(&mut positions, &full, &[taken(1, 500_000)]);
        let before = positions.start(&request(&[]), start);
        positions.lower_lanes(&HashMap::from([(1, 3_000)]));
        record(&mut positions, &before, &[taken(1, 600_000)]);
        assert_eq!(first_position(&mut positions, start), Some(3_000));
        let after = positions.start(&request(&[]), start);
        record(&mut positions, &after, &[taken(1, 3_000), taken(1, 600_000)]);
        assert_eq!(first_position(&mut positions, start), Some(600_000));
    }

    /// Reads the oldest due jobs of the lanes 1 and 2. Returns where the read started in them, and whether it was full.
    fn read_oldest_due(
        positions: &mut ClaimPositions,
        at: Instant,
        first_due: [Option<i64>; 2],
    ) -> (bool, [Option<i64>; 2]) {
        let start = positions.start_of_oldest_due(at);
        let read = OldestDueRead { now: NOW, lanes: vec![1, 2], first_due: first_due.into() };
        positions.record_oldest_due(&start, &read, SOON);
        let from: HashMap<i32, i64> = start.lanes.into_iter().zip(start.at).collect();
        (start.is_full, [1, 2].map(|lane| from.get(&lane).copied()))
    }

    #[test]
    fn reads_of_the_oldest_due_job_walk_over_dead_entries_once_in_a_while_only() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let mut read = |at, first_due| read_oldest_due(&mut positions, at, first_due);
        assert_eq!(read(start, [Some(7_000), None]), (true, [None, None]));
        assert_eq!(read(start, [Some(9_000), None]), (false, [Some(7_000), Some(999_500)]));
        assert_eq!(read(start, [None, None]), (false, [Some(9_000), Some(999_500)]));
        // A job appears before the position. The next full scan finds it.
        let later = start + 2 * FULL_CLAIM_SCAN_INTERVAL;
        assert_eq!(read(later, [None, Some(5_000)]), (true, [None, None]));
        assert_eq!(read(start, [None, Some(5_000)]), (false, [Some(999_500), Some(5_000)]));
    }

    #[test]
    fn a_job_that_becomes_due_early_is_found_by_the_next_read_of_the_oldest_due_job() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        read_oldest_due(&mut positions, start, [None, None]);
        // The same time twice: a read in between moved the position back.
        for _ in 0..2 {
            positions.lower(Timestamp::from_ms(7_000));
            let read = read_oldest_due(&mut positions, start, [None, None]);
            assert_eq!(read, (false, [Some(7_000), Some(7_000)]));
        }
        positions.lower_oldest_due(&HashMap::from([(2, 6_000)]));
        assert_eq!(
            read_oldest_due(&mut positions, start, [None, None]),
            (false, [Some(999_500), Some(6_000)])
        );
    }

    #[test]
    fn a_read_of_the_oldest_due_job_moves_no_claim() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        read_oldest_due(&mut positions, start, [None, None]);
        claim_recent(&mut positions, start, 0, 1);
        let before = first_position(&mut positions, start);
        positions.lower(Timestamp::from_ms(7_000));
        read_oldest_due(&mut positions, start, [None, None]);
        assert_ne!(before, Some(7_000));
        assert_eq!(first_position(&mut positions, start), Some(7_000));
    }

    #[test]
    fn claims_with_different_queues_have_full_scans_of_their_own() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        for queues in [&[][..], &["a"], &["b"], &["a", "b"]] {
            assert_eq!(positions.start(&request(queues), start).range, ScanRange::Full, "{queues:?}");
            assert_ne!(positions.start(&request(queues), start).range, ScanRange::Full, "{queues:?}");
        }
    }

    #[test]
    fn lease_scans_start_some_time_before_the_last_complete_one() {
        let (mut positions, start) = (LeasePositions::default(), Instant::now());
        let kinds = [Kind::new("k").unwrap()];
        let scan = |full, complete, now| LeaseScan {
            full,
            complete,
            now: Timestamp::from_ms(now),
            took: Duration::from_millis(1),
        };
        assert_eq!(positions.start(&kinds, start, None), (i64::MIN, true));
        positions.record(&kinds, scan(true, false, 100_000));
        assert_eq!(positions.start(&kinds, start, None), (i64::MIN, true), "the last scan left some leases");
        positions.record(&kinds, scan(true, true, 100_000));
        assert_eq!(positions.start(&kinds, start, None), (40_000, false));
        assert_eq!(positions.start(&[], start, None), (i64::MIN, true), "other kinds were not scanned");
        assert_eq!(positions.start(&kinds, start + 2 * FULL_LEASE_SCAN_INTERVAL, None), (i64::MIN, true));
    }

    #[test]
    fn full_scans_are_regular_and_less_frequent_while_they_are_slow() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut schedule = ScanSchedule::new(second);
        assert!(schedule.try_start(start) && !schedule.try_start(start + 2 * second), "one caller at a time");
        schedule.record(start, Duration::from_millis(1));
        assert!(!schedule.try_start(start + second / 2) && schedule.try_start(start + second));
        schedule.record(start + second, second);
        assert!(!schedule.try_start(start + 20 * second) && schedule.try_start(start + 21 * second));
    }
}
