//! Looks at a file for what would hurt, beside a service that may have it open, and changes nothing in it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use redrive_core::transfer::{SEALED, Seal};
use redrive_core::{Finding, Gravity, StoreError};
use rusqlite::{Connection, OpenFlags};

use crate::SqliteStore;
use crate::error::Sorted;
use crate::migrate::SCHEMA;
use crate::records::scan;

/// A log of writes that was not moved into the file up to here is out of hand: checkpoints keep it at some 32 MB.
const WAL_BYTES_WARNING: u64 = 1 << 30;

impl SqliteStore {
    /// What hurts or will in a file. It is read only; while another process has it open, what would take long is left out.
    pub fn doctor(path: impl AsRef<Path>) -> Result<Vec<Finding>, StoreError> {
        let path = path.as_ref();
        if !path.exists() {
            let what = "there is no file yet";
            let remedy = "start a service or run `redrive migrate`: both make it";
            return Ok(vec![Finding::new(
                Gravity::Warning,
                "schema",
                what,
                path.display().to_string(),
                remedy,
            )]);
        }
        let busy = is_open_elsewhere(path);
        let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).sorted()?;
        let content = if busy { Ok(left_out(path)) } else { content(&conn) };
        let mut findings = vec![or_damaged(schema(&conn))?, or_damaged(content)?, size(path)];
        findings.extend(seals(&conn));
        Ok(findings)
    }
}

/// Whether a process holds the lock that a store takes. It is let go at once: a service may start meanwhile.
fn is_open_elsewhere(path: &Path) -> bool {
    let lock = File::options().write(true).open(beside(path, "-lock"));
    lock.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A file that cannot be read as it should is a finding; one that cannot be reached is not.
fn or_damaged(found: Result<Finding, StoreError>) -> Result<Finding, StoreError> {
    match found {
        // What to do follows the problem in the error, and is said in its own place here.
        Err(StoreError::Corrupt(problem)) => {
            Ok(damaged(problem.split("; ").next().unwrap_or_default().to_owned()))
        }
        other => other,
    }
}

fn damaged(evidence: String) -> Finding {
    let remedy = "restore a backup, or recover what is left with the .recover command of the sqlite3 shell";
    Finding::new(Gravity::Grave, "content", "the file is damaged", evidence, remedy)
}

/// Whether the store was moved, or is being; a file without records is another check's matter.
fn seals(conn: &Connection) -> Vec<Finding> {
    let found = scan(conn, SEALED, "", usize::MAX >> 1).unwrap_or_default();
    found.iter().map(|record| Seal::finding(&record.id, &record.value)).collect()
}

fn schema(conn: &Connection) -> Result<Finding, StoreError> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'redrive_schema'";
    let there: i64 = conn.query_row(there, (), |row| row.get(0)).sorted()?;
    let found = "SELECT coalesce(max(version), 0) FROM redrive_schema";
    let found: u32 = if there == 0 { 0 } else { conn.query_row(found, (), |row| row.get(0)).sorted()? };
    let evidence = format!("schema {found}, this redrive makes {SCHEMA}");
    let migrate = "run `redrive migrate`, or start a service, which does it too";
    Ok(match found {
        0 => Finding::new(Gravity::Warning, "schema", "the file has no tables of redrive", evidence, migrate),
        found if found < SCHEMA => Finding::new(
            Gravity::Warning,
            "schema",
            "the tables are older than this redrive",
            evidence,
            migrate,
        ),
        found if found > SCHEMA => {
            let remedy = "upgrade redrive, or restore an older backup";
            Finding::new(
                Gravity::Grave,
                "schema",
                "the tables are too new for this redrive",
                evidence,
                remedy,
            )
        }
        _ => Finding::fine("schema", "the tables are up to date", evidence),
    })
}

/// Reads the whole file, as far as it can be checked without sorting.
fn content(conn: &Connection) -> Result<Finding, StoreError> {
    let mut check = conn.prepare("PRAGMA quick_check(5)").sorted()?;
    let rows = check.query_map((), |row| row.get::<_, String>(0)).sorted()?;
    let problems = rows.collect::<Result<Vec<_>, _>>().sorted()?;
    Ok(match problems.as_slice() {
        [only] if only == "ok" => Finding::fine("content", "the file is sound", "quick_check found nothing"),
        problems => damaged(problems.join("; ")),
    })
}

/// The check reads for as long as the file is large, and until it ends the log cannot start over.
fn left_out(path: &Path) -> Finding {
    Finding::new(
        Gravity::Note,
        "content",
        "another process has the file open, so its content was not checked",
        format!("{} is locked", beside(path, "-lock").display()),
        "to have it checked, stop the service or run this on a backup",
    )
}

fn size(path: &Path) -> Finding {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let (file, wal) = (bytes(path), bytes(&beside(path, "-wal")));
    let evidence = format!("{} in the file, {} in its log", mebibytes(file), mebibytes(wal));
    if wal > WAL_BYTES_WARNING {
        let remedy = "end what has been reading the file for long, a backup or a shell: the log cannot start over before";
        return Finding::new(Gravity::Warning, "size", "the log of writes is out of hand", evidence, remedy);
    }
    Finding::fine("size", "the log of writes is kept short", evidence)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom, Write as _};

    use super::*;
    use crate::Options;

    fn gravities(path: &Path) -> Vec<(&'static str, Gravity)> {
        let findings = SqliteStore::doctor(path).unwrap();
        findings.iter().map(|finding| (finding.check, finding.gravity)).collect()
    }

    #[test]
    fn a_file_is_looked_at_in_each_of_its_states() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        assert_eq!(gravities(&path), [("schema", Gravity::Warning)]);
        assert!(!path.exists(), "a look makes no file");

        let fine = [("schema", Gravity::Fine), ("content", Gravity::Fine), ("size", Gravity::Fine)];
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        assert_eq!(gravities(&path), [fine[0], ("content", Gravity::Note), fine[2]], "while it is open");
        drop(store);
        assert_eq!(gravities(&path), fine);

        let conn = Connection::open(&path).unwrap();
        for (version, gravity) in
            [(1, Gravity::Warning), (SCHEMA + 1, Gravity::Grave), (SCHEMA, Gravity::Fine)]
        {
            let set = format!("DELETE FROM redrive_schema; INSERT INTO redrive_schema VALUES ({version})");
            conn.execute_batch(&set).unwrap();
            assert_eq!(gravities(&path)[0], ("schema", gravity), "{version}");
        }
        drop(conn);

        let mut file = File::options().write(true).open(&path).unwrap();
        // In a page that nothing but the check reads: a count that is wrong, then nothing that is right.
        for (at, bytes) in [(-8192 + 7, &[7][..]), (-8192, &[0xa5; 8192])] {
            file.seek(SeekFrom::End(at)).unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(gravities(&path), [fine[0], ("content", Gravity::Grave), fine[2]], "{at}");
        }
    }

    #[test]
    fn a_log_that_only_grows_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        SqliteStore::migrate(&path).unwrap();
        // It takes no room on disk.
        File::create(beside(&path, "-wal")).unwrap().set_len(WAL_BYTES_WARNING + 1).unwrap();
        assert_eq!(size(&path).gravity, Gravity::Warning);
    }
}
