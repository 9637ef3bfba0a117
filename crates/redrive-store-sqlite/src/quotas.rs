//! The bounds of queues, as the writer last read them. It is the only writer, so they are current.

use std::collections::BTreeMap;

use redrive_core::quota::QUOTA;
use redrive_core::{Queue, Quota, StoreError};
use rusqlite::Connection;

use crate::records::scan;

/// Quotas by queue; most stores have none.
#[derive(Debug, Default)]
pub(crate) struct Quotas(BTreeMap<String, Quota>);

impl Quotas {
    /// The quota of a queue, if it has one.
    pub(crate) fn get(&self, queue: &Queue) -> Option<&Quota> {
        if self.0.is_empty() { None } else { self.0.get(queue.as_str()) }
    }

    /// Whether no queue is bounded.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the quotas again.
    pub(crate) fn reload(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let records = scan(conn, QUOTA, "", usize::MAX >> 1)?;
        self.0 = records.into_iter().map(|record| (record.id, Quota::read(&record.value))).collect();
        Ok(())
    }
}
