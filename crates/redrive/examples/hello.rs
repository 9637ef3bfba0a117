//! One task and one worker: the first example of the README.

use redrive::{Context, Redrive, Task, shutdown_signal};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
struct SendReceipt {
    order: u64,
}

#[tokio::main]
async fn main() -> Result<(), redrive::Error> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    redrive.enqueue(SendReceipt { order: 7 }).await?;
    redrive
        .worker()
        .on(|job: SendReceipt, _cx: Context| async move {
            println!("receipt for order {}", job.order);
            Ok(())
        })
        .run_until(shutdown_signal())
        .await?;
    Ok(())
}
