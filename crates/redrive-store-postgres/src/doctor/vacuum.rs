//! Checks what blocks vacuum: an old transaction, a prepared transaction, a replication slot, or a standby.
//!
//! A claim scans the dead rows of earlier claims. While vacuum cannot remove them, each claim is slower than the one before.

use std::time::Duration;

use redrive_core::{Finding, Severity, text};
use redrive_sql::Statement;
use tokio_postgres::Row;

use super::{DoctorContext, Thresholds};
use crate::error::Result;
use crate::sql;

static VACUUM_BLOCKERS: Statement = sql::DOCTOR.statement("vacuum_blockers");
static REPLICATION_SLOTS: Statement = sql::DOCTOR.statement("replication_slots");

pub(super) async fn vacuum(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let rows = context.pool.query(&VACUUM_BLOCKERS, &[]).await?;
    let blockers = rows.iter().map(Blocker::read).collect::<Result<Vec<_>, _>>()?;
    let mut findings: Vec<Finding> =
        blockers.iter().filter_map(|blocker| blocker.judge(context.thresholds)).collect();
    findings.extend(hidden(&blockers));
    findings.extend(slots(context).await?);
    if findings.is_empty() {
        let oldest = blockers.iter().filter_map(|blocker| blocker.age_s).fold(0.0, f64::max);
        let evidence = format!(
            "the oldest transaction is {} old, and no slot is far behind",
            text::duration(Duration::from_secs_f64(oldest.max(0.0)))
        );
        findings.push(Finding::ok("vacuum", "nothing blocks vacuum", evidence));
    }
    Ok(findings)
}

/// A transaction that blocks vacuum.
#[derive(Debug)]
struct Blocker {
    /// The process id of a session.
    pid: Option<i32>,
    /// The name of a prepared transaction.
    prepared: Option<String>,
    owner: Option<String>,
    application: Option<String>,
    state: Option<String>,
    query: Option<String>,
    /// Not known for standbys, nor for sessions of other users without pg_read_all_stats.
    age_s: Option<f64>,
    /// The number of transactions that have begun since.
    transactions: Option<i32>,
}

impl Blocker {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            pid: row.try_get("pid")?,
            prepared: row.try_get("prepared")?,
            owner: row.try_get("owner")?,
            application: row.try_get("application")?,
            state: row.try_get("state")?,
            query: row.try_get("query")?,
            age_s: row.try_get("age_s")?,
            transactions: row.try_get("transactions")?,
        })
    }

    /// A finding if the transaction has lasted too long.
    fn judge(&self, thresholds: &Thresholds) -> Option<Finding> {
        let behind = self.transactions.unwrap_or(0);
        let severity = match self.age_s {
            Some(age) if age >= thresholds.vacuum_blocked_critical.as_secs_f64() => Severity::Critical,
            Some(age) if age >= thresholds.vacuum_blocked_warning.as_secs_f64() => Severity::Warning,
            None if behind >= thresholds.replication_lag_critical => Severity::Critical,
            None if behind >= thresholds.replication_lag_warning => Severity::Warning,
            Some(_) | None => return None,
        };
        let (what, remedy) = match (&self.prepared, self.pid) {
            (Some(name), _) => {
                let name = name.replace('\'', "''");
                let remedy = format!(
                    "COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'; if nothing here uses two-phase commit, set max_prepared_transactions = 0"
                );
                ("a prepared transaction blocks vacuum", remedy)
            }
            (None, pid) => {
                let remedy = format!(
                    "end it in its program, or SELECT pg_terminate_backend({}); idle_in_transaction_session_timeout \
                     ends forgotten ones by itself",
                    pid.unwrap_or(0)
                );
                ("a transaction blocks vacuum, and claims slow down meanwhile", remedy)
            }
        };
        Some(Finding::new(severity, "vacuum", what, self.describe(), remedy))
    }

    fn describe(&self) -> String {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let parts = [
            self.pid.map(|pid| format!("pid {pid}")),
            self.prepared.as_ref().map(|name| format!("prepared as {name:?}")),
            self.age_s.map(|age| format!("for {}", text::duration(Duration::from_secs_f64(age.max(0.0))))),
            self.transactions.map(|count| format!("{count} transactions behind")),
            text(&self.owner).map(|owner| format!("user {owner}")),
            text(&self.application).map(|name| format!("application {name}")),
            text(&self.state),
            text(&self.query).map(|query| format!("query: {query}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Whether the server hides its age from this role. The feedback of a standby has no age.
    fn is_hidden(&self) -> bool {
        self.age_s.is_none() && self.query.as_deref() == Some("<insufficient privilege>")
    }
}

fn hidden(blockers: &[Blocker]) -> Option<Finding> {
    let hidden: Vec<&Blocker> = blockers.iter().filter(|blocker| blocker.is_hidden()).collect();
    let oldest = hidden.iter().max_by_key(|blocker| blocker.transactions)?;
    let what = "this role may not see how long other users' transactions block vacuum";
    let evidence = format!("{} of them; the furthest behind: {}", hidden.len(), oldest.describe());
    let remedy = "GRANT pg_read_all_stats TO this role, or run the doctor as a role that has it";
    Some(Finding::new(Severity::Note, "vacuum", what, evidence, remedy))
}

async fn slots(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let rows = context.pool.query(&REPLICATION_SLOTS, &[]).await?;
    let judged = rows.iter().map(|row| judge_slot(row, context.thresholds));
    Ok(judged.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// A finding if a slot is too far behind. A slot that blocks only the vacuum of the catalog does not slow down claims.
fn judge_slot(row: &Row, thresholds: &Thresholds) -> Result<Option<Finding>> {
    let name: String = row.try_get("name")?;
    let rows: Option<i32> = row.try_get("transactions")?;
    let catalog: Option<i32> = row.try_get("catalog_transactions")?;
    let severity = match (rows, catalog) {
        (Some(rows), _) if rows >= thresholds.replication_lag_critical => Severity::Critical,
        (Some(rows), _) if rows >= thresholds.replication_lag_warning => Severity::Warning,
        (_, Some(catalog)) if catalog >= thresholds.replication_lag_warning => Severity::Warning,
        (_, _) => return Ok(None),
    };
    let state = match (row.try_get("active")?, row.try_get::<_, Option<i32>>("pid")?) {
        (true, Some(pid)) => format!("read by pid {pid}"),
        (true, None) => "read by someone".to_owned(),
        (false, _) => "read by nobody".to_owned(),
    };
    let log: Option<i64> = row.try_get("log_bytes")?;
    let parts = [
        Some(format!("slot {name}, {state}")),
        rows.map(|rows| format!("{rows} transactions behind")),
        catalog.map(|rows| format!("{rows} transactions behind for the catalog")),
        log.map(|bytes| format!("keeps {} of log", text::bytes(bytes.unsigned_abs()))),
    ];
    let evidence = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let quoted = name.replace('\'', "''");
    let remedy = format!("let its reader catch up, or drop it: SELECT pg_drop_replication_slot('{quoted}')");
    Ok(Some(Finding::new(severity, "vacuum", "a replication slot blocks vacuum", evidence, remedy)))
}
