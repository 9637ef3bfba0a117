//! Where the live part of each lane begins.
//!
//! A claim leaves dead entries behind it at the head of its index. They go when they are vacuumed, but while any session
//! holds an old snapshot they stay, and every claim would walk over all of them. So this node remembers up to where it
//! has claimed and begins there. What appears before that place, such as a job whose transaction took long to commit, is
//! found by a full look from the very beginning, once in a while. What this node or another puts there on purpose lowers the
//! place, so that the next claim finds it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redrive_core::store::ClaimRequest;
use redrive_core::{Kind, Queue, Timestamp};
use uuid::Uuid;

use crate::full_look::FullLook;
use crate::row::Read;

/// Between two full looks while they are cheap.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// What was due so long before a claim is not expected to appear any more, outside a full look.
const LATE: Duration = Duration::from_millis(500);

/// A place in a lane.
type Place = (i64, Uuid);

/// The places that this node has come to.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    by_lane: HashMap<i32, Place>,
    /// How often a place was lowered. A claim that began before cannot have seen what is there, so it raises no place.
    lowered: u64,
    /// One for each sort of claim: another's full look is at other lanes.
    full_looks: HashMap<(Vec<Queue>, Vec<Kind>), FullLook>,
}

/// Lanes with the places to begin at, as columns.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    pub(crate) full: bool,
    lowered: u64,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
}

impl Floors {
    /// Where the next claim begins.
    pub(crate) fn begin(&mut self, request: &ClaimRequest, now: Instant) -> Begin {
        if self.full_look(request).is_due(now) {
            return Begin { full: true, lowered: self.lowered, ..Begin::default() };
        }
        let mut begin = Begin { lowered: self.lowered, ..Begin::default() };
        for (lane, (at, id)) in &self.by_lane {
            begin.lanes.push(*lane);
            begin.at.push(*at);
            begin.ids.push(*id);
        }
        begin
    }

    /// Takes note of what a claim has taken.
    pub(crate) fn claimed(
        &mut self,
        request: &ClaimRequest,
        begin: &Begin,
        taken: &[Read],
        now: Timestamp,
        took: Duration,
    ) {
        if begin.full {
            self.full_look(request).made(Instant::now(), took);
        }
        if begin.lowered != self.lowered {
            return;
        }
        let late = (now.before(LATE).as_ms(), Uuid::nil());
        let mut last: HashMap<i32, Place> = HashMap::new();
        for read in taken {
            let place = last.entry(read.lane).or_insert((i64::MIN, Uuid::nil()));
            *place = (*place).max((read.next_run_at, read.id.0));
        }
        for (lane, place) in last {
            let place = place.min(late);
            let floor = self.by_lane.entry(lane).or_insert(place);
            // What a full look finds early may have more behind it.
            *floor = if begin.full { place } else { (*floor).max(place) };
        }
    }

    fn full_look(&mut self, request: &ClaimRequest) -> &mut FullLook {
        let sort = (request.queues.clone(), request.kinds.clone());
        self.full_looks.entry(sort).or_insert_with(|| FullLook::every(FULL_LOOK_EVERY))
    }

    /// Something appears at this time: a floor that is beyond comes down to it.
    pub(crate) fn lower(&mut self, at: Timestamp) {
        for floor in self.by_lane.values_mut() {
            *floor = (*floor).min((at.as_ms(), Uuid::nil()));
        }
    }

    /// These lanes have something at these times that claims which began before now may have passed over.
    pub(crate) fn lower_lanes(&mut self, early: &HashMap<i32, i64>) {
        self.lowered += u64::from(!early.is_empty());
        for (lane, at) in early {
            if let Some(floor) = self.by_lane.get_mut(lane) {
                *floor = (*floor).min((*at, Uuid::nil()));
            }
        }
    }

    /// Begins everywhere from the very beginning again.
    pub(crate) fn forget(&mut self) {
        *self = Self { lowered: self.lowered + 1, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::store::Unreadable;
    use redrive_core::{JobId, Lease, WorkerId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000_000);
    const SOON: Duration = Duration::from_millis(1);

    /// A row that was claimed; what else is in it does not matter here.
    fn taken(lane: i32, next_run_at: i64) -> Read {
        let lease = Lease { id: JobId(Uuid::from_u128(next_run_at.unsigned_abs().into())), epoch: 1 };
        let job = Err(Unreadable { lease, run: 1, attempt: 1, problem: String::new() });
        Read { id: lease.id, lane, next_run_at, job }
    }

    fn request(queues: &[&str]) -> ClaimRequest {
        let queues = queues.iter().map(|queue| queue.parse().unwrap()).collect();
        let worker = WorkerId::new("w").unwrap();
        ClaimRequest { worker, queues, kinds: vec![], limit: 1, lease: SOON }
    }

    fn begin(floors: &mut Floors, now: Instant) -> Option<i64> {
        let begin = floors.begin(&request(&[]), now);
        assert!(!begin.full);
        begin.at.first().copied()
    }

    #[test]
    fn claims_begin_where_the_last_one_ended_but_leave_room_for_late_commits() {
        let (mut floors, start) = (Floors::default(), Instant::now());
        let full = floors.begin(&request(&[]), start);
        assert!(full.full && full.lanes.is_empty());
        floors.claimed(&request(&[]), &full, &[taken(1, 5_000), taken(1, 7_000)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(7_000));
        let next = floors.begin(&request(&[]), start);
        floors.claimed(&request(&[]), &next, &[taken(1, 999_900)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(999_500));
        floors.claimed(&request(&[]), &next, &[taken(1, 8_000)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(999_500), "it does not go back by itself");
    }

    #[test]
    fn what_a_full_look_finds_early_has_more_behind_it() {
        let (mut floors, start) = (Floors::default(), Instant::now());
        let full = floors.begin(&request(&[]), start);
        floors.claimed(&request(&[]), &full, &[taken(1, 500_000)], NOW, SOON);
        let again = floors.begin(&request(&[]), start + 2 * FULL_LOOK_EVERY);
        assert!(again.full);
        floors.claimed(&request(&[]), &again, &[taken(1, 3_000)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(3_000));
        floors.lower(Timestamp::from_ms(2_000));
        assert_eq!(begin(&mut floors, start), Some(2_000));
        floors.forget();
        assert!(floors.begin(&request(&[]), start).full);
    }

    #[test]
    fn a_claim_that_began_before_something_early_came_does_not_hide_it() {
        let (mut floors, start) = (Floors::default(), Instant::now());
        let full = floors.begin(&request(&[]), start);
        floors.claimed(&request(&[]), &full, &[taken(1, 500_000)], NOW, SOON);
        let before = floors.begin(&request(&[]), start);
        floors.lower_lanes(&HashMap::from([(1, 3_000)]));
        floors.claimed(&request(&[]), &before, &[taken(1, 600_000)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(3_000));
        let after = floors.begin(&request(&[]), start);
        floors.claimed(&request(&[]), &after, &[taken(1, 3_000), taken(1, 600_000)], NOW, SOON);
        assert_eq!(begin(&mut floors, start), Some(600_000));
    }

    #[test]
    fn nobody_takes_the_full_look_of_another() {
        let (mut floors, start) = (Floors::default(), Instant::now());
        for queues in [&[][..], &["a"], &["b"], &["a", "b"]] {
            assert!(floors.begin(&request(queues), start).full, "{queues:?}");
            assert!(!floors.begin(&request(queues), start).full, "{queues:?}");
        }
    }
}
