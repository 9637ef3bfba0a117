//! An order that takes days: charged once, packed by one job for each item, shipped once someone has approved it.

use std::time::Duration;

use redrive::{Context, JobError, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Order {
    id: u64,
    items: Vec<String>,
}

#[derive(Serialize, Deserialize, Task)]
struct Pack(String);

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

async fn fulfil(order: Order, cx: Context) -> Result<String, JobError> {
    // Runs once, even if the handler runs again.
    let receipt = cx.step("charge", || charge(order.id)).await?;
    // One job for each item. Waiting for them occupies no worker.
    cx.fan_out(order.items.into_iter().map(Pack)).await?;
    // redrive.signal(job, "approved", &true)
    let approved = cx.signal::<bool>("approved").timeout(WEEK).await?;
    if approved == Some(true) {
        cx.step("ship", || ship(order.id)).await?;
    }
    Ok(receipt)
}

async fn charge(order: u64) -> Result<String, JobError> {
    println!("charged order {order}");
    Ok(format!("receipt-{order}"))
}

async fn ship(order: u64) -> Result<(), JobError> {
    println!("shipped order {order}");
    Ok(())
}

async fn pack(Pack(item): Pack, _: Context) -> Result<(), JobError> {
    println!("packed {item}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let items = vec!["a kettle".to_owned(), "tea".to_owned()];
    let job = redrive.enqueue(Order { id: 7, items }).await?.id();
    // A signal that arrives before the job waits for it is kept.
    redrive.signal(job, "approved", &true).await?;
    let done = async { println!("{}", redrive.result::<Order>(job).await.unwrap_or_default()) };
    redrive.worker().concurrency(1).on(fulfil).on(pack).run_until(done).await?;
    Ok(())
}
