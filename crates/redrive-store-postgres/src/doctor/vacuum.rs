//! What keeps vacuum from removing dead rows: a transaction, a prepared one, a replication slot, a standby.
//!
//! A claim walks over the dead rows of those that came before it. While they cannot be removed, each is slower.

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::Row;

use super::{Patient, Thresholds, size, span};
use crate::error::Sorted;

pub(super) async fn vacuum(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_holders.sql"), &[]).await?;
    let holders = rows.iter().map(Holder::read).collect::<Result<Vec<_>, _>>()?;
    let mut findings: Vec<Finding> =
        holders.iter().filter_map(|holder| holder.judge(patient.thresholds)).collect();
    findings.extend(hidden(&holders));
    findings.extend(slots(patient).await?);
    if findings.is_empty() {
        let oldest = holders.iter().filter_map(|holder| holder.age_s).fold(0.0, f64::max);
        let evidence = format!("the oldest transaction is {} old, and no slot is far behind", span(oldest));
        findings.push(Finding::fine("vacuum", "nothing holds back vacuum", evidence));
    }
    Ok(findings)
}

/// Who holds it back.
#[derive(Debug)]
struct Holder {
    /// Of a session.
    pid: Option<i32>,
    /// The name of a prepared transaction.
    prepared: Option<String>,
    owner: Option<String>,
    application: Option<String>,
    state: Option<String>,
    query: Option<String>,
    /// Not known of other users' sessions without pg_read_all_stats, nor of standbys.
    age_s: Option<f64>,
    /// How many have begun since.
    transactions: Option<i32>,
}

impl Holder {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            pid: row.try_get("pid").sorted()?,
            prepared: row.try_get("prepared").sorted()?,
            owner: row.try_get("owner").sorted()?,
            application: row.try_get("application").sorted()?,
            state: row.try_get("state").sorted()?,
            query: row.try_get("query").sorted()?,
            age_s: row.try_get("age_s").sorted()?,
            transactions: row.try_get("transactions").sorted()?,
        })
    }

    /// A finding if it has lasted too long.
    fn judge(&self, thresholds: &Thresholds) -> Option<Finding> {
        let behind = self.transactions.unwrap_or(0);
        let gravity = match self.age_s {
            Some(age) if age >= thresholds.held_grave.as_secs_f64() => Gravity::Grave,
            Some(age) if age >= thresholds.held_warning.as_secs_f64() => Gravity::Warning,
            None if behind >= thresholds.behind_grave => Gravity::Grave,
            None if behind >= thresholds.behind_warning => Gravity::Warning,
            Some(_) | None => return None,
        };
        let (what, remedy) = match (&self.prepared, self.pid) {
            (Some(name), _) => {
                let name = name.replace('\'', "''");
                let remedy = format!(
                    "COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'; if nothing here uses two-phase commit, set max_prepared_transactions = 0"
                );
                ("a prepared transaction holds back vacuum", remedy)
            }
            (None, pid) => {
                let remedy = format!(
                    "end it in its program, or SELECT pg_terminate_backend({}); idle_in_transaction_session_timeout \
                     ends forgotten ones by itself",
                    pid.unwrap_or(0)
                );
                ("a transaction holds back vacuum, and claims slow down meanwhile", remedy)
            }
        };
        Some(Finding::new(gravity, "vacuum", what, self.shown(), remedy))
    }

    fn shown(&self) -> String {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let parts = [
            self.pid.map(|pid| format!("pid {pid}")),
            self.prepared.as_ref().map(|name| format!("prepared as {name:?}")),
            self.age_s.map(|age| format!("for {}", span(age))),
            self.transactions.map(|count| format!("{count} transactions behind")),
            text(&self.owner).map(|owner| format!("user {owner}")),
            text(&self.application).map(|name| format!("application {name}")),
            text(&self.state),
            text(&self.query).map(|query| format!("query: {query}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Whether its age is kept from this role; a standby's feedback has none.
    fn is_hidden(&self) -> bool {
        self.age_s.is_none() && self.query.as_deref() == Some("<insufficient privilege>")
    }
}

fn hidden(holders: &[Holder]) -> Option<Finding> {
    let hidden: Vec<&Holder> = holders.iter().filter(|holder| holder.is_hidden()).collect();
    let oldest = hidden.iter().max_by_key(|holder| holder.transactions)?;
    let what = "this role may not see how long other users' transactions hold back vacuum";
    let evidence = format!("{} of them; the furthest behind: {}", hidden.len(), oldest.shown());
    let remedy = "GRANT pg_read_all_stats TO this role, or look again as one that has it";
    Some(Finding::new(Gravity::Note, "vacuum", what, evidence, remedy))
}

async fn slots(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_slots.sql"), &[]).await?;
    let judged = rows.iter().map(|row| judge_slot(row, patient.thresholds));
    Ok(judged.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// A slot that is too far behind. One that holds back the catalog alone does not slow claims.
fn judge_slot(row: &Row, thresholds: &Thresholds) -> Result<Option<Finding>, StoreError> {
    let name: String = row.try_get("name").sorted()?;
    let rows: Option<i32> = row.try_get("transactions").sorted()?;
    let catalog: Option<i32> = row.try_get("catalog_transactions").sorted()?;
    let gravity = match (rows, catalog) {
        (Some(rows), _) if rows >= thresholds.behind_grave => Gravity::Grave,
        (Some(rows), _) if rows >= thresholds.behind_warning => Gravity::Warning,
        (_, Some(catalog)) if catalog >= thresholds.behind_warning => Gravity::Warning,
        (_, _) => return Ok(None),
    };
    let state = match (row.try_get("active").sorted()?, row.try_get::<_, Option<i32>>("pid").sorted()?) {
        (true, Some(pid)) => format!("read by pid {pid}"),
        (true, None) => "read by someone".to_owned(),
        (false, _) => "read by nobody".to_owned(),
    };
    let log: Option<i64> = row.try_get("log_bytes").sorted()?;
    let parts = [
        Some(format!("slot {name}, {state}")),
        rows.map(|rows| format!("{rows} transactions behind")),
        catalog.map(|rows| format!("{rows} transactions behind for the catalog")),
        log.map(|bytes| format!("keeps {} of log", size(bytes))),
    ];
    let evidence = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let quoted = name.replace('\'', "''");
    let remedy = format!("let its reader catch up, or drop it: SELECT pg_drop_replication_slot('{quoted}')");
    Ok(Some(Finding::new(gravity, "vacuum", "a replication slot holds back vacuum", evidence, remedy)))
}
