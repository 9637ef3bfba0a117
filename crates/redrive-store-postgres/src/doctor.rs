//! Checks a server for problems. Each finding has its evidence and a remedy.
//!
//! The doctor writes nothing, takes no lock that others wait for, and needs no superuser. A check that the role may not make becomes a
//! note.

mod bloat;
mod clock;
mod connections;
mod durability;
mod indexes;
mod server;
mod vacuum;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use redrive_core::{Finding, Severity, StoreError};
use tokio_postgres::error::SqlState;

use crate::PostgresStore;
use crate::error::{Error, Result};
use crate::open::{Options, ServerAccess};
use crate::pool::{Connector, Driver, Pool};

/// The application name of the doctor's connections, so that it does not count them.
const APPLICATION: &str = "redrive-doctor";
/// Two connections at once show whether a pooler shares connections.
const CONNECTIONS: usize = 2;

/// The limits from which a check reports a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// A transaction that blocks vacuum for this long is a warning.
    pub vacuum_blocked_warning: Duration,
    /// A transaction that blocks vacuum for this long is critical.
    pub vacuum_blocked_critical: Duration,
    /// A replication slot or standby that is this many transactions behind is a warning. Its age in time is not known.
    pub replication_lag_warning: i32,
    /// A replication slot or standby that is this many transactions behind is critical.
    pub replication_lag_critical: i32,
    /// Fewer dead rows in a table are no problem, however few live rows there are.
    pub dead_rows_min: i64,
    /// A smaller index is no problem, however few rows its table has.
    pub index_bytes_min: i64,
    /// Clocks that differ by more are a warning.
    pub clock_skew: Duration,
    /// A notification queue that is fuller than this, from 0 to 1, is a warning.
    pub notification_queue_warning: f64,
}

impl Thresholds {
    /// Vacuum misses some rounds, and claims begin to scan dead rows.
    pub const VACUUM_BLOCKED_WARNING: Duration = Duration::from_secs(60);
    /// A busy queue is slow by now.
    pub const VACUUM_BLOCKED_CRITICAL: Duration = Duration::from_secs(600);
    /// Some minutes of a busy queue.
    pub const REPLICATION_LAG_WARNING: i32 = 100_000;
    /// Hours of a busy queue. Probably nobody reads this slot any more.
    pub const REPLICATION_LAG_CRITICAL: i32 = 10_000_000;
    /// Ten times the number of dead rows that the settings of the tables allow.
    pub const DEAD_ROWS_MIN: i64 = 50_000;
    /// A scan of such an index takes noticeable time.
    pub const INDEX_BYTES_MIN: i64 = 64 << 20;
    /// People notice such a difference in displayed times.
    pub const CLOCK_SKEW: Duration = Duration::from_secs(1);
    /// The queue holds gigabytes and is nearly always empty. It fills only if a listener hangs.
    pub const NOTIFICATION_QUEUE_WARNING: f64 = 0.1;
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            vacuum_blocked_warning: Self::VACUUM_BLOCKED_WARNING,
            vacuum_blocked_critical: Self::VACUUM_BLOCKED_CRITICAL,
            replication_lag_warning: Self::REPLICATION_LAG_WARNING,
            replication_lag_critical: Self::REPLICATION_LAG_CRITICAL,
            dead_rows_min: Self::DEAD_ROWS_MIN,
            index_bytes_min: Self::INDEX_BYTES_MIN,
            clock_skew: Self::CLOCK_SKEW,
            notification_queue_warning: Self::NOTIFICATION_QUEUE_WARNING,
        }
    }
}

impl PostgresStore {
    /// Checks the server at `address`. The findings are not sorted by severity. The tables may be missing. Fails only if the server
    /// cannot be reached.
    pub async fn doctor(address: &str, thresholds: &Thresholds) -> Result<Vec<Finding>, StoreError> {
        let opened = ServerAccess::new(address, &Options::default())?;
        Ok(examine(&DoctorContext::new(&opened, thresholds)).await?)
    }
}

/// The connections and options of one examination.
struct DoctorContext<'a> {
    pool: Arc<Pool>,
    /// Where nodes listen for wake-ups, if they do.
    listen: Option<Connector>,
    /// The number of connections for calls in the address.
    connections: usize,
    thresholds: &'a Thresholds,
}

impl<'a> DoctorContext<'a> {
    fn new(opened: &ServerAccess, thresholds: &'a Thresholds) -> Self {
        let named = |config: &tokio_postgres::Config| {
            let mut config = config.clone();
            config.application_name(APPLICATION);
            Connector { config, ..opened.connector.clone() }
        };
        Self {
            pool: Pool::new(
                named(&opened.address.config),
                Driver::Caller,
                CONNECTIONS,
                Options::default().call_timeout,
            ),
            listen: opened.address.listen.as_ref().map(named),
            connections: opened.address.connections,
            thresholds,
        }
    }

    /// The maximum time that one check may take.
    fn timeout(&self) -> Duration {
        Options::default().call_timeout
    }
}

/// The schema version of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TablesVersion {
    /// There are no tables.
    Missing,
    /// The version of this program.
    Own,
    /// Another version.
    Other,
}

async fn examine(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let server = match server::read(context).await {
        Err(error) if is_full(&error) => return Ok(vec![connections::none_left(&error)]),
        server => server?,
    };
    let (schema, tables) = match server::schema(context).await {
        Ok((schema, tables)) => (Ok(schema), tables),
        Err(error) => (Err(error), TablesVersion::Other),
    };
    let mut findings = vec![server::version(&server)];
    findings.extend(server::writes(&server));
    findings.extend(or_note("schema", schema));
    findings.extend(or_note("durability", durability::durability(context).await));
    findings.extend(or_note("vacuum", vacuum::vacuum(context).await));
    if tables != TablesVersion::Missing {
        findings.extend(or_note("bloat", bloat::bloat(context).await));
    }
    if tables == TablesVersion::Own {
        findings.extend(or_note("seal", server::seals(context).await));
        findings.extend(or_note("indexes", indexes::indexes(context).await));
    }
    findings.extend(or_note("clock", clock::clock(context).await));
    findings.extend(or_note("connections", connections::connections(context).await));
    findings.push(wakes::arrival(context).await);
    findings.extend(or_note("wake-ups", wakes::queue(context).await));
    Ok(findings)
}

/// Whether the server has no connection left.
fn is_full(error: &Error) -> bool {
    let StoreError::Unavailable(cause) = &error.0 else { return false };
    let cause = cause.downcast_ref::<tokio_postgres::Error>();
    cause.and_then(tokio_postgres::Error::code) == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

/// Turns a check that failed into a note, so that the others still run.
fn or_note(check: &'static str, findings: Result<Vec<Finding>>) -> Vec<Finding> {
    findings.unwrap_or_else(|error| {
        let remedy = "run the doctor as a role that may read this: GRANT pg_monitor TO this role";
        vec![Finding::new(Severity::Note, check, "this check could not be made", error.explain(), remedy)]
    })
}
