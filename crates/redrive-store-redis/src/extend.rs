//! Renews leases.

use std::time::Duration;

use redrive_core::store::Extended;
use redrive_core::{JobId, Lease, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread, Way};
use crate::{answer, script};

/// It has a connection of its own, so that leases are renewed however busy the others are.
pub(crate) async fn extend(
    inner: &Inner,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<Extended>, StoreError> {
    let ids: Vec<JobId> = leases.iter().map(|lease| lease.id).collect();
    let spread = Spread {
        script: &script::EXTEND,
        way: Way::Apart,
        begin: |arguments: &mut Arguments| arguments.text(span.as_millis()),
        add: |arguments: &mut Arguments, n: usize| arguments.lease(inner, leases[n]),
    };
    let read = |_, value| Ok(answer::texts(value)?.iter().map(|word| word_of(word)).collect());
    inner.run_by_home(&ids, spread, read).await
}

fn word_of(word: &str) -> Extended {
    match word {
        "renewed" => Extended::Renewed,
        "cancel" => Extended::CancelRequested,
        _ => Extended::LeaseLost,
    }
}
