//! Raw SQLite without an engine: the limit that the figures of the engine are compared with.

use std::path::Path;

use rusqlite::{Connection, params};

/// A table with just enough columns to claim and complete jobs.
const SCHEMA: &str = "
    CREATE TABLE job (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, run_at INTEGER NOT NULL,
                      attempt INTEGER NOT NULL, lease_until INTEGER, payload BLOB NOT NULL);
    CREATE INDEX due ON job (run_at) WHERE state = 0;";

/// Opens a database with the durability of the engine.
pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    Ok(conn)
}

/// Fills the bare table.
pub fn fill(conn: &mut Connection, jobs: usize, payload: &[u8]) -> rusqlite::Result<()> {
    conn.execute_batch(SCHEMA)?;
    let tx = conn.transaction()?;
    {
        let mut insert =
            tx.prepare("INSERT INTO job (state, run_at, attempt, payload) VALUES (0, ?1, 0, ?2)")?;
        for at in 0..jobs as i64 {
            insert.execute(params![at, payload])?;
        }
    }
    tx.commit()
}

/// Claims 1000 jobs with one UPDATE … RETURNING and completes them with one UPDATE each, until none is left.
pub fn drain(conn: &mut Connection) -> rusqlite::Result<usize> {
    let mut drained = 0;
    loop {
        let tx = conn.transaction()?;
        let claimed: Vec<(i64, Vec<u8>)> = tx
            .prepare_cached(
                "UPDATE job SET state = 1, attempt = attempt + 1, lease_until = ?1 WHERE id IN
                 (SELECT id FROM job WHERE state = 0 AND run_at <= ?1 ORDER BY run_at LIMIT 1000)
                 RETURNING id, payload",
            )?
            .query_map([i64::MAX], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        tx.commit()?;
        if claimed.is_empty() {
            return Ok(drained);
        }
        let tx = conn.transaction()?;
        {
            let mut done = tx.prepare_cached("UPDATE job SET state = 2, lease_until = NULL WHERE id = ?1")?;
            for (id, _) in &claimed {
                done.execute([id])?;
            }
        }
        tx.commit()?;
        drained += claimed.len();
    }
}

/// Inserts the rows that an enqueue writes, `batch` per commit.
pub fn insert_same_row(
    conn: &mut Connection,
    jobs: usize,
    batch: usize,
    payload: &[u8],
) -> rusqlite::Result<()> {
    conn.execute(
        "INSERT INTO redrive_lanes (lane, queue, kind, priority) VALUES (1, 'default', 'bench', 5)",
        (),
    )?;
    for first in (0..jobs).step_by(batch) {
        let tx = conn.transaction()?;
        {
            let mut insert = tx.prepare_cached(
                "INSERT INTO redrive_jobs
                 (id, lane, state, next_run_at, created_at, began_at, tenant, policy, payload)
                 VALUES (?1, 1, 0, ?2, ?2, ?2, '', 'inline:000102030405060708090a0b0c0d0e0f@1', ?3)",
            )?;
            for at in first..jobs.min(first + batch) {
                let id = uuid::Uuid::now_v7();
                insert.execute(params![id.as_bytes(), 1_700_000_000_000 + at as i64, payload])?;
            }
        }
        tx.commit()?;
    }
    Ok(())
}
