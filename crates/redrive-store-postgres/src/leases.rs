//! Where the live part of the leases begins, for the same reason as in `floors`: settled leases leave dead entries.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redrive_core::{Kind, Timestamp};

use crate::full_look::FullLook;

/// Between two full looks while they are cheap.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(30);
/// A lease that ended so long before a complete look is not expected to appear any more, outside a full look: it would be
/// that of a claim whose commit took as long.
const LATE: Duration = Duration::from_secs(60);

/// Up to when this node has taken over what had ended, by the kinds it looked at.
#[derive(Debug, Default)]
pub(crate) struct LeaseFloors {
    by_kinds: HashMap<Vec<Kind>, Looked>,
}

#[derive(Debug)]
struct Looked {
    /// The store's time at the last complete look.
    at: Option<Timestamp>,
    full_look: FullLook,
}

impl LeaseFloors {
    /// The earliest end of a lease to look at, and whether that is the very beginning.
    ///
    /// A store with a clock of its own tells its time, because that may have been set back.
    pub(crate) fn begin(&mut self, kinds: &[Kind], now: Instant, store_now: Option<i64>) -> (i64, bool) {
        let looked = self.of(kinds);
        let at = looked.at.filter(|at| store_now.is_none_or(|now| at.as_ms() <= now));
        match at {
            Some(at) if !looked.full_look.is_due(now) => (at.before(LATE).as_ms(), false),
            Some(_) | None => (i64::MIN, true),
        }
    }

    /// Takes note of a look at a time of the store.
    pub(crate) fn looked(&mut self, kinds: &[Kind], look: Look) {
        let looked = self.of(kinds);
        if look.full {
            looked.full_look.made(Instant::now(), look.took);
        }
        if look.complete {
            looked.at = Some(look.now);
        }
    }

    fn of(&mut self, kinds: &[Kind]) -> &mut Looked {
        let new = || Looked { at: None, full_look: FullLook::every(FULL_LOOK_EVERY) };
        self.by_kinds.entry(kinds.to_vec()).or_insert_with(new)
    }
}

/// What a look was like.
pub(crate) struct Look {
    /// From the very beginning.
    pub(crate) full: bool,
    /// It took everything that had ended.
    pub(crate) complete: bool,
    /// The store's time.
    pub(crate) now: Timestamp,
    /// How long it took.
    pub(crate) took: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_begin_a_while_before_the_last_complete_one() {
        let (mut floors, start) = (LeaseFloors::default(), Instant::now());
        let kinds = [Kind::new("k").unwrap()];
        let look = |full, complete, now| Look {
            full,
            complete,
            now: Timestamp::from_ms(now),
            took: Duration::from_millis(1),
        };
        assert_eq!(floors.begin(&kinds, start, None), (i64::MIN, true));
        floors.looked(&kinds, look(true, false, 100_000));
        assert_eq!(floors.begin(&kinds, start, None), (i64::MIN, true), "it left some");
        floors.looked(&kinds, look(true, true, 100_000));
        assert_eq!(floors.begin(&kinds, start, None), (40_000, false));
        assert_eq!(floors.begin(&[], start, None), (i64::MIN, true), "other kinds were not looked at");
        assert_eq!(floors.begin(&kinds, start + 2 * FULL_LOOK_EVERY, None), (i64::MIN, true));
    }
}
