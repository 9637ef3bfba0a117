//! Renews leases.

use std::time::Duration;

use futures_util::future::try_join_all;
use redrive_core::store::Extended;
use redrive_core::{JobId, Lease, StoreError};

use crate::open::{Inner, by_partition};
use crate::{answer, script};

/// It has a connection of its own, so that leases are renewed however busy the others are.
pub(crate) async fn extend(
    inner: &Inner,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<Extended>, StoreError> {
    let ids: Vec<JobId> = leases.iter().map(|lease| lease.id).collect();
    let groups = by_partition(&inner.partitions_of(&ids).await?);
    let calls = groups.iter().map(|(partition, members)| {
        let mut arguments = inner.arguments();
        arguments.text(span.as_millis());
        arguments.count(members.len());
        members.iter().for_each(|n| arguments.lease(inner, leases[*n]));
        inner.run_apart(&script::EXTEND, *partition, arguments)
    });
    let mut answers = vec![Extended::LeaseLost; leases.len()];
    for ((_, members), value) in groups.iter().zip(try_join_all(calls).await?) {
        for (n, word) in members.iter().zip(answer::texts(value)?) {
            answers[*n] = match word.as_str() {
                "renewed" => Extended::Renewed,
                "cancel" => Extended::CancelRequested,
                _ => Extended::LeaseLost,
            };
        }
    }
    Ok(answers)
}
