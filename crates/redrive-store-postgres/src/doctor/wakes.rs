//! Whether wake-ups arrive: a real one, there and back, and the queue that they all go through.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use redrive_core::{Finding, Gravity, StoreError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::Patient;
use crate::error::nothing;
use crate::error::{Sorted, explain};
use crate::pool::Connect;

/// Longer than any wake-up that is of use: workers look by themselves every second.
const PATIENCE: Duration = Duration::from_secs(1);
/// Statements on each of two connections until a pooler that shares them would have shown itself.
const TRIES: usize = 3;
/// From here on commits that notify are about to fail.
const NOTIFICATIONS_GRAVE: f64 = 0.75;

/// Whether one arrives.
pub(super) async fn arrival(patient: &Patient<'_>) -> Finding {
    // A server with one connection left cannot show it.
    let pooled = is_pooled(patient).await.unwrap_or(false);
    let arrival = match &patient.listen {
        None => Arrival::Off,
        Some(connect) => match round_trip(patient, connect).await {
            Ok(Some(took)) => Arrival::After(took),
            Ok(None) => Arrival::Lost,
            Err(error) => Arrival::Refused(explain(&error)),
        },
    };
    judge(&arrival, pooled)
}

/// What became of a notification.
#[derive(Debug)]
enum Arrival {
    /// The address says not to listen.
    Off,
    After(Duration),
    Lost,
    /// Nobody may listen there.
    Refused(String),
}

fn judge(arrival: &Arrival, pooled: bool) -> Finding {
    let way = if pooled {
        "calls go through a pooler that shares the server's connections"
    } else {
        "calls have the server's connections to themselves"
    };
    let new = |gravity, what, evidence, remedy| Finding::new(gravity, "wake-ups", what, evidence, remedy);
    match arrival {
        Arrival::After(took) => {
            let evidence =
                format!("a notification came back after {:.1} ms; {way}", took.as_secs_f64() * 1e3);
            Finding::fine("wake-ups", "wake-ups arrive", evidence)
        }
        Arrival::Off => new(
            Gravity::Note,
            "wake-ups are switched off: a job that another node enqueues starts up to a second late",
            format!("?listen=off; {way}"),
            "name the server itself with ?listen=HOST:PORT",
        ),
        Arrival::Lost => new(
            Gravity::Warning,
            "wake-ups do not arrive: a job that another node enqueues starts up to a second late",
            format!("LISTEN was accepted, and a notification did not come back within {PATIENCE:?}; {way}"),
            "name the server itself with ?listen=HOST:PORT, or do without with ?listen=off",
        ),
        Arrival::Refused(error) => new(
            Gravity::Grave,
            "nobody can listen for wake-ups, and a service does not start like this",
            format!("{error}; {way}"),
            "name the server itself with ?listen=HOST:PORT, or do without with ?listen=off",
        ),
    }
}

/// Whether something between here and the server gives its connections to whoever has a statement: then two connections
/// have the same process of the server, or one has another than before.
async fn is_pooled(patient: &Patient<'_>) -> Result<bool, StoreError> {
    let (pool, patience) = (&patient.pool, patient.patience());
    let both = async |first: &Client| {
        pool.with_patience(patience, async |second| {
            let own = backend(first).await?;
            for _ in 0..TRIES {
                let (other, again) = (backend(second).await?, backend(first).await?);
                if other == own || again != own {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    };
    pool.with_patience(patience, both).await
}

async fn backend(client: &Client) -> Result<i32, StoreError> {
    let rows = client.query_typed(include_str!("../../sql/doctor_backend.sql"), &[]).await.sorted()?;
    rows.first().ok_or_else(nothing)?.try_get("pid").sorted()
}

/// Listens as a node does, tells as another does, and says how long it took; nothing if it was not heard.
async fn round_trip(patient: &Patient<'_>, connect: &Connect) -> Result<Option<Duration>, StoreError> {
    let (client, mut heard) = timeout(patient.patience(), listen(connect)).await.unwrap_or_else(|_| {
        Err(StoreError::Unavailable("there is no answer where wake-ups are heard".into()))
    })?;
    let name = format!("{:016x}", fastrand::u64(..));
    let began = Instant::now();
    patient.pool.query(include_str!("../../sql/doctor_notify.sql"), &[(&name, Type::TEXT)]).await?;
    let arrival = timeout(PATIENCE, async {
        while let Some(payload) = heard.recv().await {
            if payload == name {
                return Some(began.elapsed());
            }
        }
        None
    });
    let took = arrival.await.unwrap_or(None);
    client.batch_execute(include_str!("../../sql/doctor_unlisten.sql")).await.sorted()?;
    Ok(took)
}

/// A connection that listens, and the payloads it hears.
async fn listen(connect: &Connect) -> Result<(Client, UnboundedReceiver<String>), StoreError> {
    let Connect { config, tls, runtime } = connect.clone();
    let (told, heard) = unbounded_channel();
    let connecting = runtime.clone().spawn(async move {
        let (client, mut connection) = config.connect(tls).await?;
        runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    // Whoever no longer waits has what it needs.
                    let _ = told.send(notification.payload().to_owned());
                }
            }
        });
        client.batch_execute(include_str!("../../sql/doctor_listen.sql")).await?;
        Ok(client)
    });
    let client = connecting.await.map_err(|error| StoreError::Failed(Box::new(error)))?.sorted()?;
    Ok((client, heard))
}

/// Whether there is room for more.
pub(super) async fn queue(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_notifications.sql"), &[]).await?;
    let used: f64 = rows.first().ok_or_else(nothing)?.try_get("used").sorted()?;
    let evidence = format!("{:.2} % of it is taken", used * 100.0);
    if used < patient.thresholds.notifications_warning {
        return Ok(vec![Finding::fine("wake-ups", "the queue of notifications is short", evidence)]);
    }
    let gravity = if used >= NOTIFICATIONS_GRAVE { Gravity::Grave } else { Gravity::Warning };
    let what = "the queue of notifications fills: when it is full, redrive.enqueue() and whoever else notifies fails";
    let remedy = "end the transaction of a session that listens; the server's log names its pid once the queue is half full";
    Ok(vec![Finding::new(gravity, "wake-ups", what, evidence, remedy)])
}
