//! Renews leases and brings back what their holders must know.

use std::collections::HashMap;
use std::time::Duration;

use redrive_core::store::Extended;
use redrive_core::time::ceil_ms;
use redrive_core::{Lease, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::open::Inner;

pub(crate) async fn extend(
    inner: &Inner,
    leases: &[Lease],
    lease: Duration,
) -> Result<Vec<Extended>, StoreError> {
    // In the order of ids, as settlements are.
    let mut ordered: Vec<Lease> = leases.to_vec();
    ordered.sort_unstable();
    let ids: Vec<Uuid> = ordered.iter().map(|lease| lease.id.0).collect();
    let epochs: Vec<i64> = ordered.iter().map(|lease| lease.epoch as i64).collect();
    let (now, ms) = (inner.manual_now(), ceil_ms(lease));
    let rows = inner
        .heartbeats
        .query(
            include_str!("../sql/extend.sql"),
            &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY), (&ms, Type::INT8)],
        )
        .await?;
    let mut held: HashMap<(Uuid, i64), bool> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let key = (row.try_get(0).sorted()?, row.try_get(1).sorted()?);
        held.insert(key, row.try_get(2).sorted()?);
    }
    let told = |lease: &Lease| match held.get(&(lease.id.0, lease.epoch as i64)) {
        Some(true) => Extended::CancelRequested,
        Some(false) => Extended::Renewed,
        None => Extended::LeaseLost,
    };
    Ok(leases.iter().map(told).collect())
}
