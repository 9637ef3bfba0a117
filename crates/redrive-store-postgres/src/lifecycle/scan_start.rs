//! Where the scans of claims and reclaims start.
//!
//! A claim leaves dead entries at the head of its index. Vacuum removes them, but not while any session holds an old
//! snapshot, and then every claim would walk over all of them. So each node caches, for each lane, the position where its last
//! claim ended, and starts there. Jobs that appear before that position, such as one whose transaction took long to commit, are
//! found by a full scan, which starts at the beginning of the index once in a while. A node that makes a job due before the
//! position lowers it, on the other nodes too. The same holds for leases: settled leases leave dead entries.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redrive_core::store::ClaimRequest;
use redrive_core::{Kind, Queue, Timestamp};
use uuid::Uuid;

use crate::row::JobRow;

/// The time between two full scans of claims while these are fast.
const FULL_CLAIM_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two full scans of leases while these are fast.
const FULL_LEASE_SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Claims start this long before the current time at the latest, because jobs that are due may still be committed.
const LATE_JOB: Duration = Duration::from_millis(500);
/// Lease scans start this long before the last complete one, because a claim may take long to commit.
const LATE_LEASE: Duration = Duration::from_secs(60);
/// Slow full scans become less frequent, so that they take at most a twentieth of the time.
const FULL_SCAN_SHARE: u32 = 20;

/// A position in a lane: a due time and an id.
type Position = (i64, Uuid);

/// The position in each lane where this node's next claim starts.
#[derive(Debug, Default)]
pub(crate) struct ClaimPositions {
    by_lane: HashMap<i32, Position>,
    /// Counts how often positions were lowered. A claim that started before the last time may have missed the job that appeared
    /// there, so it does not raise any position.
    lowered: u64,
    /// One schedule for each set of queues and kinds, because a full scan only covers the lanes of its own claim.
    full_scans: HashMap<(Vec<Queue>, Vec<Kind>), FullScanSchedule>,
}

/// The positions where a claim starts, as columns. A lane that is not listed is scanned from its beginning.
#[derive(Debug, Default)]
pub(crate) struct ClaimStart {
    pub(crate) full: bool,
    lowered: u64,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
}

impl ClaimPositions {
    /// Returns where the next claim starts.
    pub(crate) fn start(&mut self, request: &ClaimRequest, now: Instant) -> ClaimStart {
        if self.full_scan(request).try_start(now) {
            return ClaimStart { full: true, lowered: self.lowered, ..ClaimStart::default() };
        }
        let mut start = ClaimStart { lowered: self.lowered, ..ClaimStart::default() };
        for (lane, (at, id)) in &self.by_lane {
            start.lanes.push(*lane);
            start.at.push(*at);
            start.ids.push(*id);
        }
        start
    }

    /// Moves the positions to where a claim ended.
    pub(crate) fn record_claim(
        &mut self,
        request: &ClaimRequest,
        start: &ClaimStart,
        claimed: &[JobRow],
        now: Timestamp,
        took: Duration,
    ) {
        if start.full {
            self.full_scan(request).record(Instant::now(), took);
        }
        if start.lowered != self.lowered {
            return;
        }
        let latest = (now.before(LATE_JOB).as_ms(), Uuid::nil());
        let mut last: HashMap<i32, Position> = HashMap::new();
        for row in claimed {
            let position = last.entry(row.lane).or_insert((i64::MIN, Uuid::nil()));
            *position = (*position).max((row.next_run_at, row.id.0));
        }
        for (lane, end) in last {
            let end = end.min(latest);
            let position = self.by_lane.entry(lane).or_insert(end);
            // A full scan that found early jobs may have left others behind them.
            *position = if start.full { end } else { (*position).max(end) };
        }
    }

    fn full_scan(&mut self, request: &ClaimRequest) -> &mut FullScanSchedule {
        let key = (request.queues.clone(), request.kinds.clone());
        self.full_scans.entry(key).or_insert_with(|| FullScanSchedule::new(FULL_CLAIM_SCAN_INTERVAL))
    }

    /// Lowers the position in every lane to this time, because a job will appear there.
    pub(crate) fn lower(&mut self, at: Timestamp) {
        for position in self.by_lane.values_mut() {
            *position = (*position).min((at.as_ms(), Uuid::nil()));
        }
    }

    /// Lowers the positions in these lanes to these times. Claims that run now may have passed the jobs there.
    pub(crate) fn lower_lanes(&mut self, early: &HashMap<i32, i64>) {
        self.lowered += u64::from(!early.is_empty());
        for (lane, at) in early {
            if let Some(position) = self.by_lane.get_mut(lane) {
                *position = (*position).min((*at, Uuid::nil()));
            }
        }
    }

