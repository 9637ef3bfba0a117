//! Dead rows that pile up in redrive's tables, and why they would.

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::Row;

use super::durability::settings;
use super::{Patient, Thresholds, size, span};
use crate::error::Sorted;

/// One dead row for so many live ones is what vacuum leaves behind a busy queue at times.
const LIVE_PER_DEAD: i64 = 5;
/// So many dead rows for each live one, and ten times the least that matters: claims are slow already.
const DEAD_PER_LIVE_GRAVE: i64 = 5;

pub(super) async fn bloat(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let mut findings = switched_off(patient).await?;
    let rows = patient.pool.query(include_str!("../../sql/doctor_tables.sql"), &[]).await?;
    let tables = rows.iter().map(Table::read).collect::<Result<Vec<_>, _>>()?;
    for table in &tables {
        findings.extend(table.neglected());
        findings.extend(table.judge(patient.thresholds));
    }
    if findings.is_empty() {
        let evidence = tables.iter().map(Table::shown).collect::<Vec<_>>().join("; ");
        findings.push(Finding::fine("bloat", "dead rows are removed", evidence));
    }
    Ok(findings)
}

/// Autovacuum needs itself and the counts of rows.
async fn switched_off(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let settings = settings(patient, &["autovacuum", "track_counts"]).await?;
    let off = settings.iter().filter(|(_, setting)| setting.is_off()).map(|(name, setting)| {
        let what = "autovacuum is off: dead rows pile up and claims slow down without end";
        let remedy = format!("set {name} = on in postgresql.conf and reload");
        Finding::new(Gravity::Grave, "bloat", what, setting.shown(name), remedy)
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
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            name: row.try_get("name").sorted()?,
            live: row.try_get("live").sorted()?,
            dead: row.try_get("dead").sorted()?,
            bytes: row.try_get("bytes").sorted()?,
            vacuumed_s: row.try_get("vacuumed_s").sorted()?,
            autovacuum: row.try_get("autovacuum").sorted()?,
        })
    }

    fn shown(&self) -> String {
        let Self { name, live, dead, bytes, .. } = self;
        let vacuumed =
            self.vacuumed_s.map_or("never vacuumed".to_owned(), |s| format!("vacuumed {} ago", span(s)));
        format!("redrive.{name}: {live} live rows, {dead} dead, {}, {vacuumed}", size(*bytes))
    }

    fn neglected(&self) -> Option<Finding> {
        if self.autovacuum {
            return None;
        }
        let name = &self.name;
        let what = format!(
            "autovacuum is off for redrive.{name}: dead rows pile up and claims slow down without end"
        );
        let remedy = format!("ALTER TABLE redrive.{name} RESET (autovacuum_enabled)");
        Some(Finding::new(Gravity::Grave, "bloat", what, self.shown(), remedy))
    }

    fn judge(&self, thresholds: &Thresholds) -> Option<Finding> {
        let Self { name, live, dead, .. } = self;
        if *dead < thresholds.dead_rows_min || dead.saturating_mul(LIVE_PER_DEAD) < *live {
            return None;
        }
        let grave = *dead >= thresholds.dead_rows_min.saturating_mul(10)
            && *dead >= live.saturating_mul(DEAD_PER_LIVE_GRAVE);
        let gravity = if grave { Gravity::Grave } else { Gravity::Warning };
        let what = format!("redrive.{name} is bloated: vacuum does not keep up");
        let remedy = format!(
            "end what holds back vacuum if something does, then VACUUM (VERBOSE) redrive.{name}; if it comes back, raise \
             autovacuum_max_workers or maintenance_work_mem"
        );
        Some(Finding::new(gravity, "bloat", what, self.shown(), remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_rows_count_against_live_ones_once_they_are_many() {
        let thresholds = Thresholds::default();
        let (name, vacuumed_s) = ("jobs".to_owned(), None);
        let mut table = Table { name, live: 0, dead: 0, bytes: 0, vacuumed_s, autovacuum: true };
        for (live, dead, gravity) in [
            (0, 0, None),
            (0, 49_999, None),
            (0, 50_000, Some(Gravity::Warning)),
            (10_000_000, 200_000, None),
            (500_000, 100_000, Some(Gravity::Warning)),
            (1_000, 500_000, Some(Gravity::Grave)),
            (1_000_000, 900_000, Some(Gravity::Warning)),
        ] {
            (table.live, table.dead) = (live, dead);
            let judged = table.judge(&thresholds).map(|finding| finding.gravity);
            assert_eq!(judged, gravity, "{live} live, {dead} dead");
        }
    }
}
