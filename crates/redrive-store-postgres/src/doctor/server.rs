//! Checks the server's version, whether it accepts writes, the schema version of the tables, and seals.

use redrive_core::transfer::Seal;
use redrive_core::{Finding, Severity, StoreError};
use redrive_sql::Statement;

use super::{DoctorContext, TablesVersion};
use crate::error::{Error, Result};
use crate::schema::{SCHEMA, SchemaVersion, read_version};
use crate::sql;

static SEALS: Statement = sql::DOCTOR.statement("seals");
static SERVER: Statement = sql::DOCTOR.statement("server");
static SCHEMA_ACCESS: Statement = sql::DOCTOR.statement("schema");

/// The oldest version of Postgres that has all that the tables need.
const VERSION_MIN: i32 = 13;

/// The end of support of each version, as of 2026-11-15; see postgresql.org/support/versioning.
const SUPPORTED_UNTIL: [(i32, &str); 6] = [
    (13, "2025-11-13"),
    (14, "2026-11-12"),
    (15, "2027-11-11"),
    (16, "2028-11-09"),
    (17, "2029-11-08"),
    (18, "2030-11-14"),
];

/// The server's version and state.
#[derive(Debug)]
pub(super) struct Server {
    version: String,
    major: i32,
    /// The date by its clock, such as 2026-11-15.
    today: String,
    standby: bool,
    read_only: bool,
}

/// Reads the server's version and state. This is the first statement of an examination.
pub(super) async fn read(context: &DoctorContext<'_>) -> Result<Server> {
    let rows = context.pool.query(&SERVER, &[]).await?;
    let row = rows.first().ok_or_else(Error::no_row)?;
    Ok(Server {
        version: row.try_get("version")?,
        major: row.try_get::<_, i32>("number")? / 10_000,
        today: row.try_get("today")?,
        standby: row.try_get("standby")?,
        read_only: row.try_get("read_only")?,
    })
}

pub(super) fn version(server: &Server) -> Finding {
    let Server { version, major, today, .. } = server;
    if *major < VERSION_MIN {
        let evidence = format!("Postgres {version}; redrive needs {VERSION_MIN} or newer");
        let remedy = "upgrade the server";
        return Finding::new(Severity::Critical, "version", "the server is too old", evidence, remedy);
    }
    // Dates of this form sort as text.
    match SUPPORTED_UNTIL.iter().find(|(known, _)| known == major) {
        Some((_, until)) if today.as_str() > *until => Finding::new(
            Severity::Warning,
            "version",
            "the server's version gets no more fixes, not even for security",
            format!("Postgres {version}, supported until {until}"),
            "upgrade the server",
        ),
        Some((_, until)) => {
            let evidence = format!("Postgres {version}, supported until {until}");
            Finding::ok("version", "the server's version is supported", evidence)
        }
        None => {
            let evidence = format!("Postgres {version}, which is newer than this redrive");
            Finding::ok("version", "the server's version is new", evidence)
        }
    }
}

/// Checks that the server accepts writes.
pub(super) fn writes(server: &Server) -> Option<Finding> {
    let (evidence, remedy) = match server {
        Server { standby: true, .. } => ("pg_is_in_recovery() is true", "name the primary in the address"),
        Server { read_only: true, .. } => (
            "transaction_read_only = on",
            "set default_transaction_read_only = off for this role, this database or the server",
        ),
        Server { .. } => return None,
    };
    Some(Finding::new(Severity::Critical, "writes", "the server does not accept writes", evidence, remedy))
}

