//! Settings under which an acknowledged job may be lost.

use std::collections::BTreeMap;

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::types::Type;

use super::Patient;
use crate::error::Sorted;

const NAMES: [&str; 5] =
    ["fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "data_checksums"];

/// A setting's value, and what it comes from.
pub(super) struct Setting {
    pub(super) value: String,
    source: String,
}

impl Setting {
    pub(super) fn is_off(&self) -> bool {
        self.value == "off"
    }

    /// As it would be written, and where it was.
    pub(super) fn shown(&self, name: &str) -> String {
        format!("{name} = {}, from: {}", self.value, self.source)
    }
}

/// Settings by name; those that the server does not know, or does not tell, are absent.
pub(super) async fn settings(
    patient: &Patient<'_>,
    names: &[&str],
) -> Result<BTreeMap<String, Setting>, StoreError> {
    let sql = include_str!("../../sql/doctor_settings.sql");
    let rows = patient.pool.query(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
    let read = |row: &tokio_postgres::Row| {
        let value = row.try_get::<_, Option<String>>("setting").sorted()?.unwrap_or_default();
        Ok((row.try_get("name").sorted()?, Setting { value, source: row.try_get("source").sorted()? }))
    };
    rows.iter().map(read).collect()
}

pub(super) async fn durability(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let settings = settings(patient, &NAMES).await?;
    let off = |name: &str| settings.get(name).filter(|setting| setting.is_off());
    let new = |gravity, what, evidence, remedy| Finding::new(gravity, "durability", what, evidence, remedy);
    let mut findings = Vec::new();
    if let Some(fsync) = off("fsync") {
        let what =
            "nothing is forced to disk: a power cut or a crash of the system can destroy the whole database";
        let remedy = "set fsync = on in postgresql.conf and reload";
        findings.push(new(Gravity::Grave, what, fsync.shown("fsync"), remedy));
    }
    if let Some(pages) = off("full_page_writes") {
        let what = "a page that a power cut leaves half written cannot be repaired";
        let remedy =
            "set full_page_writes = on and reload, unless the file system never tears a page, as ZFS";
        findings.push(new(Gravity::Grave, what, pages.shown("full_page_writes"), remedy));
    }
    let standbys = settings.get("synchronous_standby_names").is_some_and(|names| !names.value.is_empty());
    if let Some(commit) = settings.get("synchronous_commit") {
        let evidence = commit.shown("synchronous_commit");
        let remedy = "take the setting back: ALTER ROLE … RESET synchronous_commit, ALTER DATABASE … RESET \
            synchronous_commit, or in postgresql.conf";
        match commit.value.as_str() {
            "off" => {
                let what = "acknowledged jobs may be lost on a power cut: commits do not wait for the disk";
                findings.push(new(Gravity::Warning, what, evidence, remedy));
            }
            // Without synchronous standbys it is the same as on.
            "local" if standbys => {
                let what = "acknowledged jobs may be lost on a failover: commits do not wait for the standby";
                findings.push(new(Gravity::Warning, what, evidence, remedy));
            }
            _ => {}
        }
    }
    if findings.is_empty() {
        let shown =
            NAMES[..3].iter().filter_map(|name| Some(format!("{name} = {}", settings.get(*name)?.value)));
        let evidence = shown.collect::<Vec<_>>().join(", ");
        findings.push(Finding::fine("durability", "what is acknowledged is on disk", evidence));
    }
    if let Some(sums) = off("data_checksums") {
        let what = "damage by a disk goes unnoticed: pages have no checksums";
        let remedy = "when the server can be stopped once: pg_checksums --enable";
        findings.push(new(Gravity::Note, what, sums.shown("data_checksums"), remedy));
    }
    Ok(findings)
}
