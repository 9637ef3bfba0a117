//! A task that comes back: every second, and at three each night in Berlin.

use std::time::Duration;

use redrive::{Context, Missed, Redrive, Schedule, Task, shutdown_signal};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Task)]
struct Report {
    about: String,
}

#[tokio::main]
async fn main() -> Result<(), redrive::Error> {
    let redrive = Redrive::open("sqlite:jobs.db").await?;

    // Said again at each start, it changes nothing. Another node may say it too: each occurrence is run for once.
    let every_second = Schedule::every(Duration::from_secs(1))?;
    redrive.schedule("pulse", every_second, Report { about: "the last second".to_owned() }).await?;

    let at_three = Schedule::cron("0 3 * * *", "Europe/Berlin")?;
    redrive
        .schedule("nightly", at_three, Report { about: "yesterday".to_owned() })
        .missed(Missed::All)
        .priority(9)
        .await?;
    for due in redrive.upcoming("nightly", 3).await?.unwrap_or_default() {
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
