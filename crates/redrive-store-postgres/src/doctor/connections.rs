//! Whether the server has connections enough for the nodes.

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{APPLICATION, Patient};
use crate::error::nothing;
use crate::error::{Sorted, explain};

/// Taken of all that there are: from here on the next peak or deploy may not get any.
const TAKEN_WARNING_PERCENT: i64 = 90;

pub(super) async fn connections(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let sql = include_str!("../../sql/doctor_connections.sql");
    let names = [(&APPLICATION as _, Type::TEXT), (&crate::address::APPLICATION as _, Type::TEXT)];
    let rows = patient.pool.query(sql, &names).await?;
    // The one with the least room comes first.
    let limit = Limit::read(rows.first().ok_or_else(nothing)?)?;
    Ok(vec![judge(&limit, &Need::of(patient))])
}

/// What the server says instead of an answer when it has none left.
pub(super) fn full(error: &StoreError) -> Finding {
    let what = "the server has no connection left, not even for this look: services cannot open more either";
    Finding::new(Gravity::Grave, "connections", what, explain(error), REMEDY)
}

const REMEDY: &str = "raise max_connections, lower ?connections= in the address, or put a pooler in between and name the \
    server itself with ?listen=HOST:PORT";

/// A limit that holds for this role in this database.
#[derive(Debug)]
struct Limit {
    name: String,
    most: i64,
    reserved: i64,
    used: i64,
    /// Of those, redrive's.
    ours: i64,
}

impl Limit {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            name: row.try_get("name").sorted()?,
            most: row.try_get::<_, i32>("most").sorted()?.into(),
            reserved: row.try_get::<_, i32>("reserved").sorted()?.into(),
            used: row.try_get("used").sorted()?,
            ours: row.try_get("ours").sorted()?,
        })
    }

    fn allowed(&self) -> i64 {
        (self.most - self.reserved).max(0)
    }
}

/// What one node takes.
#[derive(Debug)]
struct Need {
    calls: i64,
    /// For heartbeats, and for wake-ups where they are heard.
    beside: i64,
}

impl Need {
    fn of(patient: &Patient<'_>) -> Self {
        let calls = i64::try_from(patient.connections).unwrap_or(i64::MAX);
        Self { calls, beside: if patient.listen.is_some() { 2 } else { 1 } }
    }

    fn total(&self) -> i64 {
        self.calls.saturating_add(self.beside)
    }
}

fn judge(limit: &Limit, need: &Need) -> Finding {
    let (allowed, each) = (limit.allowed(), need.total());
    let free = (allowed - limit.used).max(0);
    let Limit { name, most, reserved, used, ours } = limit;
    let reserved = if *reserved > 0 { format!(", {reserved} of them reserved") } else { String::new() };
    let evidence = format!(
        "{name} is {most}{reserved}; {used} are taken, {ours} by redrive; a node takes up to {each} ({} for calls, {} \
         beside): {} nodes fit in all, {} more now",
        need.calls,
        need.beside,
        allowed / each,
        free / each
    );
    if allowed < each {
        let what = "not even one node gets the connections that its address asks for";
        return Finding::new(Gravity::Grave, "connections", what, evidence, REMEDY);
    }
    if free < each || used.saturating_mul(100) >= allowed.saturating_mul(TAKEN_WARNING_PERCENT) {
        let what = "connections are nearly used up: another node, or a rolling deploy, may not get its own";
        return Finding::new(Gravity::Warning, "connections", what, evidence, REMEDY);
    }
    Finding::fine("connections", "there are connections for more nodes", evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_held_against_what_a_node_takes() {
        let need = Need { calls: 8, beside: 2 };
        for (most, used, gravity) in [
            (100, 5, Gravity::Fine),
            (100, 87, Gravity::Fine),
            (100, 88, Gravity::Warning),
            (13, 0, Gravity::Fine),
            (13, 1, Gravity::Warning),
            (12, 0, Gravity::Grave),
            (1_000, 950, Gravity::Warning),
        ] {
            let limit = Limit { name: "max_connections".to_owned(), most, reserved: 3, used, ours: 0 };
            let finding = judge(&limit, &need);
            assert_eq!(finding.gravity, gravity, "{most}: {finding:?}");
        }
    }
}