    /// Makes the next claims start at the beginning of every lane.
    pub(crate) fn forget(&mut self) {
        *self = Self { lowered: self.lowered + 1, ..Self::default() };
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
    full_scan: FullScanSchedule,
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
            || LeasePosition { scanned_at: None, full_scan: FullScanSchedule::new(FULL_LEASE_SCAN_INTERVAL) };
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

/// Schedules full scans: one now, then one per interval, less often while scans are slow.
#[derive(Debug)]
struct FullScanSchedule {
    interval: Duration,
    next: Option<Instant>,
}

impl FullScanSchedule {
    fn new(interval: Duration) -> Self {
        Self { interval, next: None }
    }

    /// Returns true to one caller per interval. That caller makes the full scan; the others continue.
    fn try_start(&mut self, now: Instant) -> bool {
        let due = self.next.is_none_or(|next| next <= now);
        if due {
            self.next = Some(now + self.interval);
        }
        due
    }

    /// Records that a full scan has ended, and how long it took.
    fn record(&mut self, now: Instant, took: Duration) {
        self.next = Some(now + (took * FULL_SCAN_SHARE).max(self.interval));
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
        assert!(!start.full);
        start.at.first().copied()
    }

    #[test]
    fn claims_start_where_the_last_one_ended_minus_time_for_late_commits() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        assert!(full.full && full.lanes.is_empty());
        positions.record_claim(&request(&[]), &full, &[taken(1, 5_000), taken(1, 7_000)], NOW, SOON);
        assert_eq!(first_position(&mut positions, start), Some(7_000));
        let next = positions.start(&request(&[]), start);
        positions.record_claim(&request(&[]), &next, &[taken(1, 999_900)], NOW, SOON);
        assert_eq!(first_position(&mut positions, start), Some(999_500));
        positions.record_claim(&request(&[]), &next, &[taken(1, 8_000)], NOW, SOON);
        assert_eq!(
            first_position(&mut positions, start),
            Some(999_500),
            "the position does not move back by itself"
        );
    }

    #[test]
    fn an_early_job_found_by_a_full_scan_lowers_the_position() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        positions.record_claim(&request(&[]), &full, &[taken(1, 500_000)], NOW, SOON);
        let again = positions.start(&request(&[]), start + 2 * FULL_CLAIM_SCAN_INTERVAL);
        assert!(again.full);
        positions.record_claim(&request(&[]), &again, &[taken(1, 3_000)], NOW, SOON);
        assert_eq!(first_position(&mut positions, start), Some(3_000));
        positions.lower(Timestamp::from_ms(2_000));
        assert_eq!(first_position(&mut positions, start), Some(2_000));
        positions.forget();
        assert!(positions.start(&request(&[]), start).full);
    }

    #[test]
    fn a_claim_that_started_before_an_early_job_appeared_does_not_hide_it() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        let full = positions.start(&request(&[]), start);
        positions.record_claim(&request(&[]), &full, &[taken(1, 500_000)], NOW, SOON);
        let before = positions.start(&request(&[]), start);
        positions.lower_lanes(&HashMap::from([(1, 3_000)]));
        positions.record_claim(&request(&[]), &before, &[taken(1, 600_000)], NOW, SOON);
        assert_eq!(first_position(&mut positions, start), Some(3_000));
        let after = positions.start(&request(&[]), start);
        positions.record_claim(&request(&[]), &after, &[taken(1, 3_000), taken(1, 600_000)], NOW, SOON);
        assert_eq!(first_position(&mut positions, start), Some(600_000));
    }

    #[test]
    fn claims_with_different_queues_have_full_scans_of_their_own() {
        let (mut positions, start) = (ClaimPositions::default(), Instant::now());
        for queues in [&[][..], &["a"], &["b"], &["a", "b"]] {
            assert!(positions.start(&request(queues), start).full, "{queues:?}");
            assert!(!positions.start(&request(queues), start).full, "{queues:?}");
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
        let mut schedule = FullScanSchedule::new(second);
        assert!(schedule.try_start(start) && !schedule.try_start(start), "one caller per interval");
        schedule.record(start, Duration::from_millis(1));
        assert!(!schedule.try_start(start + second / 2) && schedule.try_start(start + second));
        schedule.record(start + second, second);
        assert!(!schedule.try_start(start + 20 * second) && schedule.try_start(start + 21 * second));
    }
}
