//! The server itself, its version and whether it takes writes, and the schema of redrive's tables.

use redrive_core::{Finding, Gravity, StoreError};

use super::{Patient, Tables};
use crate::error::Sorted;
use crate::error::nothing;
use crate::migrate::{Found, SCHEMA, found};

/// The oldest Postgres with what the tables are made of.
const VERSION_MIN: i32 = 13;

/// Until when each version gets repairs; written down on 2026-11-15, see postgresql.org/support/versioning.
const SUPPORTED_UNTIL: [(i32, &str); 6] = [
    (13, "2025-11-13"),
    (14, "2026-11-12"),
    (15, "2027-11-11"),
    (16, "2028-11-09"),
    (17, "2029-11-08"),
    (18, "2030-11-14"),
];

/// What the server says of itself.
#[derive(Debug)]
pub(super) struct Server {
    version: String,
    major: i32,
    /// The date by its clock, as 2026-11-15.
    today: String,
    standby: bool,
    read_only: bool,
}

/// Asks the server what it is; the first word with it.
pub(super) async fn ask(patient: &Patient<'_>) -> Result<Server, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_server.sql"), &[]).await?;
    let row = rows.first().ok_or_else(nothing)?;
    Ok(Server {
        version: row.try_get("version").sorted()?,
        major: row.try_get::<_, i32>("number").sorted()? / 10_000,
        today: row.try_get("today").sorted()?,
        standby: row.try_get("standby").sorted()?,
        read_only: row.try_get("read_only").sorted()?,
    })
}

pub(super) fn version(server: &Server) -> Finding {
    let Server { version, major, today, .. } = server;
    if *major < VERSION_MIN {
        let evidence = format!("Postgres {version}; redrive needs {VERSION_MIN} or newer");
        let remedy = "upgrade the server";
        return Finding::new(Gravity::Grave, "version", "the server is too old", evidence, remedy);
    }
    // Dates of this form sort as text.
    match SUPPORTED_UNTIL.iter().find(|(known, _)| known == major) {
        Some((_, until)) if today.as_str() > *until => Finding::new(
            Gravity::Warning,
            "version",
            "the server's version gets no more repairs, for security neither",
            format!("Postgres {version}, supported until {until}"),
            "upgrade the server",
        ),
        Some((_, until)) => {
            let evidence = format!("Postgres {version}, supported until {until}");
            Finding::fine("version", "the server's version is supported", evidence)
        }
        None => {
            let evidence = format!("Postgres {version}, which came after this redrive");
            Finding::fine("version", "the server's version is new", evidence)
        }
    }
}

/// What keeps jobs from being written at all.
pub(super) fn writes(server: &Server) -> Option<Finding> {
    let (evidence, remedy) = match server {
        Server { standby: true, .. } => ("pg_is_in_recovery() is true", "name the primary in the address"),
        Server { read_only: true, .. } => (
            "transaction_read_only = on",
            "set default_transaction_read_only = off for this role, this database or the server",
        ),
        Server { .. } => return None,
    };
    Some(Finding::new(Gravity::Grave, "writes", "the server takes no writes", evidence, remedy))
}

/// How redrive's tables are, and what this role may do with them.
pub(super) async fn schema(patient: &Patient<'_>) -> Result<(Vec<Finding>, Tables), StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_schema.sql"), &[]).await?;
    let Some(row) = rows.first() else { return Ok((vec![missing()], Tables::Missing)) };
    let (readable, writable) =
        (row.try_get::<_, bool>("readable").sorted()?, row.try_get::<_, bool>("writable").sorted()?);
    let mut findings = Vec::new();
    if !writable {
        findings.push(Finding::new(
            Gravity::Note,
            "schema",
            "this role may not write jobs",
            "it lacks USAGE on the schema redrive, or SELECT, INSERT, UPDATE or DELETE on redrive.jobs",
            "for a role that only watches this is right; a service's needs them",
        ));
    }
    if !readable {
        let evidence = "it lacks SELECT on redrive.schema";
        let remedy = "GRANT SELECT ON redrive.schema TO this role";
        let what = "this role may not see which schema the tables are at";
        findings.push(Finding::new(Gravity::Note, "schema", what, evidence, remedy));
        return Ok((findings, Tables::Known));
    }
    let patience = patient.patience();
    let found = patient.pool.with_patience(patience, async |client| found(client).await).await?;
    findings.push(judge(&found));
    let tables = if found.version == SCHEMA { Tables::Known } else { Tables::Other };
    Ok((findings, tables))
}

const MIGRATE: &str = "run `redrive migrate`, or start a service, which does it too";

fn missing() -> Finding {
    let evidence = "there is no redrive.schema in this database";
    Finding::new(Gravity::Warning, "schema", "the tables of redrive are missing", evidence, MIGRATE)
}

fn judge(found: &Found) -> Finding {
    let evidence = format!("schema {}, this redrive makes {SCHEMA}", found.version);
    match found {
        Found { version: 0, .. } => missing(),
        Found { version, .. } if *version < SCHEMA => Finding::new(
            Gravity::Warning,
            "schema",
            "the tables are older than this redrive",
            evidence,
            MIGRATE,
        ),
        Found { compatible_since, .. } if *compatible_since > SCHEMA => Finding::new(
            Gravity::Grave,
            "schema",
            "the tables are too new for this redrive, which will not start on them",
            format!("{evidence}; they need one that knows {compatible_since}"),
            "upgrade redrive",
        ),
        Found { version, .. } if *version > SCHEMA => Finding::new(
            Gravity::Note,
            "schema",
            "the tables are newer than this redrive, which works with them; their indexes were not compared",
            evidence,
            "upgrade redrive when the deploy is through",
        ),
        Found { .. } => Finding::fine("schema", "the tables are up to date", evidence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(major: i32, today: &str) -> Server {
        let (version, today) = (format!("{major}.1"), today.to_owned());
        Server { version, major, today, standby: false, read_only: false }
    }

    #[test]
    fn a_version_is_judged_by_its_age() {
        for (major, today, gravity) in [
            (12, "2026-11-15", Gravity::Grave),
            (13, "2026-11-15", Gravity::Warning),
            (15, "2027-11-11", Gravity::Fine),
            (15, "2027-11-12", Gravity::Warning),
            (99, "2040-01-01", Gravity::Fine),
        ] {
            let finding = version(&server(major, today));
            assert_eq!(finding.gravity, gravity, "{major} on {today}: {finding:?}");
        }
    }

    #[test]
    fn tables_are_judged_by_what_this_version_can_do_with_them() {
        for (version, compatible_since, gravity) in [
            (0, 0, Gravity::Warning),
            (SCHEMA - 1, 1, Gravity::Warning),
            (SCHEMA, 1, Gravity::Fine),
            (SCHEMA + 1, SCHEMA, Gravity::Note),
            (SCHEMA + 2, SCHEMA + 1, Gravity::Grave),
        ] {
            assert_eq!(judge(&Found { version, compatible_since }).gravity, gravity, "{version}");
        }
    }
}
