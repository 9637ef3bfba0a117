//! Two schedules: every second, and each night at three in Berlin.

use std::time::Duration;

use redrive::{Context, MissedRuns, Redrive, Schedule, Task, shutdown_signal};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
struct Report {
    about: String,
}

#[tokio::main]
async fn main() -> Result<(), redrive::Error> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;

    // Setting the same schedule at each start, on each node, changes nothing. Each occurrence is enqueued once.
    let every_second = Schedule::every(Duration::from_secs(1))?;
    redrive.schedule("pulse", every_second, Report { about: "the last second".to_owned() }).await?;

    let at_three = Schedule::cron("0 3 * * *", "Europe/Berlin")?;
    redrive
        .schedule("nightly", at_three, Report { about: "yesterday".to_owned() })
        .missed(MissedRuns::All)
        .priority(9)
        .await?;
    for due in redrive.upcoming_occurrences("nightly", 3).await?.unwrap_or_default() {
        println!("nightly at {} ms", due.as_ms());
    }

    redrive
        .worker()
        .on(|job: Report, cx: Context| async move {
            println!("report about {}, due at {:?}", job.about, cx.occurrence());
            Ok(())
        })
        .run_until(shutdown_signal())
        .await?;
    Ok(())
}
