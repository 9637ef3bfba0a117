//! An expense that someone must approve within a week.

use std::time::Duration;

use redrive::{Context, JobError, Redrive, State, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Expense {
    euros: u32,
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

async fn expense(job: Expense, cx: Context) -> Result<String, JobError> {
    let approved = cx.signal::<bool>("approved").timeout(WEEK).await?;
    Ok(match approved {
        Some(true) => format!("{} euros are paid", job.euros),
        Some(false) => "it was refused".to_owned(),
        None => "nobody answered within a week".to_owned(),
    })
}

/// Approves the expense, as a web page would.
async fn approve(redrive: &Redrive, job: redrive::JobId) -> Result<(), redrive::Error> {
    while redrive.get(job).await?.is_none_or(|job| job.awaits.is_none()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("the expense is {}", redrive.get(job).await?.map_or(State::Dead, |job| job.state));
    redrive.signal(job, "approved", &true).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let job = redrive.enqueue(Expense { euros: 42 }).await?.id();
    let done = async {
        if let Err(error) = approve(&redrive, job).await {
            println!("{error}");
        }
        println!("{}", redrive.result::<Expense>(job).await.unwrap_or_default());
    };
    redrive.worker().on(expense).run_until(done).await?;
    Ok(())
}
