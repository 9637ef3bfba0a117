//! Checks a file for problems without changing it. A service may have the file open meanwhile.

use std::fs::{File, TryLockError};
use std::path::Path;

use redrive_core::transfer::{SEALED, Seal};
use redrive_core::{Finding, Severity, StoreError};
use rusqlite::{Connection, OpenFlags};

use crate::SqliteStore;
use crate::error::Result;
use crate::open::with_suffix;
use crate::records::scan;
use crate::schema::SCHEMA;

/// Checkpoints keep the write-ahead log at about 32 MB. A log of this size shows that they cannot complete.
const WAL_BYTES_WARNING: u64 = 1 << 30;

impl SqliteStore {
    /// Checks a file and returns what it found. Reads only. Skips the slow check of the content while another process
    /// has the file open.
    pub fn doctor(path: impl AsRef<Path>) -> Result<Vec<Finding>, StoreError> {
        let path = path.as_ref();
        if !path.exists() {
            let remedy = "start a service or run `redrive migrate`: both create it";
            let evidence = path.display().to_string();
            return Ok(vec![Finding::new(
                Severity::Warning,
                "schema",
                "there is no file yet",
                evidence,
                remedy,
            )]);
        }
        Ok(check_file(path)?)
    }
}

fn check_file(path: &Path) -> Result<Vec<Finding>> {
    let is_open = is_open_elsewhere(path);
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let content = if is_open { Ok(content_not_checked(path)) } else { check_content(&conn) };
    let mut findings = vec![or_damaged(check_schema(&conn))?, or_damaged(content)?, check_size(path)];
    findings.extend(seals(&conn));
    Ok(findings)
}

/// Whether a process holds the lock that an open store takes. Releases the lock at once, because a service may start
/// meanwhile.
fn is_open_elsewhere(path: &Path) -> bool {
    let lock = File::options().write(true).open(with_suffix(path, "-lock"));
    lock.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Turns the error of a damaged file into a finding. Other errors mean that the file could not be checked.
fn or_damaged(finding: Result<Finding>) -> Result<Finding> {
    match finding.map_err(StoreError::from) {
        // The error ends with a remedy, which the finding has in a field of its own.
        Err(StoreError::Corrupt(problem)) => {
            Ok(damaged(problem.split("; ").next().unwrap_or_default().to_owned()))
        }
        other => Ok(other?),
    }
}

fn damaged(evidence: String) -> Finding {
    let remedy =
        "restore a backup, or recover the readable rows with the .recover command of the sqlite3 shell";
    Finding::new(Severity::Critical, "content", "the file is damaged", evidence, remedy)
}

/// The seals of a store that was moved, or is being moved. The schema check reports a file without records.
fn seals(conn: &Connection) -> Vec<Finding> {
    let records = scan(conn, SEALED, "", usize::MAX >> 1).unwrap_or_default();
    records.iter().map(|record| Seal::finding(&record.id, &record.value)).collect()
}

fn check_schema(conn: &Connection) -> Result<Finding> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE name = 'redrive_schema'";
    let exists: i64 = conn.query_row(exists, (), |row| row.get(0))?;
    let version = "SELECT coalesce(max(version), 0) FROM redrive_schema";
    let version: u32 = if exists == 0 { 0 } else { conn.query_row(version, (), |row| row.get(0))? };
    let evidence = format!("schema {version}, this version of redrive creates {SCHEMA}");
    let migrate = "run `redrive migrate`, or start a service, which does it too";
    let warning = |what| Finding::new(Severity::Warning, "schema", what, evidence.clone(), migrate);
    Ok(match version {
        0 => warning("the file has no tables of redrive"),
        version if version < SCHEMA => warning("the tables are older than this redrive"),
        version if version > SCHEMA => {
            let what = "the tables are too new for this redrive";
            let remedy = "upgrade redrive, or restore an older backup";
            Finding::new(Severity::Critical, "schema", what, evidence, remedy)
        }
        _ => Finding::ok("schema", "the tables are up to date", evidence),
    })
}

/// Reads the whole file with SQLite's quick check.
fn check_content(conn: &Connection) -> Result<Finding> {
    let mut check = conn.prepare("PRAGMA quick_check(5)")?;
    let rows = check.query_map((), |row| row.get::<_, String>(0))?;
    let problems = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(match problems.as_slice() {
        [only] if only == "ok" => Finding::ok("content", "the file is sound", "quick_check found nothing"),
        problems => damaged(problems.join("; ")),
    })
}

/// A check of a large file takes a long time, and the write-ahead log grows until it ends.
fn content_not_checked(path: &Path) -> Finding {
    Finding::new(
        Severity::Note,
        "content",
        "another process has the file open, so its content was not checked",
        format!("{} is locked", with_suffix(path, "-lock").display()),
        "to check it, stop the service, or check a backup",
    )
}

fn check_size(path: &Path) -> Finding {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let (file, wal) = (bytes(path), bytes(&with_suffix(path, "-wal")));
    let evidence = format!(
        "{} in the file, {} in the write-ahead log",
        redrive_core::text::bytes(file),
        redrive_core::text::bytes(wal)
    );
    if wal > WAL_BYTES_WARNING {
        let what = "the write-ahead log keeps growing";
        let remedy = "end any process that has been reading the file for a long time, such as a backup or a shell: it keeps SQLite from emptying the log";
        return Finding::new(Severity::Warning, "size", what, evidence, remedy);
    }
    Finding::ok("size", "the write-ahead log is short", evidence)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom, Write as _};

    use super::*;
    use crate::Options;

    fn severities(path: &Path) -> Vec<(&'static str, Severity)> {
        let findings = SqliteStore::doctor(path).unwrap();
        findings.iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn each_state_of_a_file_has_its_findings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        assert_eq!(severities(&path), [("schema", Severity::Warning)]);
        assert!(!path.exists(), "a check creates no file");

        let sound = [("schema", Severity::Ok), ("content", Severity::Ok), ("size", Severity::Ok)];
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        assert_eq!(
            severities(&path),
            [sound[0], ("content", Severity::Note), sound[2]],
            "while the store is open"
        );
        drop(store);
        assert_eq!(severities(&path), sound);

        let conn = Connection::open(&path).unwrap();
        for (version, severity) in
            [(1, Severity::Warning), (SCHEMA + 1, Severity::Critical), (SCHEMA, Severity::Ok)]
        {
            let set = format!("DELETE FROM redrive_schema; INSERT INTO redrive_schema VALUES ({version})");
            conn.execute_batch(&set).unwrap();
            assert_eq!(severities(&path)[0], ("schema", severity), "{version}");
        }
        drop(conn);

        let mut file = File::options().write(true).open(&path).unwrap();
        // Damages a page that only the check reads: first a counter in it, then all of it.
        for (at, bytes) in [(-8192 + 7, &[7][..]), (-8192, &[0xa5; 8192])] {
            file.seek(SeekFrom::End(at)).unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(severities(&path), [sound[0], ("content", Severity::Critical), sound[2]], "{at}");
        }
    }

    #[test]
    fn a_write_ahead_log_that_only_grows_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        SqliteStore::migrate(&path).unwrap();
        // A sparse file: it takes no space on disk.
        File::create(with_suffix(&path, "-wal")).unwrap().set_len(WAL_BYTES_WARNING + 1).unwrap();
        assert_eq!(check_size(&path).severity, Severity::Warning);
    }
}
