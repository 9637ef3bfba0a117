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

/// Drains next to the transaction, then the same number of jobs without it in a new database. The bar compares the ends of the two runs,
/// when the tables have the same size.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (span, jobs) = (run.size.open_transaction, run.size.open_transaction_jobs);
    let window = (span / 3).min(WINDOW_MAX);
    let database = run.server.database();
    let held = setup::block_on(async {
        let other = probe::connect(&database.address()).await?;
        other.batch_execute("CREATE TABLE other_session (note text)").await?;
        other.batch_execute("BEGIN; INSERT INTO other_session VALUES ('uncommitted')").await?;
        let held = Rounds::open(&database).await?.drain(span, jobs).await?;
        other.batch_execute("ROLLBACK").await?;
        Ok(held)
    })?;
    drop(database);
    let database = run.server.database();
    let free = setup::block_on(async {
        Rounds::open(&database).await?.drain(Duration::ZERO, held.len() * ROUND).await
    })?;
    Ok(compare(&free, &held, window))
}

fn compare(free: &[Round], held: &[Round], window: Duration) -> Vec<Figure> {
    let row = |name: String, held: &[Round], free: &[Round], bar| {
        let without = ("without it".to_owned(), rates(free));
        figure(&name, "/s", &rates(held), Some(without), bar)
    };
    let (jobs, minutes) = (held.len() * ROUND, duration(held).as_secs_f64() / 60.0);
    let all = format!("drain of {jobs} jobs in {minutes:.1} min next to an open transaction");
    let last = format!("drain in the last {window:?} of it");
    let (held_last, free_last) = (last_rounds(held, window), last_rounds(free, window));
    // The last rounds of both, as many as both have.
    let count = held_last.len().min(free_last.len());
    let (held_last, free_last) =
        (&held_last[held_last.len() - count..], &free_last[free_last.len() - count..]);
    vec![row(all, held, free, None), row(last, held_last, free_last, Some(Bar::AtLeast(0.9)))]
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

    /// Fills and drains until `span` has passed and at least `jobs` jobs were drained.
    async fn drain(&mut self, span: Duration, jobs: usize) -> anyhow::Result<Vec<Round>> {
        let (mut rounds, started) = (Vec::new(), Instant::now());
        while started.elapsed() < span || rounds.len() * ROUND < jobs || rounds.is_empty() {
            setup::fill(&self.store, &self.policy, ROUND, Start::Now).await?;
            let rate = drain(&self.store, ROUND, self.drained).await?;
            self.drained += ROUND;
            rounds.push(Round { rate, ended: started.elapsed() });
        }
        Ok(rounds)
    }
}
