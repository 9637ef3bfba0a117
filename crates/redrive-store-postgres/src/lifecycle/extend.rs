//! Renews leases, and reports requested cancels.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::store::ExtendResult;
use redrive_core::time::ceil_ms;
use redrive_sql::Statement;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::lifecycle::held_claims::claim_number;
use crate::lifecycle::settle_columns::key;
use crate::open::Inner;
use crate::pool::{Executor, Parameter};
use crate::sql;

static EXTEND: Statement = sql::SETTLE.statement("extend");
static LOCK_CLAIMS: Statement = sql::SETTLE.statement("lock_claims");
static EXTEND_SOME: Statement = sql::SETTLE.statement("extend_some");

/// How often a renewal tries to get the lock of a claim that someone else has, and the wait between two tries. A cancel or a reclaim has it
/// for some milliseconds. A lease that is not renewed this time has time left until the next heartbeat.
const TRIES: u32 = 5;
const WAIT_FOR_LOCK: Duration = Duration::from_millis(10);

/// Renews leases. A claim whose jobs are all named is renewed as a whole, in one row. Never waits for a lock.
pub(crate) async fn extend(inner: &Inner, leases: &[Lease], lease: Duration) -> Result<Vec<ExtendResult>> {
    let (whole, others) = inner.held_claims().whole_claims(leases, lease);
    let mut results: HashMap<Lease, ExtendResult> = HashMap::with_capacity(leases.len());
    if !whole.is_empty() {
        let renewed = renew_claims(inner, &whole, ceil_ms(lease)).await?;
        let whole: HashSet<i64> = whole.into_iter().collect();
        for lease in leases.iter().filter(|lease| whole.contains(&claim_number(lease.epoch))) {
            let claim = renewed.get(&claim_number(lease.epoch));
            results.insert(*lease, claim.map_or(ExtendResult::LeaseLost, |claim| claim.result(lease.id.0)));
        }
    }
    if !others.is_empty() {
        results.extend(renew_jobs(inner, &others, ceil_ms(lease)).await?);
    }
    Ok(leases.iter().map(|lease| results.get(lease).copied().unwrap_or(ExtendResult::LeaseLost)).collect())
}

/// A claim that was renewed, or that someone else has locked.
#[derive(Default)]
struct RenewedClaim {
    cancels: HashSet<Uuid>,
    /// The jobs that it lists, unless it is whole.
    listed: Option<HashSet<Uuid>>,
}

impl RenewedClaim {
    fn result(&self, id: Uuid) -> ExtendResult {
        if self.listed.as_ref().is_some_and(|listed| !listed.contains(&id)) {
            ExtendResult::LeaseLost
        } else if self.cancels.contains(&id) {
            ExtendResult::CancelRequested
        } else {
            ExtendResult::Renewed
        }
    }
}

/// Renews claims. Those that are gone are not among the results.
async fn renew_claims(inner: &Inner, claims: &[i64], ms: i64) -> Result<HashMap<i64, RenewedClaim>> {
    let mut renewed: HashMap<i64, RenewedClaim> = HashMap::with_capacity(claims.len());
    let mut left: Vec<i64> = claims.to_vec();
    for attempt in 1..=TRIES {
        let parameters: [Parameter<'_>; 3] =
            [(&inner.manual_now(), Type::INT8), (&left, Type::INT8_ARRAY), (&ms, Type::INT8)];
        let mut busy = Vec::new();
        for row in inner.heartbeats.query(&EXTEND, &parameters).await? {
            let claim: i64 = row.try_get("claim")?;
            if row.try_get("busy")? {
                busy.push(claim);
                continue;
            }
            let parts = renewed.entry(claim).or_default();
            let cancels: Option<Vec<Uuid>> = row.try_get("cancels")?;
            parts.cancels.extend(cancels.into_iter().flatten());
            if let Some(ids) = row.try_get::<_, Option<Vec<Uuid>>>("ids")? {
                parts.listed.get_or_insert_default().extend(ids);
                inner.held_claims().forget(claim);
            }
        }
        if busy.is_empty() {
            break;
        }
        if attempt == TRIES {
            tracing::warn!(claims = busy.len(), "did not renew claims that another session has locked");
            for claim in busy {
                renewed.entry(claim).or_default();
            }
            break;
        }
        left = busy;
        sleep(WAIT_FOR_LOCK).await;
    }
    Ok(renewed)
}

/// Renews single jobs of claims. The other jobs of these claims keep their lease.
async fn renew_jobs(inner: &Inner, leases: &[Lease], ms: i64) -> Result<HashMap<Lease, ExtendResult>> {
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.iter().copied().map(key).unzip();
    let claims: HashSet<i64> = leases.iter().map(|lease| claim_number(lease.epoch)).collect();
    let claims: Vec<i64> = claims.into_iter().collect();
    let now = inner.manual_now();
    let mut attempt = 1;
    let (rows, busy) = loop {
        let renewing = inner.heartbeats.transaction(async |client| {
            let locked = client.run(&LOCK_CLAIMS, &[(&claims, Type::INT8_ARRAY)]).await?;
            let mut numbers: HashSet<i64> = HashSet::new();
            for row in &locked {
                numbers.insert(row.try_get("claim")?);
            }
            let is_locked = |epoch: &i64| numbers.contains(&(epoch >> redrive_core::LEASE_COUNT_BITS));
            let mine = || ids.iter().zip(&epochs).filter(|(_, epoch)| is_locked(epoch));
            let my_ids: Vec<Uuid> = mine().map(|(id, _)| *id).collect();
            let my_epochs: Vec<i64> = mine().map(|(_, epoch)| *epoch).collect();
            let parameters: [Parameter<'_>; 4] = [
                (&now, Type::INT8),
                (&my_ids, Type::UUID_ARRAY),
                (&my_epochs, Type::INT8_ARRAY),
                (&ms, Type::INT8),
            ];
            let rows = client.run(&EXTEND_SOME, &parameters).await?;
            let others: Vec<i64> = claims.iter().copied().filter(|claim| !numbers.contains(claim)).collect();
            let there = client.run(&FIND_CLAIMS, &[(&others, Type::INT8_ARRAY)]).await?;
            let busy: Vec<i64> = there.iter().map(|row| row.try_get("claim")).collect::<Result<_, _>>()?;
            Ok((rows, busy))
        });
        let (rows, busy) = renewing.await?;
        if busy.is_empty() || attempt == TRIES {
            break (rows, busy);
        }
        attempt += 1;
        sleep(WAIT_FOR_LOCK).await;
    };
    let mut results = HashMap::with_capacity(leases.len());
    for lease in leases.iter().filter(|lease| busy.contains(&claim_number(lease.epoch))) {
        results.insert(*lease, ExtendResult::Renewed);
    }
    let by_key: HashMap<(Uuid, i64), Lease> = leases.iter().map(|lease| (key(*lease), *lease)).collect();
    for row in &rows {
        if let Some(lease) = by_key.get(&(row.try_get("id")?, row.try_get("epoch")?)) {
            let cancelling: bool = row.try_get("cancelling")?;
            let result = if cancelling { ExtendResult::CancelRequested } else { ExtendResult::Renewed };
            results.insert(*lease, result);
        }
    }
    let mut held = inner.held_claims();
    claims.iter().for_each(|claim| held.forget(*claim));
    Ok(results)
}

static FIND_CLAIMS: Statement = sql::SETTLE.statement("find_claims");
