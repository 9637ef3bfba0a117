//! The writes of a worker under its leases: settle, which applies verdicts and logs attempts, and extend, which renews
//! leases.

use std::time::Duration;

use redrive_core::store::{ExtendResult, SettleResult, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{Lease, Reason, State, Timestamp, Verdict, WorkerId};
use redrive_sql::Statement;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::leased_rows::LeasedRow;
use super::{consecutive_ranges, enqueue};
use crate::error::Result;
use crate::limits::offer_free_slots;
use crate::operate::end_children;
use crate::row::WaitColumns;
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static SETTLE: Statement = LIFECYCLE.statement("settle");
static SETTLE_RANGE: Statement = LIFECYCLE.statement("settle_range");
static EXTEND: Statement = LIFECYCLE.statement("extend");
pub(crate) static INSERT_ATTEMPT: Statement = LIFECYCLE.statement("insert_attempt");

pub(crate) fn settle(tx: &mut Tx<'_>, settlements: &[Settlement]) -> Result<Vec<SettleResult>> {
    for settlement in settlements {
        enqueue::start_times(tx, &settlement.follow_ups)?;
    }
    let mut results = vec![SettleResult::LeaseLost; settlements.len()];
    let mut located = Vec::with_capacity(settlements.len());
    for (index, settlement) in settlements.iter().enumerate() {
        if let Some(row) = tx.leased.find(tx.conn, settlement.lease.id)? {
            located.push(LocatedSettlement { index, settlement, row });
        }
    }
    if settlements.iter().all(is_independent) {
        located.sort_by_key(|located| located.row.seq);
    }
    let mut statements = SettleStatements::prepare(tx.conn)?;
    for range in consecutive_ranges(&located, |located| located.row.seq, LocatedSettlement::fits) {
        let range = &located[range];
        if range.len() < 2 || !settle_range(tx, range, &mut results)? {
            for located in range {
                results[located.index] = settle_one(tx, &mut statements, located)?;
            }
        }
    }
    Ok(results)
}

/// Whether a settlement has the same result at any position in its batch. A follow-up depends on the settlements before
/// it. A dead or cancelled job ends its descendants, which may be settled in the same batch.
fn is_independent(settlement: &Settlement) -> bool {
    let ends_children = matches!(settlement.verdict, Verdict::DeadLetter(_) | Verdict::Cancel);
    settlement.follow_ups.is_empty() && !ends_children
}

/// A settlement and the row that it changes.
struct LocatedSettlement<'a> {
    index: usize,
    settlement: &'a Settlement,
    row: LeasedRow,
}

impl LocatedSettlement<'_> {
    /// Whether one statement can apply both: plain successes under the same epoch.
    fn fits(&self, next: &Self) -> bool {
        self.settlement.is_plain()
            && next.settlement.is_plain()
            && self.settlement.lease.epoch == next.settlement.lease.epoch
    }
}

/// Applies plain successes in one statement. Returns false, with nothing changed, if one of the leases is lost or a
/// cancel of its job was requested.
fn settle_range(
    tx: &mut Tx<'_>,
    range: &[LocatedSettlement<'_>],
    results: &mut [SettleResult],
) -> Result<bool> {
    let (first, last) = (range[0].row.seq, range[range.len() - 1].row.seq);
    let epoch = range[0].settlement.lease.epoch as i64;
    tx.conn.execute_batch("SAVEPOINT range")?;
    let mut statement = tx.conn.prepare_cached(&SETTLE_RANGE)?;
    let applied = statement.execute((first, last, epoch, tx.now.as_ms()))? == range.len();
    tx.conn.execute_batch(if applied { "RELEASE range" } else { "ROLLBACK TO range; RELEASE range" })?;
    if applied {
        tx.leased.ranges.remove(first, last);
        for located in range {
            results[located.index] = after_settle(tx, located, State::Succeeded)?;
        }
    }
    Ok(applied)
}

fn settle_one(
    tx: &mut Tx<'_>,
    statements: &mut SettleStatements<'_>,
    located: &LocatedSettlement<'_>,
) -> Result<SettleResult> {
    let LocatedSettlement { settlement, row, .. } = located;
    let Some(state) = statements.apply(settlement, row, tx.now)? else {
        return Ok(SettleResult::LeaseLost);
    };
    tx.leased.ranges.remove(row.seq, row.seq);
    statements.log(settlement, row, state, tx.now)?;
    let result = after_settle(tx, located, state)?;
    if !settlement.follow_ups.is_empty() {
        enqueue::insert_all(tx, &settlement.follow_ups)?;
    }
    Ok(result)
}

/// Updates the counts, offers the freed slot to a waiting job, and ends the children of a job that is dead or
/// cancelled.
fn after_settle(tx: &mut Tx<'_>, located: &LocatedSettlement<'_>, state: State) -> Result<SettleResult> {
    let LocatedSettlement { settlement, row, .. } = located;
    tx.leased.remove(settlement.lease.id);
    tx.counts.transition(row.lane, State::Running, state);
    *tx.wake |= state.is_claimable() || !tx.limits.is_empty();
    offer_free_slots(tx, row.lane, row.partition.as_deref())?;
    if matches!(state, State::Dead | State::Cancelled) {
        end_children(tx, settlement.lease.id, None)?;
    }
    Ok(SettleResult::Applied(state))
}

struct SettleStatements<'a> {
    settle: CachedStatement<'a>,
    insert_attempt: CachedStatement<'a>,
}

