//! Applies verdicts under their leases, each with its log entry.

use redrive_core::store::{Settled, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{Reason, State, StoreError, Timestamp};
use rusqlite::{CachedStatement, Connection, params};

use crate::awaits;
use crate::cancel::end_below;
use crate::enqueue;
use crate::error::Sorted;
use crate::leases::Place;
use crate::runs::runs;
use crate::turns::pass_on;
use crate::writer::Tx;

pub(crate) fn settle(tx: &mut Tx<'_>, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    for settlement in settlements {
        enqueue::starts(tx, &settlement.follow_ups)?;
    }
    let mut results = vec![Settled::LeaseLost; settlements.len()];
    let mut found = Vec::with_capacity(settlements.len());
    for (index, settlement) in settlements.iter().enumerate() {
        if let Some(place) = tx.leases.find(tx.conn, settlement.lease.id)? {
            found.push(Found { index, settlement, place });
        }
    }
    // What follows up depends on what came before it, so that only batches without such are brought into another order.
    if settlements.iter().all(|settlement| settlement.follow_ups.is_empty()) {
        found.sort_by_key(|found| found.place.seq);
    }
    let mut statements = Statements::prepare(tx.conn)?;
    for run in runs(&found, |found| found.place.seq, Found::goes_with) {
        let run = &found[run];
        if run.len() < 2 || !settle_run(tx, run, &mut results)? {
            for found in run {
                results[found.index] = settle_one(tx, &mut statements, found)?;
            }
        }
    }
    Ok(results)
}

/// A settlement whose row has been found.
struct Found<'a> {
    index: usize,
    settlement: &'a Settlement,
    place: Place,
}

impl Found<'_> {
    /// Whether one statement can settle both: plain successes under the same epoch.
    fn goes_with(&self, next: &Self) -> bool {
        self.settlement.is_plain()
            && next.settlement.is_plain()
            && self.settlement.lease.epoch == next.settlement.lease.epoch
    }
}

/// Settles plain successes in one statement; false, with nothing changed, when one of the leases is lost or its job is
/// being cancelled.
fn settle_run(tx: &mut Tx<'_>, run: &[Found<'_>], results: &mut [Settled]) -> Result<bool, StoreError> {
    let (first, last) = (run[0].place.seq, run[run.len() - 1].place.seq);
    let epoch = run[0].settlement.lease.epoch as i64;
    tx.conn.execute_batch("SAVEPOINT run").sorted()?;
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/settle_run.sql")).sorted()?;
    let applied = statement.execute((first, last, epoch, tx.now.as_ms())).sorted()? == run.len();
    tx.conn.execute_batch(if applied { "RELEASE run" } else { "ROLLBACK TO run; RELEASE run" }).sorted()?;
    if applied {
        for found in run {
            results[found.index] = settled(tx, found, State::Succeeded)?;
        }
    }
    Ok(applied)
}

fn settle_one(
    tx: &mut Tx<'_>,
    statements: &mut Statements<'_>,
    found: &Found<'_>,
) -> Result<Settled, StoreError> {
    let Found { settlement, place, .. } = found;
    let Some(state) = statements.apply(settlement, place, tx.now)? else { return Ok(Settled::LeaseLost) };
    statements.append(settlement, place, state, tx.now)?;
    let settled = settled(tx, found, state)?;
    if !settlement.follow_ups.is_empty() {
        enqueue::add_all(tx, &settlement.follow_ups)?;
    }
    Ok(settled)
}

/// Keeps the books of an applied settlement, and lets those go on for whom it has made room.
fn settled(tx: &mut Tx<'_>, found: &Found<'_>, state: State) -> Result<Settled, StoreError> {
    tx.leases.gave_back(found.settlement.lease.id);
    tx.tally.leave(found.place.lane, State::Running, 1);
    tx.tally.enter(found.place.lane, state, 1);
    *tx.wake |= state.is_claimable() || !tx.quotas.is_empty();
    pass_on(tx, found.place.lane, found.place.partition.as_deref())?;
    if matches!(state, State::Dead | State::Cancelled) {
        end_below(tx, found.settlement.lease.id)?;
    }
    Ok(Settled::Applied(state))
}

struct Statements<'a> {
    settle: CachedStatement<'a>,
    log: CachedStatement<'a>,
}

impl<'a> Statements<'a> {
    fn prepare(conn: &'a Connection) -> Result<Self, StoreError> {
        Ok(Self {
            settle: conn.prepare_cached(include_str!("../sql/settle.sql")).sorted()?,
            log: conn.prepare_cached(include_str!("../sql/settle_entry.sql")).sorted()?,
        })
    }

    /// The state that the settlement led to; none when the lease was lost. Hardly any job is being cancelled, so the
    /// common case is tried first and is one statement.
    fn apply(
        &mut self,
        settlement: &Settlement,
        place: &Place,
        now: Timestamp,
    ) -> Result<Option<State>, StoreError> {
        let effect = settlement.verdict.effect();
        for (cancelling, state) in [(false, effect.state), (true, effect.state_if_cancelling)] {
            let wait = effect.wait.filter(|_| !state.is_final());
            let awaits = awaits::Columns::of(settlement.verdict.awaits().filter(|_| !state.is_final()));
            let applied = self.settle.execute(params![
                place.seq,
                settlement.lease.id.0.as_bytes(),
                settlement.lease.epoch as i64,
                cancelling,
                state.code(),
                state.is_final().then_some(now.as_ms()),
                wait.map(|wait| now.after(wait).as_ms()),
                // Only a wait between two attempts counts for decorrelated jitter; a snooze is no such wait.
                wait.filter(|_| state == State::Retrying).map(ceil_ms),
                effect.refund,
                ceil_ms(effect.budget_pause),
                settlement.error,
                settlement.verdict.output(),
                settlement.verdict.reason().map(Reason::name),
                settlement.status,
                awaits.code,
                awaits.name,
                awaits.branch,
                awaits.failures,
            ]);
            if applied.sorted()? == 1 {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Logs the attempt, if it is to be logged, with what its settlement came to.
    fn append(
        &mut self,
        settlement: &Settlement,
        place: &Place,
        state: State,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(entry) = &settlement.entry else { return Ok(()) };
        let wait = settlement.verdict.effect().wait.filter(|_| state.is_claimable());
        let logged = self.log.execute(params![
            settlement.lease.id.0.as_bytes(),
            settlement.lease.epoch as i64,
            entry.run,
            entry.attempt,
            entry.started_at.as_ms(),
            ceil_ms(entry.duration),
            entry.outcome,
            entry.error,
            entry.detail,
            place.worker.as_ref().map(redrive_core::WorkerId::as_str),
            state.code(),
            wait.map(ceil_ms),
            wait.map(|wait| now.after(wait).as_ms()),
        ]);
        logged.sorted().map(|_| ())
    }
}
