//! What starts and running jobs are counted under: a queue by its name, a partition by its queue's name and its key.

use redrive_core::{Invalid, Partition, PartitionKey, Queue};

/// Between a queue and a key: no name has one.
const SEPARATOR: char = '\u{1f}';

/// What a partition is called across queues.
pub(crate) fn of(queue: &Queue, partition: &Partition) -> String {
    format!("{queue}{SEPARATOR}{}", partition.key)
}

/// The key in what a partition is called.
pub(crate) fn key(scope: &str) -> Result<PartitionKey, Invalid> {
    PartitionKey::new(scope.split_once(SEPARATOR).map_or(scope, |(_, key)| key))
}

/// The queue in what a partition is called.
pub(crate) fn queue(scope: &str) -> &str {
    scope.split_once(SEPARATOR).map_or(scope, |(queue, _)| queue)
}
