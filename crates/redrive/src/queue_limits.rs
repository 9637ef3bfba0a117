//! Limits of queues and partition keys: how many jobs run at once, how many start per interval, and in which order.

use redrive_core::queue_limits::QueueLimits;
use redrive_core::records::Records;
use redrive_core::{Order, Partition, PartitionKey, Queue};

use crate::{Enqueue, Error, Redrive};

impl Redrive {
    /// Sets the limits of a queue. They apply on every node from its next claim. A job that waits for a free slot is charged no
    /// attempt.
    ///
    /// ```
    /// # use redrive::{Limits, Queue, QueueLimits, Rate, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let mail = Queue::new("mail")?;
    /// let limits = QueueLimits {
    ///     concurrency: Some(50),
    ///     rate: Some(Rate { count: 1000, per_ms: 60_000 }),
    ///     per_key: Limits { concurrency: Some(2), rate: None },
    /// };
    /// redrive.set_limits(&mail, limits).await?;
    /// assert_eq!(redrive.limits(&mail).await?, limits);
    /// # Ok(()) }
    /// ```
    pub async fn set_limits(&self, queue: &Queue, limits: QueueLimits) -> Result<(), Error> {
        limits.check()?;
        Records::new(&**self.backend()).put(queue.as_str(), &limits).await?;
        Ok(())
    }

    /// Removes the limits of a queue.
    pub async fn remove_limits(&self, queue: &Queue) -> Result<(), Error> {
        Ok(Records::<QueueLimits>::new(&**self.backend()).remove(queue.as_str()).await?)
    }

    /// Reads the limits of a queue.
    pub async fn limits(&self, queue: &Queue) -> Result<QueueLimits, Error> {
        let record = Records::<QueueLimits>::new(&**self.backend()).get(queue.as_str()).await?;
        Ok(record.map(|record| record.value).unwrap_or_default())
    }
}

impl Enqueue {
    /// Sets the partition key. Jobs of a queue with the same key share the limits per key; see [`Redrive::set_limits`].
    ///
    /// ```
    /// # use redrive::{Limits, Queue, QueueLimits, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Mail { to: String }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let two_at_once = QueueLimits { per_key: Limits { concurrency: Some(2), rate: None }, ..QueueLimits::default() };
    /// redrive.set_limits(&Queue::new("mail")?, two_at_once).await?;
    /// redrive.enqueue(Mail { to: "a@example.org".to_owned() }).queue("mail").partition_key("customer-7").await?;
    /// # Ok(()) }
    /// ```
    pub fn partition_key(self, key: &str) -> Self {
        self.partition_in(key, Order::Any)
    }

    /// Sets the partition key, and runs the jobs of the queue with the same key one after the other, in the order of their
    /// enqueues. A job starts only after the one before it has ended, including its retries.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Change { revision: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// for revision in 1..=3 {
    ///     redrive.enqueue(Change { revision }).in_order("document-7").await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn in_order(self, key: &str) -> Self {
        self.partition_in(key, Order::Strict)
    }

    fn partition_in(self, key: &str, order: Order) -> Self {
        let partition = PartitionKey::new(key).map(|key| Partition { key, order });
        self.set(partition, |draft, partition| draft.partition = Some(partition))
    }
}
