//! Checks that wake-ups arrive, with a real notification, and that the notification queue is not full.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use redrive_core::{Finding, Severity, StoreError};
use redrive_sql::Statement;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::DoctorContext;
use crate::error::{Error, Result};
use crate::pool::Connector;
use crate::sql;

static BACKEND: Statement = sql::DOCTOR.statement("backend");
static NOTIFY: Statement = sql::DOCTOR.statement("notify");
static UNLISTEN: Statement = sql::DOCTOR.statement("unlisten");
static LISTEN: Statement = sql::DOCTOR.statement("listen");
static NOTIFICATION_QUEUE: Statement = sql::DOCTOR.statement("notification_queue");

/// A slower wake-up is of no use, because workers poll every second anyway.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of statements on each of two connections. By then a pooler that shares connections has switched them.
const TRIES: usize = 3;
/// If the queue is fuller, commits that notify are about to fail.
const NOTIFICATION_QUEUE_CRITICAL: f64 = 0.75;

/// Checks that a notification arrives.
pub(super) async fn arrival(context: &DoctorContext<'_>) -> Finding {
    // With one connection left, this check is not possible.
    let pooled = is_pooled(context).await.unwrap_or(false);
    let arrival = match &context.listen {
        None => Arrival::Off,
        Some(connector) => match round_trip(context, connector).await {
            Ok(Some(took)) => Arrival::After(took),
            Ok(None) => Arrival::Lost,
            Err(error) => Arrival::Refused(error.explain()),
        },
    };
    judge(&arrival, pooled)
}

/// The result of sending a notification.
#[derive(Debug)]
enum Arrival {
    /// The address says not to listen.
    Off,
    After(Duration),
    Lost,
    /// Listening failed.
    Refused(String),
}

fn judge(arrival: &Arrival, pooled: bool) -> Finding {
    let route = if pooled {
        "calls go through a pooler that shares the server's connections"
    } else {
        "calls have connections of their own to the server"
    };
    let new = |severity, what, evidence, remedy| Finding::new(severity, "wake-ups", what, evidence, remedy);
    match arrival {
        Arrival::After(took) => {
            let evidence =
                format!("a notification came back after {:.1} ms; {route}", took.as_secs_f64() * 1e3);
            Finding::ok("wake-ups", "wake-ups arrive", evidence)
        }
        Arrival::Off => new(
            Severity::Note,
            "wake-ups are switched off: a job that another node enqueues starts up to a second late",
            format!("?listen=off; {route}"),
            "name the server itself with ?listen=HOST:PORT",
        ),
        Arrival::Lost => new(
            Severity::Warning,
            "wake-ups do not arrive: a job that another node enqueues starts up to a second late",
            format!(
                "LISTEN was accepted, and a notification did not come back within {ARRIVAL_TIMEOUT:?}; {route}"
            ),
            "name the server itself with ?listen=HOST:PORT, or turn wake-ups off with ?listen=off",
        ),
        Arrival::Refused(error) => new(
            Severity::Critical,
            "listening for wake-ups fails, and so a service does not start",
            format!("{error}; {route}"),
            "name the server itself with ?listen=HOST:PORT, or turn wake-ups off with ?listen=off",
        ),
    }
}

/// Whether a pooler between this host and the server shares connections between statements. Then two connections have the same server
/// process, or one connection changes its process.
async fn is_pooled(context: &DoctorContext<'_>) -> Result<bool> {
    let (pool, limit) = (&context.pool, context.timeout());
    let both = async |first: &Client| {
        pool.with_timeout(limit, async |second| {
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
    pool.with_timeout(limit, both).await
}

async fn backend(client: &Client) -> Result<i32> {
    let rows = client.query_typed(&BACKEND, &[]).await?;
    Ok(rows.first().ok_or_else(Error::no_row)?.try_get("pid")?)
}

/// Listens as a node does, notifies as another node does, and returns how long the notification took. None if it did not arrive.
async fn round_trip(context: &DoctorContext<'_>, connector: &Connector) -> Result<Option<Duration>> {
    let (client, mut payloads) =
        timeout(context.timeout(), listen(connector)).await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("the server for wake-ups does not answer".into()).into())
        })?;
    let name = format!("{:016x}", fastrand::u64(..));
    let began = Instant::now();
    context.pool.query(&NOTIFY, &[(&name, Type::TEXT)]).await?;
    let arrival = timeout(ARRIVAL_TIMEOUT, async {
        while let Some(payload) = payloads.recv().await {
            if payload == name {
                return Some(began.elapsed());
            }
        }
        None
    });
    let took = arrival.await.unwrap_or(None);
    client.batch_execute(&UNLISTEN).await?;
    Ok(took)
}

/// A connection that listens, and the payloads that it receives.
async fn listen(connector: &Connector) -> Result<(Client, UnboundedReceiver<String>)> {
    let Connector { config, tls, runtime } = connector.clone();
    let (sender, payloads) = unbounded_channel();
    let connecting = runtime.clone().spawn(async move {
        let (client, mut connection) = config.connect(tls).await?;
        runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    // Fails if the doctor no longer waits.
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        client.batch_execute(&LISTEN).await?;
        Ok::<_, Error>(client)
    });
    let client = connecting.await.map_err(Error::failed)??;
    Ok((client, payloads))
}

/// Checks that the notification queue is not full.
pub(super) async fn queue(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let rows = context.pool.query(&NOTIFICATION_QUEUE, &[]).await?;
    let used: f64 = rows.first().ok_or_else(Error::no_row)?.try_get("used")?;
    let evidence = format!("{:.2} % of it is used", used * 100.0);
    if used < context.thresholds.notification_queue_warning {
        return Ok(vec![Finding::ok("wake-ups", "the notification queue is nearly empty", evidence)]);
    }
    let severity = if used >= NOTIFICATION_QUEUE_CRITICAL { Severity::Critical } else { Severity::Warning };
    let what = "the notification queue is filling up: when it is full, redrive.enqueue() and all other commits that notify fail";
    let remedy = "end the transaction of a session that listens; the server's log names its pid once the queue is half full";
    Ok(vec![Finding::new(severity, "wake-ups", what, evidence, remedy)])
}
