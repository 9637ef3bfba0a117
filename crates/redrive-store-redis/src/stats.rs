//! Counts by queue and state, kept as jobs move.

use redrive_core::store::Stats;
use redrive_core::{Queue, StoreError};

use crate::open::Inner;
use crate::row::SEPARATOR;
use crate::{answer, claim, script};

pub(crate) async fn stats(inner: &Inner) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    for value in inner.run_on_all(&script::STATS, &inner.arguments()).await? {
        let [now, counts] = answer::parts(value)?;
        stats.now = answer::instant(now)?;
        for pair in answer::texts(counts)?.chunks_exact(2) {
            let (queue, state) = pair[0].split_once(SEPARATOR).ok_or_else(|| answer::odd("a queue"))?;
            let count: u64 = pair[1].parse().map_err(|_| answer::odd("a count"))?;
            *stats.counts.entry((Queue::new(queue)?, answer::state(state)?)).or_default() += count;
        }
    }
    let (_, heads) = claim::heads(inner).await?;
    let oldest = heads.into_iter().flatten().map(|(_, due)| due).min();
    stats.oldest_due = oldest.filter(|due| *due <= stats.now);
    Ok(stats)
}
