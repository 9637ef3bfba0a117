//! Where the live part of each lane begins.
//!
//! A claim leaves dead entries behind it at the head of its index. They go when they are vacuumed, but while any session
//! holds an old snapshot they stay, and every claim would walk over all of them. So this node remembers up to where it
//! has claimed and begins there. What appears before that place, such as a job whose transaction took long to commit, is
//! found by a full look from the very beginning, once in a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redrive_core::Timestamp;
use uuid::Uuid;

use crate::row::Read;

/// The longest time between two full looks while they are cheap.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// A full look that takes long is made so much less often: they cost a twentieth of the time at most.
const FULL_LOOK_SHARE: u32 = 20;
/// What was due so long before a claim is not expected to appear any more, outside a full look.
const LATE: Duration = Duration::from_millis(500);

/// A place in a lane.
type Place = (i64, Uuid);

/// The places that this node has come to.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    by_lane: HashMap<i32, Place>,
    next_full_look: Option<Instant>,
}

/// Lanes with the places to begin at, as columns.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    pub(crate) full: bool,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
}

impl Floors {
    /// Where the next claim begins.
    pub(crate) fn begin(&mut self, now: Instant) -> Begin {
        if self.next_full_look.is_none_or(|at| at <= now) {
            // One claim makes the full look; others go on meanwhile.
            self.next_full_look = Some(now + FULL_LOOK_EVERY);
            return Begin { full: true, ..Begin::default() };
        }
        let mut begin = Begin::default();
        for (lane, (at, id)) in &self.by_lane {
            begin.lanes.push(*lane);
            begin.at.push(*at);
            begin.ids.push(*id);
        }
        begin
    }

    /// Takes note of what a claim has taken.
    pub(crate) fn claimed(&mut self, begin: &Begin, taken: &[Read], now: Timestamp, took: Duration) {
        if begin.full {
            let pause = (took * FULL_LOOK_SHARE).max(FULL_LOOK_EVERY);
            self.next_full_look = Some(Instant::now() + pause);
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

    /// Something appears at this time: a floor that is beyond comes down to it.
    pub(crate) fn lower(&mut self, at: Timestamp) {
        for floor in self.by_lane.values_mut() {
            *floor = (*floor).min((at.as_ms(), Uuid::nil()));
        }
    }

    /// Begins everywhere from the very beginning again.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
