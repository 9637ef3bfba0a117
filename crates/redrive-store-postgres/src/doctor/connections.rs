//! Checks that the server has enough connections for the nodes.

use redrive_core::{Finding, Severity};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{APPLICATION, DoctorContext};
use crate::error::{Error, Result};
use crate::sql;

static CONNECTIONS_IN_USE: Statement = sql::DOCTOR.statement("connections");

/// If this share of connections is in use, the next peak or deploy may not get any.
const USED_WARNING_PERCENT: i64 = 90;

pub(super) async fn connections(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let sql = &CONNECTIONS_IN_USE;
    let names = [(&APPLICATION as _, Type::TEXT), (&crate::open::address::APPLICATION as _, Type::TEXT)];
    let rows = context.pool.query(sql, &names).await?;
    // The tightest limit comes first.
    let limit = ConnectionLimit::read(rows.first().ok_or_else(Error::no_row)?)?;
    Ok(vec![judge(&limit, &NodeConnections::new(context))])
}

/// The finding if the doctor itself gets no connection.
pub(super) fn none_left(error: &Error) -> Finding {
    let what = "the server has no connection left, not even for the doctor: services cannot open more either";
    Finding::new(Severity::Critical, "connections", what, error.explain(), REMEDY)
}

const REMEDY: &str = "raise max_connections, lower ?connections= in the address, or use a pooler and name the server \
    itself with ?listen=HOST:PORT";

/// A limit that applies to this role in this database.
#[derive(Debug)]
struct ConnectionLimit {
    name: String,
    most: i64,
    reserved: i64,
    used: i64,
    /// How many of the used connections belong to redrive.
    by_redrive: i64,
}

impl ConnectionLimit {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            name: row.try_get("name")?,
            most: row.try_get::<_, i32>("most")?.into(),
            reserved: row.try_get::<_, i32>("reserved")?.into(),
            used: row.try_get("used")?,
            by_redrive: row.try_get("ours")?,
        })
    }

    fn allowed(&self) -> i64 {
        (self.most - self.reserved).max(0)
    }
}

/// The connections that one node needs.
#[derive(Debug)]
struct NodeConnections {
    calls: i64,
    /// For heartbeats, and to listen for wake-ups.
    other: i64,
}

impl NodeConnections {
    fn new(context: &DoctorContext<'_>) -> Self {
        let calls = i64::try_from(context.connections).unwrap_or(i64::MAX);
        Self { calls, other: if context.listen.is_some() { 2 } else { 1 } }
    }

    fn total(&self) -> i64 {
        self.calls.saturating_add(self.other)
    }
}

fn judge(limit: &ConnectionLimit, need: &NodeConnections) -> Finding {
    let (allowed, each) = (limit.allowed(), need.total());
    let free = (allowed - limit.used).max(0);
    let ConnectionLimit { name, most, reserved, used, by_redrive } = limit;
    let reserved = if *reserved > 0 { format!(", {reserved} of them reserved") } else { String::new() };
    let evidence = format!(
        "{name} is {most}{reserved}; {used} are in use, {by_redrive} by redrive; a node needs up to {each} ({} for calls, {} \
         others): {} nodes fit in total, {} more now",
        need.calls,
        need.other,
        allowed / each,
        free / each
    );
    if allowed < each {
        let what = "not even one node gets the connections that its address asks for";
        return Finding::new(Severity::Critical, "connections", what, evidence, REMEDY);
    }
    if free < each || used.saturating_mul(100) >= allowed.saturating_mul(USED_WARNING_PERCENT) {
        let what = "connections are nearly used up: another node, or a rolling deploy, may not get any";
        return Finding::new(Severity::Warning, "connections", what, evidence, REMEDY);
    }
    Finding::ok("connections", "there are connections for more nodes", evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_connections_are_compared_with_the_needs_of_a_node() {
        let need = NodeConnections { calls: 8, other: 2 };
        for (most, used, severity) in [
            (100, 5, Severity::Ok),
            (100, 87, Severity::Ok),
            (100, 88, Severity::Warning),
            (13, 0, Severity::Ok),
            (13, 1, Severity::Warning),
            (12, 0, Severity::Critical),
            (1_000, 950, Severity::Warning),
        ] {
            let limit = ConnectionLimit {
                name: "max_connections".to_owned(),
                most,
                reserved: 3,
                used,
                by_redrive: 0,
            };
            let finding = judge(&limit, &need);
            assert_eq!(finding.severity, severity, "{most}: {finding:?}");
        }
    }
}
