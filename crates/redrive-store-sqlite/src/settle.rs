//! Applies verdicts under their leases, each with its log entry.

use redrive_core::store::{Settled, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::verdict::Effect;
use redrive_core::{Lease, Reason, State, StoreError, Timestamp, Verdict};
use rusqlite::{CachedStatement, params};

use crate::error::Sorted;
use crate::leases::Place;
use crate::writer::Tx;

pub(crate) fn settle(tx: &mut Tx<'_>, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    let mut statements = Statements {
        end: tx.conn.prepare_cached(include_str!("../sql/settle_end.sql")).sorted()?,
        go_on: tx.conn.prepare_cached(include_str!("../sql/settle_on.sql")).sorted()?,
        log: tx.conn.prepare_cached(include_str!("../sql/settle_entry.sql")).sorted()?,
    };
    settlements.iter().map(|settlement| settle_one(tx, &mut statements, settlement)).collect()
}

struct Statements<'a> {
    end: CachedStatement<'a>,
    go_on: CachedStatement<'a>,
    log: CachedStatement<'a>,
}

fn settle_one(
    tx: &mut Tx<'_>,
    statements: &mut Statements<'_>,
    settlement: &Settlement,
) -> Result<Settled, StoreError> {
    let id = settlement.lease.id;
    let Some(place) = tx.leases.find(tx.conn, id)? else { return Ok(Settled::LeaseLost) };
    let Some(state) = statements.apply(settlement, &place, tx.now)? else { return Ok(Settled::LeaseLost) };
    statements.append(settlement, &place, state, tx.now)?;
    tx.leases.gave_back(id);
    tx.tally.leave(place.lane, State::Running, 1);
    tx.tally.enter(place.lane, state, 1);
    *tx.wake |= state.is_claimable();
    Ok(Settled::Applied(state))
}

impl Statements<'_> {
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
            let applied = if state.is_final() {
                self.end(settlement, place, &effect, cancelling, state, now)?
            } else {
                self.go_on(settlement, place, &effect, cancelling, state, now)?
            };
            if applied {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    fn end(
        &mut self,
        settlement: &Settlement,
        place: &Place,
        effect: &Effect,
        cancelling: bool,
        state: State,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Lease { id, epoch } = settlement.lease;
        let applied = self.end.execute(params![
            place.seq,
            id.0.as_bytes(),
            epoch as i64,
            cancelling,
            state.code(),
            now.as_ms(),
            effect.refund,
            ceil_ms(effect.budget_pause),
            settlement.error,
            output(&settlement.verdict),
            settlement.verdict.reason().map(Reason::name),
        ]);
        Ok(applied.sorted()? == 1)
    }

    fn go_on(
        &mut self,
        settlement: &Settlement,
        place: &Place,
        effect: &Effect,
        cancelling: bool,
        state: State,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Lease { id, epoch } = settlement.lease;
        let applied = self.go_on.execute(params![
            place.seq,
            id.0.as_bytes(),
            epoch as i64,
            cancelling,
            state.code(),
            effect.wait.map(|wait| now.after(wait).as_ms()),
            effect.refund,
            ceil_ms(effect.budget_pause),
            settlement.error,
            planned_wait_ms(effect, state),
        ]);
        Ok(applied.sorted()? == 1)
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
        let effect = settlement.verdict.effect();
        let next_run_at = effect.wait.filter(|_| state.is_claimable()).map(|wait| now.after(wait).as_ms());
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
            effect.wait.filter(|_| state.is_claimable()).map(ceil_ms),
            next_run_at,
        ]);
        logged.sorted().map(|_| ())
    }
}

/// Only a wait between two attempts counts for decorrelated jitter; a snooze is no such wait.
fn planned_wait_ms(effect: &Effect, state: State) -> Option<i64> {
    effect.wait.filter(|_| state == State::Retrying).map(ceil_ms)
}

fn output(verdict: &Verdict) -> Option<&[u8]> {
    match verdict {
        Verdict::Complete(output) => output.as_deref(),
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Wait
        | Verdict::Release
        | Verdict::DeadLetter(_)
        | Verdict::Cancel => None,
    }
}
