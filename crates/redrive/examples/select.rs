//! An order that waits for its payment, its withdrawal, or a timeout of one day, whichever comes first.

use std::time::Duration;

use redrive::{Context, JobError, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Order {
    id: u64,
}

enum Next {
    Paid(u64),
    Withdrawn,
    TimedOut,
}

async fn fulfil(order: Order, cx: Context) -> Result<String, JobError> {
    let day = Duration::from_secs(24 * 60 * 60);
    let next = cx
        .select([
            cx.signal::<u64>("paid").map(Next::Paid),
            cx.signal::<()>("withdrawn").map(|()| Next::Withdrawn),
            cx.sleep(day).map(|()| Next::TimedOut),
        ])
        .await?;
    Ok(match next {
        Next::Paid(cents) => format!("order {} was paid: {cents} cents", order.id),
        Next::Withdrawn => format!("order {} was withdrawn", order.id),
        Next::TimedOut => format!("order {} was not paid within a day", order.id),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let job = redrive.enqueue(Order { id: 7 }).await?.id();
    redrive.signal(job, "paid", &4_200_u64).await?;
    let done = async { println!("{:?}", redrive.result::<Order>(job).await) };
    redrive.worker().on(fulfil).run_until(done).await?;
    Ok(())
}
