//! Three jobs: one succeeds, one is retried, one is dead and redriven.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::{Backoff, Context, JobError, Policy, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = String, policy = deliver_policy())]
struct Deliver {
    to: String,
}

fn deliver_policy() -> Policy {
    Policy::default().with_backoff(Backoff::fixed(Duration::from_millis(50)).expect("a legal wait"))
}

static SNOW: AtomicBool = AtomicBool::new(true);

async fn deliver(parcel: Deliver, cx: Context) -> Result<String, JobError> {
    match parcel.to.as_str() {
        // Temporary: retried after a wait, as often as the policy allows.
        "the farm" if cx.job.attempt < 3 => Err(JobError::fail("the road is blocked")),
        // Permanent: dead at once, and kept until someone redrives or discards it.
        "the lodge" if SNOW.load(Ordering::Relaxed) => Err(JobError::reject("no such address")),
        to => Ok(format!("{to}: delivered with attempt {}", cx.job.attempt)),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let mut jobs = Vec::new();
    for to in ["the town", "the farm", "the lodge"] {
        jobs.push(redrive.enqueue(Deliver { to: to.to_owned() }).await?.id());
    }
    let lodge = jobs[2];
    let done = async {
        for job in jobs {
            match redrive.result::<Deliver>(job).await {
                Ok(answer) => println!("{answer}"),
                Err(error) => println!("the lodge: {error}"),
            }
        }
        SNOW.store(false, Ordering::Relaxed);
        println!("the lodge: {:?}", redrive.redrive_job(lodge).await);
        println!("{}", redrive.result::<Deliver>(lodge).await.unwrap_or_default());
    };
    redrive.worker().on(deliver).run_until(done).await?;
    Ok(())
}
