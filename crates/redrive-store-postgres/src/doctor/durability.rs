//! Checks for settings under which an acknowledged job may be lost.

use std::collections::BTreeMap;

use redrive_core::{Finding, Severity};
use redrive_sql::Statement;
use tokio_postgres::types::Type;

use super::DoctorContext;
use crate::error::Result;
use crate::sql;

static SETTINGS: Statement = sql::DOCTOR.statement("settings");

const NAMES: [&str; 5] =
    ["fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "data_checksums"];

/// The value of a setting, and where it comes from.
pub(super) struct Setting {
    pub(super) value: String,
    source: String,
}

impl Setting {
    pub(super) fn is_off(&self) -> bool {
        self.value == "off"
    }

    /// The setting with its value and source, as evidence.
    pub(super) fn describe(&self, name: &str) -> String {
        format!("{name} = {}, from: {}", self.value, self.source)
    }
}

/// Reads settings by name. Those that the server does not know or does not show are absent.
pub(super) async fn settings(
    context: &DoctorContext<'_>,
    names: &[&str],
) -> Result<BTreeMap<String, Setting>> {
    let sql = &SETTINGS;
    let rows = context.pool.query(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
    let read = |row: &tokio_postgres::Row| {
        let value = row.try_get::<_, Option<String>>("setting")?.unwrap_or_default();
        Ok((row.try_get("name")?, Setting { value, source: row.try_get("source")? }))
    };
    rows.iter().map(read).collect()
}

pub(super) async fn durability(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let settings = settings(context, &NAMES).await?;
    let off = |name: &str| settings.get(name).filter(|setting| setting.is_off());
    let new = |severity, what, evidence, remedy| Finding::new(severity, "durability", what, evidence, remedy);
    let mut findings = Vec::new();
    if let Some(fsync) = off("fsync") {
        let what = "the server does not sync writes to disk: a power cut or a crash of the system can destroy the whole database";
        let remedy = "set fsync = on in postgresql.conf and reload";
        findings.push(new(Severity::Critical, what, fsync.describe("fsync"), remedy));
    }
    if let Some(pages) = off("full_page_writes") {
        let what = "a page that is half written at a power cut cannot be repaired";
        let remedy =
            "set full_page_writes = on and reload, unless the file system never writes half a page, like ZFS";
        findings.push(new(Severity::Critical, what, pages.describe("full_page_writes"), remedy));
    }
    let standbys = settings.get("synchronous_standby_names").is_some_and(|names| !names.value.is_empty());
    if let Some(commit) = settings.get("synchronous_commit") {
        let evidence = commit.describe("synchronous_commit");
        let remedy = "reset the setting: ALTER ROLE … RESET synchronous_commit, ALTER DATABASE … RESET \
            synchronous_commit, or in postgresql.conf";
        match commit.value.as_str() {
            "off" => {
                let what = "acknowledged jobs may be lost on a power cut: commits do not wait for the disk";
                findings.push(new(Severity::Warning, what, evidence, remedy));
            }
            // Without synchronous standbys, local is the same as on.
            "local" if standbys => {
                let what = "acknowledged jobs may be lost on a failover: commits do not wait for the standby";
                findings.push(new(Severity::Warning, what, evidence, remedy));
            }
            _ => {}
        }
    }
    if findings.is_empty() {
        let shown =
            NAMES[..3].iter().filter_map(|name| Some(format!("{name} = {}", settings.get(*name)?.value)));
        let evidence = shown.collect::<Vec<_>>().join(", ");
        findings.push(Finding::ok("durability", "acknowledged jobs are on disk", evidence));
    }
    if let Some(sums) = off("data_checksums") {
        let what = "damage by a disk stays unnoticed: pages have no checksums";
        let remedy = "stop the server once and run pg_checksums --enable";
        findings.push(new(Severity::Note, what, sums.describe("data_checksums"), remedy));
    }
    Ok(findings)
}
