//! Checks for dead rows that pile up in redrive's tables.

use std::time::Duration;

use redrive_core::{Finding, Severity, text};
use redrive_sql::Statement;
use tokio_postgres::Row;

use super::durability::settings;
use super::{DoctorContext, Thresholds};
use crate::error::Result;
use crate::sql;

static TABLES: Statement = sql::DOCTOR.statement("tables");

/// Up to one dead row per this many live rows is normal behind a busy queue.
const LIVE_PER_DEAD: i64 = 5;
/// With this many dead rows per live row, and ten times the threshold, claims are slow already.
const DEAD_PER_LIVE_CRITICAL: i64 = 5;

pub(super) async fn bloat(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let mut findings = check_settings(context).await?;
    let rows = context.pool.query(&TABLES, &[]).await?;
    let tables = rows.iter().map(Table::read).collect::<Result<Vec<_>, _>>()?;
    for table in &tables {
        findings.extend(table.check_autovacuum());
        findings.extend(table.check_dead_rows(context.thresholds));
    }
    if findings.is_empty() {
        let evidence = tables.iter().map(Table::describe).collect::<Vec<_>>().join("; ");
        findings.push(Finding::ok("bloat", "dead rows are removed", evidence));
    }
    Ok(findings)
}

/// Checks that autovacuum is on. It needs track_counts.
async fn check_settings(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let settings = settings(context, &["autovacuum", "track_counts"]).await?;
    let off = settings.iter().filter(|(_, setting)| setting.is_off()).map(|(name, setting)| {
        let what = "autovacuum is off: dead rows pile up and claims slow down without end";
        let remedy = format!("set {name} = on in postgresql.conf and reload");
        Finding::new(Severity::Critical, "bloat", what, setting.describe(name), remedy)
    });
    Ok(off.collect())
}

#[derive(Debug)]
struct Table {
    name: String,
    live: i64,
    dead: i64,
    bytes: i64,
    vacuumed_s: Option<f64>,
    autovacuum: bool,
}

impl Table {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            name: row.try_get("name")?,
            live: row.try_get("live")?,
            dead: row.try_get("dead")?,
            bytes: row.try_get("bytes")?,
            vacuumed_s: row.try_get("vacuumed_s")?,
            autovacuum: row.try_get("autovacuum")?,
        })
    }

    fn describe(&self) -> String {
        let Self { name, live, dead, bytes, .. } = self;
        let vacuumed = self.vacuumed_s.map_or("never vacuumed".to_owned(), |s| {
            format!("vacuumed {} ago", text::duration(Duration::from_secs_f64(s.max(0.0))))
        });
        format!(
            "redrive.{name}: {live} live rows, {dead} dead, {}, {vacuumed}",
            text::bytes(bytes.unsigned_abs())
        )
    }

    fn check_autovacuum(&self) -> Option<Finding> {
        if self.autovacuum {
            return None;
        }
        let name = &self.name;
        let what = format!(
            "autovacuum is off for redrive.{name}: dead rows pile up and claims slow down without end"
        );
        let remedy = format!("ALTER TABLE redrive.{name} RESET (autovacuum_enabled)");
        Some(Finding::new(Severity::Critical, "bloat", what, self.describe(), remedy))
    }

    fn check_dead_rows(&self, thresholds: &Thresholds) -> Option<Finding> {
        let Self { name, live, dead, .. } = self;
        if *dead < thresholds.dead_rows_min || dead.saturating_mul(LIVE_PER_DEAD) < *live {
            return None;
        }
        let critical = *dead >= thresholds.dead_rows_min.saturating_mul(10)
            && *dead >= live.saturating_mul(DEAD_PER_LIVE_CRITICAL);
        let severity = if critical { Severity::Critical } else { Severity::Warning };
        let what = format!("redrive.{name} is bloated: vacuum does not keep up");
        let remedy = format!(
            "end whatever blocks vacuum, then VACUUM (VERBOSE) redrive.{name}; if it comes back, raise \
             autovacuum_max_workers or maintenance_work_mem"
        );
        Some(Finding::new(severity, "bloat", what, self.describe(), remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_dead_rows_are_compared_with_live_ones() {
        let thresholds = Thresholds::default();
        let (name, vacuumed_s) = ("jobs".to_owned(), None);
        let mut table = Table { name, live: 0, dead: 0, bytes: 0, vacuumed_s, autovacuum: true };
        for (live, dead, severity) in [
            (0, 0, None),
            (0, 49_999, None),
            (0, 50_000, Some(Severity::Warning)),
            (10_000_000, 200_000, None),
            (500_000, 100_000, Some(Severity::Warning)),
            (1_000, 500_000, Some(Severity::Critical)),
            (1_000_000, 900_000, Some(Severity::Warning)),
        ] {
            (table.live, table.dead) = (live, dead);
            let judged = table.check_dead_rows(&thresholds).map(|finding| finding.severity);
            assert_eq!(judged, severity, "{live} live, {dead} dead");
        }
    }
}
