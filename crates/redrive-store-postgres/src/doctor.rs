//! Looks at a server for what would hurt: each finding with its evidence and what to do.
//!
//! It writes nothing, takes no lock that another waits for, and needs no superuser: what a role may not see is a note.

mod bloat;
mod clock;
mod connections;
mod durability;
mod indexes;
mod seal;
mod server;
mod vacuum;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::error::SqlState;

use crate::PostgresStore;
use crate::error::explain;
use crate::open::{Opened, Options};
use crate::pool::{Connect, Pool};

/// How the doctor's connections are called, so that it does not count itself.
const APPLICATION: &str = "redrive-doctor";
/// Two at once show whether a pooler shares connections.
const CONNECTIONS: usize = 2;

/// From where on something is worth a word.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// A transaction that holds back vacuum for so long is a warning.
    pub held_warning: Duration,
    /// And for so long is grave.
    pub held_grave: Duration,
    /// A replication slot or standby that is so many transactions behind is a warning; time is not known of these.
    pub behind_warning: i32,
    /// And so many is grave.
    pub behind_grave: i32,
    /// Fewer dead rows in a table are no matter, however few live ones there are.
    pub dead_rows_min: i64,
    /// A smaller index is no matter, however few rows it is for.
    pub index_bytes_min: i64,
    /// Clocks that are further apart are a warning.
    pub skew: Duration,
    /// A queue of notifications that is fuller, from 0 to 1, is a warning.
    pub notifications_warning: f64,
}

impl Thresholds {
    /// Vacuum misses some rounds, and dead rows begin to pile up in the walk of a claim.
    pub const HELD_WARNING: Duration = Duration::from_secs(60);
    /// A busy queue has become slow by now.
    pub const HELD_GRAVE: Duration = Duration::from_secs(600);
    /// Some minutes of a busy queue.
    pub const BEHIND_WARNING: i32 = 100_000;
    /// Hours of it; nobody reads this slot any more.
    pub const BEHIND_GRAVE: i32 = 10_000_000;
    /// Ten times what the tables' own settings let lie.
    pub const DEAD_ROWS_MIN: i64 = 50_000;
    /// What a walk through is felt.
    pub const INDEX_BYTES_MIN: i64 = 64 << 20;
    /// What people notice in times that are shown.
    pub const SKEW: Duration = Duration::from_secs(1);
    /// It is nearly always empty, and holds gigabytes: this much lies there only behind a listener that stands still.
    pub const NOTIFICATIONS_WARNING: f64 = 0.1;
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            held_warning: Self::HELD_WARNING,
            held_grave: Self::HELD_GRAVE,
            behind_warning: Self::BEHIND_WARNING,
            behind_grave: Self::BEHIND_GRAVE,
            dead_rows_min: Self::DEAD_ROWS_MIN,
            index_bytes_min: Self::INDEX_BYTES_MIN,
            skew: Self::SKEW,
            notifications_warning: Self::NOTIFICATIONS_WARNING,
        }
    }
}

impl PostgresStore {
    /// What hurts or will at the server of `address`, in no order of gravity; redrive's tables may be missing. Fails only
    /// when the server cannot be reached.
    pub async fn doctor(address: &str, thresholds: &Thresholds) -> Result<Vec<Finding>, StoreError> {
        let opened = Opened::new(address, &Options::default())?;
        look(&Patient::new(&opened, thresholds)).await
    }
}

/// The server, and how it is spoken to.
struct Patient<'a> {
    pool: Arc<Pool>,
    /// Where wake-ups are heard, if anywhere.
    listen: Option<Connect>,
    /// What the address asks for: calls under way at once.
    connections: usize,
    thresholds: &'a Thresholds,
}

impl<'a> Patient<'a> {
    fn new(opened: &Opened, thresholds: &'a Thresholds) -> Self {
        let named = |config: &tokio_postgres::Config| {
            let mut config = config.clone();
            config.application_name(APPLICATION);
            Connect { config, ..opened.connect.clone() }
        };
        Self {
            pool: Pool::new(named(&opened.address.config), CONNECTIONS, Options::default().patience),
            listen: opened.address.listen.as_ref().map(named),
            connections: opened.address.connections,
            thresholds,
        }
    }

    /// How long one look may take.
    fn patience(&self) -> Duration {
        Options::default().patience
    }
}

/// What is known of redrive's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    /// There are none.
    Missing,
    /// As this version makes them.
    Known,
    /// Made by another version.
    Other,
}

async fn look(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let server = match server::ask(patient).await {
        Err(error) if is_full(&error) => return Ok(vec![connections::full(&error)]),
        server => server?,
    };
    let (schema, tables) = match server::schema(patient).await {
        Ok((schema, tables)) => (Ok(schema), tables),
        Err(error) => (Err(error), Tables::Other),
    };
    let mut findings = vec![server::version(&server)];
    findings.extend(server::writes(&server));
    findings.extend(or_note("schema", schema));
    findings.extend(or_note("durability", durability::durability(patient).await));
    findings.extend(or_note("vacuum", vacuum::vacuum(patient).await));
    if tables != Tables::Missing {
        findings.extend(or_note("bloat", bloat::bloat(patient).await));
    }
    if tables == Tables::Known {
        findings.extend(or_note("seal", seal::seal(patient).await));
        findings.extend(or_note("indexes", indexes::indexes(patient).await));
    }
    findings.extend(or_note("clock", clock::clock(patient).await));
    findings.extend(or_note("connections", connections::connections(patient).await));
    findings.push(wakes::arrival(patient).await);
    findings.extend(or_note("wake-ups", wakes::queue(patient).await));
    Ok(findings)
}

/// Whether the server has no connection left.
fn is_full(error: &StoreError) -> bool {
    let StoreError::Unavailable(cause) = error else { return false };
    let cause = cause.downcast_ref::<tokio_postgres::Error>();
    cause.and_then(tokio_postgres::Error::code) == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

/// What cannot be looked at is said, and the rest is looked at all the same.
fn or_note(check: &'static str, found: Result<Vec<Finding>, StoreError>) -> Vec<Finding> {
    found.unwrap_or_else(|error| {
        let remedy = "look again as a role that may: GRANT pg_monitor TO this one";
        vec![Finding::new(Gravity::Note, check, "this could not be looked at", explain(&error), remedy)]
    })
}

/// A span of time as people say it.
fn span(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A size as people say it.
fn size(bytes: i64) -> String {
    match bytes as f64 {
        bytes if bytes < 1048576.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes if bytes < 1073741824.0 => format!("{:.1} MiB", bytes / 1048576.0),
        bytes => format!("{:.1} GiB", bytes / 1073741824.0),
    }
}