/// Checks the schema version of the tables, and what this role may do with them.
pub(super) async fn schema(context: &DoctorContext<'_>) -> Result<(Vec<Finding>, TablesVersion)> {
    let rows = context.pool.query(&SCHEMA_ACCESS, &[]).await?;
    let Some(row) = rows.first() else { return Ok((vec![missing()], TablesVersion::Missing)) };
    let (usable, readable) = (row.try_get::<_, bool>("usable")?, row.try_get::<_, bool>("readable")?);
    let missing_rights: Option<String> = row.try_get("missing")?;
    let mut findings = Vec::new();
    if !usable || missing_rights.is_some() {
        let evidence = match missing_rights {
            Some(parts) if usable => {
                format!(
                    "it lacks SELECT, INSERT, UPDATE or DELETE on a table, or USAGE on a sequence: {parts}"
                )
            }
            Some(_) | None => "it lacks USAGE on the schema redrive".to_owned(),
        };
        findings.push(Finding::new(
            Severity::Note,
            "schema",
            "this role may not write jobs",
            evidence,
            "this is right for a role that only reads; the role of a service needs these rights",
        ));
    }
    if !readable {
        let evidence = "it lacks SELECT on redrive.schema";
        let remedy = "GRANT SELECT ON redrive.schema TO this role";
        let what = "this role may not read the schema version of the tables";
        findings.push(Finding::new(Severity::Note, "schema", what, evidence, remedy));
        return Ok((findings, TablesVersion::Own));
    }
    let found =
        context.pool.with_timeout(context.timeout(), async |client| read_version(client).await).await?;
    findings.push(judge(&found));
    let tables = if found.version == SCHEMA { TablesVersion::Own } else { TablesVersion::Other };
    Ok((findings, tables))
}

const MIGRATE: &str = "run `redrive migrate`, or start a service, which creates them too";

fn missing() -> Finding {
    let evidence = "there is no redrive.schema in this database";
    Finding::new(Severity::Warning, "schema", "the tables of redrive are missing", evidence, MIGRATE)
}

fn judge(found: &SchemaVersion) -> Finding {
    let evidence = format!("schema version {}, this redrive creates {SCHEMA}", found.version);
    match found {
        SchemaVersion { version: 0, .. } => missing(),
        SchemaVersion { version, .. } if *version < SCHEMA => Finding::new(
            Severity::Warning,
            "schema",
            "the tables are older than this redrive",
            evidence,
            MIGRATE,
        ),
        SchemaVersion { compatible_since, .. } if *compatible_since > SCHEMA => Finding::new(
            Severity::Critical,
            "schema",
            "the tables are too new for this redrive, which does not start with them",
            format!("{evidence}; they need a redrive with schema version {compatible_since}"),
            "upgrade redrive",
        ),
        SchemaVersion { version, .. } if *version > SCHEMA => Finding::new(
            Severity::Note,
            "schema",
            "the tables are newer than this redrive, which can work with them; their indexes were not checked",
            evidence,
            "upgrade redrive when the deploy has ended",
        ),
        SchemaVersion { .. } => Finding::ok("schema", "the tables are up to date", evidence),
    }
}

/// Reports the seals of a store that was moved, or is being moved.
pub(super) async fn seals(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let rows = match context.pool.query(&SEALS, &[]).await {
        Ok(rows) => rows,
        // The check of the schema reports that this role may not read the tables.
        Err(Error(StoreError::Refused(_))) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    rows.iter().map(|row| Ok(Seal::finding(row.try_get(0)?, row.try_get(1)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(major: i32, today: &str) -> Server {
        let (version, today) = (format!("{major}.1"), today.to_owned());
        Server { version, major, today, standby: false, read_only: false }
    }

    #[test]
    fn an_unsupported_version_is_reported() {
        for (major, today, severity) in [
            (12, "2026-11-15", Severity::Critical),
            (13, "2026-11-15", Severity::Warning),
            (15, "2027-11-11", Severity::Ok),
            (15, "2027-11-12", Severity::Warning),
            (99, "2040-01-01", Severity::Ok),
        ] {
            let finding = version(&server(major, today));
            assert_eq!(finding.severity, severity, "{major} on {today}: {finding:?}");
        }
    }

    #[test]
    fn tables_of_another_version_are_reported() {
        for (version, compatible_since, severity) in [
            (0, 0, Severity::Warning),
            (SCHEMA - 1, 1, Severity::Warning),
            (SCHEMA, 1, Severity::Ok),
            (SCHEMA + 1, SCHEMA, Severity::Note),
            (SCHEMA + 2, SCHEMA + 1, Severity::Critical),
        ] {
            assert_eq!(judge(&SchemaVersion { version, compatible_since }).severity, severity, "{version}");
        }
    }
}
