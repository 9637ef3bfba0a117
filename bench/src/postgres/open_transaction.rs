//! Measures the cost of another session's open transaction. While it is open, vacuum cannot remove dead rows.

use std::time::{Duration, Instant};

use redrive_core::{PolicyRef, Start};
use redrive_store_postgres::PostgresStore;

use super::{Database, Run, probe};
use crate::comparison::figure;
use crate::drain::drain;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// Jobs of one round.
const ROUND: usize = 50_000;
/// The longest time at the end of a run that the bar compares.
const WINDOW_MAX: Duration = Duration::from_secs(60);

/// Copies of a drained job, with ids in the order in which they were added.
const ENDED_JOBS: &str = "
    CREATE TEMP TABLE added AS
    SELECT
      (lpad(to_hex(1700000000000 + n / 50), 12, '0') || '7' || lpad(to_hex(n % 50), 3, '0') || substr(md5(n::text), 1, 16))::uuid AS id,
      1700000000000 + n / 50 AS at
    FROM generate_series(1, {jobs}) AS n;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload)
    SELECT added.id, one.lane, added.at, added.at, one.tenant, one.policy, one.payload
    FROM added, (SELECT * FROM redrive.jobs LIMIT 1) AS one;
    INSERT INTO redrive.ended (id, epoch, started_at, finished_at, attempt, state, worker)
    SELECT added.id, one.epoch, added.at, added.at, 1, 4, one.worker
    FROM added, (SELECT * FROM redrive.ended LIMIT 1) AS one;
    INSERT INTO redrive.counts (lane, state, jobs) SELECT lane, 4, {jobs} FROM (SELECT lane FROM redrive.jobs LIMIT 1) AS one;
    DROP TABLE added";

/// Drains next to the transaction, then in a new database that has the same number of ended jobs. The bar compares the ends of the two
/// runs, when the tables have the same size.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let span = run.size.open_transaction;
    let window = (span / 3).min(WINDOW_MAX);
    let database = run.server.database();
    let held = setup::block_on(async {
        let other = probe::connect(&database.address()).await?;
        other.batch_execute("CREATE TABLE other_session (note text)").await?;
        other.batch_execute("BEGIN; INSERT INTO other_session VALUES ('uncommitted')").await?;
        let (jobs, pause) = (run.size.open_transaction_jobs, run.size.open_transaction_round);
        let held = Rounds::open(&database).await?.drain(span, jobs, pause).await?;
        other.batch_execute("ROLLBACK").await?;
        Ok(held)
    })?;
    drop(database);
    let held_last = last_rounds(&held, window);
    // This part may have taken an hour.
    eprintln!(
        "next to the transaction: {} jobs, in the end {} /s",
        held.len() * ROUND,
        rates(held_last).median()
    );
    let database = run.server.database();
    let free = setup::block_on(async {
        let mut rounds = Rounds::open(&database).await?;
        rounds.add_ended_jobs(&database, (held.len() - held_last.len()) * ROUND).await?;
        rounds.drain(Duration::ZERO, held_last.len() * ROUND, Duration::ZERO).await
    })?;
    let (jobs, minutes) = (held.len() * ROUND, duration(&held).as_secs_f64() / 60.0);
    let all = format!("drain of {jobs} jobs in {minutes:.1} min next to an open transaction");
    let last = format!("drain in the last {window:?} of it");
    let without = ("without it".to_owned(), rates(&free));
    Ok(vec![
        figure(&all, "/s", &rates(&held), None, None),
        figure(&last, "/s", &rates(held_last), Some(without), Some(Bar::AtLeast(0.9))),
    ])
}

fn duration(rounds: &[Round]) -> Duration {
    rounds.last().map_or(Duration::ZERO, |round| round.ended)
}

fn last_rounds(rounds: &[Round], window: Duration) -> &[Round] {
    let ended = duration(rounds);
    let first = rounds.iter().position(|round| round.ended + window > ended);
    &rounds[first.unwrap_or(rounds.len())..]
}

fn rates(rounds: &[Round]) -> Samples {
    Samples::of(rounds.iter().map(|round| round.rate))
}

/// One fill and drain.
#[derive(Clone, Copy)]
struct Round {
    /// Jobs per second of the drain.
    rate: f64,
    /// The time from the start of the first round to the end of this one.
    ended: Duration,
}

struct Rounds {
    store: PostgresStore,
    policy: PolicyRef,
    /// Jobs drained so far.
    drained: usize,
}

impl Rounds {
    async fn open(database: &Database<'_>) -> anyhow::Result<Self> {
        let (store, policy) = database.open().await?;
        Ok(Self { store, policy, drained: 0 })
    }

    /// Adds this number of jobs that have ended, with the rows that a drain leaves of them.
    async fn add_ended_jobs(&mut self, database: &Database<'_>, jobs: usize) -> anyhow::Result<()> {
        // The drain creates the lane.
        self.drain(Duration::ZERO, ROUND, Duration::ZERO).await?;
        let client = probe::connect(&database.address()).await?;
        client.batch_execute(&ENDED_JOBS.replace("{jobs}", &jobs.to_string())).await?;
        // Autovacuum would otherwise do this during the measurement.
        for sql in ["VACUUM ANALYZE", "CHECKPOINT"] {
            client.batch_execute(sql).await?;
        }
        self.drained += jobs;
        Ok(())
    }

    /// Fills and drains until `span` has passed and at least `jobs` jobs were drained. A round starts no sooner than `pause` after the start
    /// of the one before.
    async fn drain(&mut self, span: Duration, jobs: usize, pause: Duration) -> anyhow::Result<Vec<Round>> {
        let (mut rounds, started) = (Vec::new(), Instant::now());
        while started.elapsed() < span || rounds.len() * ROUND < jobs || rounds.is_empty() {
            tokio::time::sleep_until((started + pause * rounds.len() as u32).into()).await;
            setup::fill(&self.store, &self.policy, ROUND, Start::Now).await?;
            let rate = drain(&self.store, ROUND, self.drained).await?;
            self.drained += ROUND;
            rounds.push(Round { rate, ended: started.elapsed() });
        }
        Ok(rounds)
    }
}
