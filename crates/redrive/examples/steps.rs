//! An order in steps. Each step runs once, although the handler fails and runs again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::{Backoff, Context, JobError, Policy, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String, policy = order_policy())]
struct Order {
    id: u64,
}

fn order_policy() -> Policy {
    Policy::default().with_backoff(Backoff::fixed(Duration::from_millis(100)).expect("a legal wait"))
}

async fn fulfil(order: Order, cx: Context) -> Result<String, JobError> {
    println!("attempt {}", cx.job.attempt);
    let receipt = cx.step("charge", || charge(order.id)).await?;
    // Occupies no worker, and survives a restart.
    cx.sleep(Duration::from_millis(300)).await?;
    cx.step("ship", || ship(order.id)).await?;
    Ok(receipt)
}

async fn charge(order: u64) -> Result<String, JobError> {
    println!("charged order {order}");
    Ok(format!("receipt-{order}"))
}

async fn ship(order: u64) -> Result<(), JobError> {
    static BROKEN: AtomicBool = AtomicBool::new(true);
    if BROKEN.swap(false, Ordering::Relaxed) {
        return Err(JobError::fail("no van in the yard"));
    }
    println!("shipped order {order}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let job = redrive.enqueue(Order { id: 7 }).await?.id();
    let done = async { println!("done: {:?}", redrive.result::<Order>(job).await) };
    redrive.worker().on(fulfil).run_until(done).await?;
    Ok(())
}