impl<'a> SettleStatements<'a> {
    fn prepare(conn: &'a Connection) -> Result<Self> {
        Ok(Self {
            settle: conn.prepare_cached(&SETTLE)?,
            insert_attempt: conn.prepare_cached(&INSERT_ATTEMPT)?,
        })
    }

    /// Applies a verdict. Returns the job's new state, or `None` if the lease is lost. Few jobs have a cancel request,
    /// so it tries the case without one first.
    fn apply(&mut self, settlement: &Settlement, row: &LeasedRow, now: Timestamp) -> Result<Option<State>> {
        let effect = settlement.verdict.effect();
        for (cancel_requested, state) in [(false, effect.state), (true, effect.state_if_cancelling)] {
            let wait = effect.wait.filter(|_| !state.is_final());
            let condition = WaitColumns::new(settlement.verdict.awaits().filter(|_| !state.is_final()));
            let changed = self.settle.execute(params![
                row.seq,
                settlement.lease.id.0.as_bytes(),
                settlement.lease.epoch as i64,
                cancel_requested,
                state.code(),
                state.is_final().then_some(now.as_ms()),
                wait.map(|wait| now.after(wait).as_ms()),
                // Decorrelated jitter builds on the last wait between two attempts; a snooze does not count.
                wait.filter(|_| state == State::Retrying).map(ceil_ms),
                effect.refund,
                ceil_ms(effect.budget_pause),
                settlement.error,
                settlement.verdict.output(),
                settlement.verdict.reason().map(Reason::name),
                settlement.status,
                condition.code,
                condition.name,
                condition.branch,
                condition.failures,
            ])?;
            if changed == 1 {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Logs the attempt, if the settlement reports one, with the state that followed.
    fn log(&mut self, settlement: &Settlement, row: &LeasedRow, state: State, now: Timestamp) -> Result<()> {
        let Some(report) = &settlement.entry else { return Ok(()) };
        let wait = settlement.verdict.effect().wait.filter(|_| state.is_claimable());
        self.insert_attempt.execute(params![
            settlement.lease.id.0.as_bytes(),
            settlement.lease.epoch as i64,
            report.run,
            report.attempt,
            report.started_at.as_ms(),
            ceil_ms(report.duration),
            report.outcome,
            report.error,
            report.detail,
            row.worker.as_ref().map(WorkerId::as_str),
            state.code(),
            wait.map(ceil_ms),
            wait.map(|wait| now.after(wait).as_ms()),
        ])?;
        Ok(())
    }
}

/// Renews leases, and reports requested cancels.
pub(crate) fn extend(tx: &mut Tx<'_>, leases: &[Lease], duration: Duration) -> Result<Vec<ExtendResult>> {
    let mut statement = tx.conn.prepare_cached(&EXTEND)?;
    let until = tx.now.after(duration);
    tx.leased.ranges.note_lease_end(until);
    let mut extend_one = |lease: &Lease| {
        let parameters = params![lease.id.0.as_bytes(), lease.epoch as i64, until.as_ms()];
        let cancel_requested = statement.query_row(parameters, |row| row.get(0)).optional()?;
        Ok(match cancel_requested {
            Some(true) => ExtendResult::CancelRequested,
            Some(false) => ExtendResult::Renewed,
            None => ExtendResult::LeaseLost,
        })
    };
    leases.iter().map(&mut extend_one).collect()
}
