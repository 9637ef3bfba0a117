//! Measures the drain with a limit for each of a thousand partition keys.

use std::sync::Arc;

use redrive::{Limits, Queue, QueueLimits, Redrive};
use redrive_core::{NewJob, Order, Partition, PartitionKey, Start};

use super::Run;
use crate::comparison::figure;
use crate::drain::drain;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// The partition keys.
const KEYS: usize = 1_000;
/// Jobs of a key that may run at once.
const CONCURRENCY: u32 = 4;

/// Compares jobs that share limits by key with the same number of jobs without keys.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (mut limited, mut unlimited) = (Vec::new(), Vec::new());
    for _ in 0..run.size.repeats {
        unlimited.push(rate(run, JobKeys::None)?);
        limited.push(rate(run, JobKeys::Limited)?);
    }
    let name = format!("drain with at most {CONCURRENCY} at once of each of {KEYS} partition keys");
    let other = Some(("without partition keys".to_owned(), Samples::of(unlimited)));
    Ok(vec![figure(&name, "/s", &Samples::of(limited), other, Some(Bar::AtLeast(0.6)))])
}

/// The partition keys of the jobs.
#[derive(Clone, Copy)]
enum JobKeys {
    None,
    Limited,
}

impl JobKeys {
    fn of(self, job: usize) -> anyhow::Result<Option<Partition>> {
        Ok(match self {
            Self::None => None,
            Self::Limited => {
                let key = PartitionKey::new(format!("key-{}", job % KEYS))?;
                Some(Partition { key, order: Order::Any })
            }
        })
    }
}

fn rate(run: &Run<'_>, keys: JobKeys) -> anyhow::Result<f64> {
    let (database, jobs) = (run.server.database(), run.size.jobs);
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        if matches!(keys, JobKeys::Limited) {
            let per_key = Limits { concurrency: Some(CONCURRENCY), rate: None };
            let limits = QueueLimits { per_key, ..QueueLimits::default() };
            Redrive::on(Arc::new(store.clone())).set_limits(&Queue::default(), limits).await?;
        }
        let make = |job| Ok(NewJob { partition: keys.of(job)?, ..setup::job(&policy, Start::Now)? });
        setup::fill_with(&store, jobs, make).await?;
        drain(&store, jobs, 0).await
    })
}
