//! Limits mail to fifty at once, a thousand per minute and two at once for each customer, and runs changes in order.

use redrive::{Context, JobError, Limits, Queue, QueueLimits, Rate, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Mail {
    to: String,
}

#[derive(Serialize, Deserialize, Task)]
struct Change {
    id: u64,
}

async fn enqueue(
    redrive: &Redrive,
    customer: &str,
    document: &str,
) -> Result<redrive::JobId, redrive::Error> {
    let limits = QueueLimits {
        // For the whole queue, on all nodes together.
        concurrency: Some(50),
        rate: Some(Rate { count: 1000, per_ms: 60_000 }),
        // For each partition key.
        per_key: Limits { concurrency: Some(2), rate: None },
    };
    redrive.set_limits(&Queue::new("mail")?, limits).await?;
    let to = format!("{customer}@example.org");
    let mail = redrive.enqueue(Mail { to }).queue("mail").partition_key(customer).await?;
    for id in 1..=3 {
        redrive.enqueue(Change { id }).in_order(document).await?;
    }
    Ok(mail.id())
}

async fn send(mail: Mail, _: Context) -> Result<String, JobError> {
    Ok(format!("mail to {}", mail.to))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let mail = enqueue(&redrive, "ada", "contract").await?;
    let (changed, mut changes) = tokio::sync::mpsc::unbounded_channel();
    let done = async {
        for _ in 1..=3 {
            println!("change {}", changes.recv().await.unwrap_or(0));
        }
        println!("{}", redrive.result::<Mail>(mail).await.unwrap_or_default());
    };
    let change = move |change: Change, _: Context| {
        let _ = changed.send(change.id);
        async { Ok(()) }
    };
    redrive.worker().on(send).on(change).run_until(done).await?;
    Ok(())
}
