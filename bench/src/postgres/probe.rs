//! Raw Postgres without an engine: claims 500 jobs with SKIP LOCKED and completes them with unnest, from four connections.

use std::time::Instant;

use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// Connections that drain at the same time.
const CONNECTIONS: usize = 4;
/// Jobs in one claim.
const CLAIM: i64 = 500;

const TABLE: &str = "
    CREATE TABLE raw (id uuid PRIMARY KEY, state smallint NOT NULL DEFAULT 0, run_at bigint NOT NULL, payload bytea NOT NULL);
    CREATE INDEX raw_due ON raw (run_at, id) WHERE state = 0";
const FILL: &str = "
    INSERT INTO raw (id, run_at, payload) SELECT gen_random_uuid(), n, $1 FROM generate_series(1, $2::bigint) AS n";
const CLAIM_SQL: &str = "
    UPDATE raw SET state = 1 WHERE id IN (
      SELECT id FROM raw WHERE state = 0 ORDER BY run_at, id LIMIT $1 FOR UPDATE SKIP LOCKED
    ) RETURNING id, payload";
const COMPLETE_SQL: &str =
    "UPDATE raw SET state = 2 FROM unnest($1::uuid[]) AS done (id) WHERE raw.id = done.id";

/// Jobs per second.
pub(super) async fn drain(address: &str, jobs: usize, payload: &[u8]) -> anyhow::Result<f64> {
    let client = connect(address).await?;
    client.batch_execute(TABLE).await?;
    client.execute(FILL, &[&payload, &(jobs as i64)]).await?;
    client.batch_execute("ANALYZE raw").await?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(address).await?);
    }
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for connection in connections {
        tasks.spawn(work(connection));
    }
    let mut done = 0;
    while let Some(completed) = tasks.join_next().await {
        done += completed??;
    }
    let rate = jobs as f64 / started.elapsed().as_secs_f64();
    anyhow::ensure!(done == jobs, "the probe completed {done} of {jobs}");
    Ok(rate)
}

async fn work(client: Client) -> anyhow::Result<usize> {
    let (claim, complete) = (client.prepare(CLAIM_SQL).await?, client.prepare(COMPLETE_SQL).await?);
    let mut done = 0;
    loop {
        let rows = client.query(&claim, &[&CLAIM]).await?;
        if rows.is_empty() {
            return Ok(done);
        }
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        done += client.execute(&complete, &[&ids]).await? as usize;
    }
}

/// Opens a connection that does not belong to the store.
pub(super) async fn connect(address: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
