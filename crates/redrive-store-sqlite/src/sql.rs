//! The statements of this store: one file in `sql/` for each group of operations.

use redrive_sql::SqlFile;

use crate::row::JOB_COLUMNS;

/// The placeholders of all files.
const VALUES: &[(&str, &str)] = &[
    ("job_columns", JOB_COLUMNS),
    // As redrive_core::next_epoch.
    ("next_epoch", "epoch + CASE WHEN epoch & 65535 = 65535 THEN 65536 ELSE 1 END"),
];

pub(crate) const LIFECYCLE: SqlFile = SqlFile::new(include_str!("../sql/lifecycle.sql"), VALUES);
pub(crate) const OPERATE: SqlFile = SqlFile::new(include_str!("../sql/operate.sql"), VALUES);
pub(crate) const STEPS: SqlFile = SqlFile::new(include_str!("../sql/steps.sql"), VALUES);
pub(crate) const LIMITS: SqlFile = SqlFile::new(include_str!("../sql/limits.sql"), VALUES);
pub(crate) const READ: SqlFile = SqlFile::new(include_str!("../sql/read.sql"), VALUES);
pub(crate) const RECORDS: SqlFile = SqlFile::new(include_str!("../sql/records.sql"), VALUES);
pub(crate) const TRANSFER: SqlFile = SqlFile::new(include_str!("../sql/transfer.sql"), VALUES);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redrive_core::policy::presets;
    use redrive_core::{JobId, Kind, NewJob, PolicyRef, Start, Store as _};
    use rusqlite::Connection;
    use uuid::Uuid;

    use super::*;
    use crate::{Options, SqliteStore};

    #[test]
    fn every_statement_fits_the_schema() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        SqliteStore::migrate(&path).unwrap();
        let conn = Connection::open(&path).unwrap();
        for file in [LIFECYCLE, OPERATE, STEPS, LIMITS, READ, RECORDS, TRANSFER] {
            for name in file.names() {
                let statement = file.statement(name);
                if let Err(error) = conn.prepare(&statement) {
                    panic!("{name}: {error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn claims_and_scans_walk_an_index_and_do_not_sort() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        for batch in 0..20 {
            let jobs = (0..1000).map(|n| future_job(batch * 1000 + n));
            store.enqueue(jobs.collect()).await.unwrap();
        }
        drop(store);
        let conn = Connection::open(&path).unwrap();
        for (file, name, index) in [
            (LIFECYCLE, "claim_due", "COVERING INDEX redrive_due (lane=? AND next_run_at<?)"),
            (LIFECYCLE, "first_due", "COVERING INDEX redrive_due (lane=?)"),
            (
                LIFECYCLE,
                "expired_jobs",
                "INDEX redrive_finished (state=? AND finished_at>? AND finished_at<?)",
            ),
            (STEPS, "has_live_child", "COVERING INDEX redrive_children (parent=? AND branch=? AND state<?)"),
            (STEPS, "waiting_jobs", "INDEX redrive_awaiting (id>?)"),
            (TRANSFER, "export_jobs", "INDEX redrive_ids (id>?)"),
            (READ, "oldest_examined", "COVERING INDEX redrive_ids (id<?)"),
            (READ, "oldest_examined_dead", "COVERING INDEX redrive_dead (id<?)"),
            (READ, "count_before", "COVERING INDEX redrive_ids (id<?)"),
            (READ, "count_dead_before", "COVERING INDEX redrive_dead (id<?)"),
        ] {
            // SQLite sorts only those jobs by id that ended in the same millisecond.
            let cheap = [
                "USE TEMP B-TREE FOR LAST TERM OF ORDER BY\n",
                "CORRELATED SCALAR SUBQUERY 1\n",
                "SEARCH parent USING INDEX redrive_ids (id=?)\n",
            ];
            let plan = query_plan(&conn, &file.statement(name));
            let plan = cheap.iter().fold(plan, |plan, step| plan.replace(step, ""));
            assert_eq!(plan, format!("SEARCH redrive_jobs USING {index}\n"), "{name}");
        }
        for (file, name) in
            [(LIFECYCLE, "earliest_lease_end"), (LIFECYCLE, "expired_leases"), (READ, "list_running")]
        {
            let plan = query_plan(&conn, &file.statement(name));
            let jobs = "SEARCH redrive_jobs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)\n";
            assert!(plan.contains(&format!(" redrive_lease_ranges\n{jobs}")), "{name}: {plan}");
        }
        let plan = query_plan(&conn, &LIFECYCLE.statement("claim_due"));
        assert!(!plan.contains("TEMP"), "thousands may be due in the same millisecond: {plan}");
    }

    fn future_job(number: u128) -> NewJob {
        let kind = Kind::new("k").unwrap();
        let policy = PolicyRef::inline(&presets::quadratic());
        let start = Start::After(Duration::from_secs(3600));
        NewJob { start, ..NewJob::new(JobId(Uuid::from_u128(number)), kind, policy, Vec::new()) }
    }

    fn query_plan(conn: &Connection, sql: &str) -> String {
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let mut rows = statement.raw_query();
        let mut plan = String::new();
        while let Some(row) = rows.next().unwrap() {
            plan += &row.get::<_, String>(3).unwrap();
            plan.push('\n');
        }
        plan
    }
}
