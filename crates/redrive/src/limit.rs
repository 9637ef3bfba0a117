//! How much of a queue or of a key may run at once, how often, and in which order.

use redrive_core::quota::{QUOTA, Quota};
use redrive_core::records::{Change, Expect};
use redrive_core::{Order, Partition, PartitionKey, Queue};

use crate::{Enqueue, Error, Redrive};

impl Redrive {
    /// Bounds a queue, on every node from its next claim on. What has no room waits at no cost of an attempt.
    ///
    /// ```
    /// # use redrive::{Bounds, Queue, Quota, Rate, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let mail = Queue::new("mail")?;
    /// let quota = Quota {
    ///     concurrency: Some(50),
    ///     rate: Some(Rate { count: 1000, per_ms: 60_000 }),
    ///     per_key: Bounds { concurrency: Some(2), rate: None },
    /// };
    /// redrive.limit(&mail, quota).await?;
    /// assert_eq!(redrive.limit_of(&mail).await?, quota);
    /// # Ok(()) }
    /// ```
    pub async fn limit(&self, queue: &Queue, quota: Quota) -> Result<(), Error> {
        quota.check()?;
        let value = serde_json::to_vec(&quota).map_err(|source| Error::Payload { kind: "quota", source })?;
        self.write_quota(queue, Some(value)).await
    }

    /// Lets as much of a queue run as workers can.
    pub async fn unlimit(&self, queue: &Queue) -> Result<(), Error> {
        self.write_quota(queue, None).await
    }

    /// The bounds of a queue.
    pub async fn limit_of(&self, queue: &Queue) -> Result<Quota, Error> {
        let record = self.backend().read(QUOTA, queue.as_str()).await?;
        Ok(record.map_or_else(Quota::default, |record| Quota::read(&record.value)))
    }

    async fn write_quota(&self, queue: &Queue, value: Option<Vec<u8>>) -> Result<(), Error> {
        let (kind, id) = (QUOTA.to_owned(), queue.as_str().to_owned());
        self.backend().write(Change { kind, id, expect: Expect::Any, value }).await?;
        Ok(())
    }
}

impl Enqueue {
    /// Counts it under `key` for the queue's bounds per key; see [`Redrive::limit`].
    ///
    /// ```
    /// # use redrive::{Bounds, Queue, Quota, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Mail { to: String }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let two_at_once = Quota { per_key: Bounds { concurrency: Some(2), rate: None }, ..Quota::default() };
    /// redrive.limit(&Queue::new("mail")?, two_at_once).await?;
    /// redrive.enqueue(Mail { to: "a@example.org".to_owned() }).queue("mail").limit_key("customer-7").await?;
    /// # Ok(()) }
    /// ```
    pub fn limit_key(self, key: &str) -> Self {
        self.partition(key, Order::Any)
    }

    /// Runs it after every job of its queue that was enqueued in order under the same key before it and has not ended,
    /// retries included: one after the other, in the order of their enqueue.
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
        self.partition(key, Order::Strict)
    }

    fn partition(self, key: &str, order: Order) -> Self {
        let partition = PartitionKey::new(key).map(|key| Partition { key, order });
        self.set(partition, |draft, partition| draft.partition = Some(partition))
    }
}
