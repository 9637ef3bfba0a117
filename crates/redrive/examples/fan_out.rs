//! Resizes a picture: one job for each size, and a parent job that waits for them without occupying a worker.

use redrive::{Context, JobError, Redrive, Task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
#[task(output = Vec<String>)]
struct Publish {
    picture: String,
}

#[derive(Serialize, Deserialize, Task)]
#[task(output = String)]
struct Resize {
    picture: String,
    width: u32,
}

async fn publish(job: Publish, cx: Context) -> Result<Vec<String>, JobError> {
    let sizes = [320, 640, 1280, 2560].map(|width| Resize { picture: job.picture.clone(), width });
    // Two of four must succeed. A plain `.await` needs all of them, and `.collect_all()` none.
    let results = cx.fan_out(sizes).each(|child| child.queue("pictures")).threshold(2).await?;
    Ok(results.into_iter().flatten().collect())
}

async fn resize(job: Resize, _: Context) -> Result<String, JobError> {
    if job.width > 2000 {
        return Err(JobError::reject("the picture is not that large"));
    }
    Ok(format!("{}-{}.jpg", job.picture, job.width))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;
    let job = redrive.enqueue(Publish { picture: "sunset".to_owned() }).await?.id();
    let done = async {
        for name in redrive.result::<Publish>(job).await.unwrap_or_default() {
            println!("{name}");
        }
    };
    redrive.worker().on(publish).on(resize).run_until(done).await?;
    Ok(())
}
