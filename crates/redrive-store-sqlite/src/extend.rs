//! Renews leases and brings back what their holders must know.

use std::time::Duration;

use redrive_core::store::Extended;
use redrive_core::{Lease, StoreError};
use rusqlite::{OptionalExtension, params};

use crate::error::Sorted;
use crate::writer::Tx;

pub(crate) fn extend(
    tx: &mut Tx<'_>,
    leases: &[Lease],
    lease: Duration,
) -> Result<Vec<Extended>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/extend.sql")).sorted()?;
    let until = tx.now.after(lease).as_ms();
    let mut renew = |lease: &Lease| {
        let parameters = params![lease.id.0.as_bytes(), lease.epoch as i64, until];
        let cancelling: Option<bool> =
            statement.query_row(parameters, |row| row.get(0)).optional().sorted()?;
        Ok(match cancelling {
            Some(true) => Extended::CancelRequested,
            Some(false) => Extended::Renewed,
            None => Extended::LeaseLost,
        })
    };
    leases.iter().map(&mut renew).collect()
}
