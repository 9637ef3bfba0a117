//! Jobs and schedules of programs that use the library, from the command line.

use redrive::{Context, JobError, JobId, Missed, Redrive, Schedule, Task};
use redrive_core::State;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::session::Session;
use crate::stage::eventually;

/// Renders an article, and waits until someone approves.
#[derive(Serialize, Deserialize)]
struct Publish {
    article: String,
}

impl Task for Publish {
    const KIND: &'static str = "publish";
    type Output = String;
}

#[derive(Serialize, Deserialize)]
struct Report {
    days: u32,
}

impl Task for Report {
    const KIND: &'static str = "report";
    type Output = ();
}

async fn publish(job: Publish, cx: Context) -> Result<String, JobError> {
    let page = cx.step("render", || async { Ok::<_, JobError>(format!("<h1>{}</h1>", job.article)) }).await?;
    let by: String = cx.signal("approved").await?;
    Ok(format!("{page} approved by {by}"))
}

/// A job that waits for a signal, one that is dead, and two schedules, left behind by a program that has ended.
async fn leave_behind(folder: &std::path::Path) -> (JobId, JobId) {
    let redrive = Redrive::open(&format!("sqlite:{}", folder.join("redrive.db").display())).await.unwrap();
    let waits = redrive.enqueue(Publish { article: "news".to_owned() }).queue("press").await.unwrap().id();
    let dead = redrive.enqueue(Report { days: 7 }).await.unwrap().id();
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    redrive
        .schedule("nightly", nightly, Report { days: 1 })
        .queue("reports")
        .missed(Missed::All)
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = redrive
        .worker()
        .on(publish)
        .on(|_: Report, _: Context| async { Err::<(), _>(JobError::reject("no such\x1b[2J report")) });
    let ended =
        tokio::spawn(async move { worker.run_until(async { stopped.await.unwrap_or_default() }).await });
    eventually("both have come to rest", async || {
        let jobs = redrive.backend().get(vec![waits, dead]).await.unwrap();
        let states: Vec<State> = jobs.into_iter().flatten().map(|job| job.state).collect();
        (states == [State::Waiting, State::Dead]).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    ended.await.unwrap().unwrap();
    (waits, dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_schedules_of_programs() {
    let folder = tempfile::tempdir().unwrap();
    let (waits, dead) = leave_behind(folder.path()).await;
    let (waits, dead) = (waits.to_string(), dead.to_string());
    let mut session = Session::start_in(folder).await;
    session.run(&["schedule", "list"]);
    session.run(&["schedule", "list", "--json"]);
    session.run(&["schedule", "pause", "nightly"]);
    session.run(&["schedule", "list"]);
    session.run(&["schedule", "resume", "nightly", "--json"]);
    session.run(&["schedule", "run-now", "nightly"]);
    session.run(&["schedule", "run-now", "nightly", "--json"]);
    session.run(&["schedule", "pause", "weekly"]);
    session.run(&["job", "list", "--kind", "publish"]);
    session.run(&["job", "get", &waits]);
    session.run(&["job", "steps", &waits]);
    session.run(&["job", "steps", &waits, "--json"]);
    session.run(&["job", "signal", &waits, "approved", "\"Ada\"", "--key", "approval-1"]);
    session.run(&["dead", "list", "--kind", "report"]);
    session.run(&["dead", "export", "--kind", "report"]);
    session.run(&["job", "get", &dead]);
    session.run(&["dead", "redrive", "--kind", "report"]);
    session.run(&["job", "get", &dead, "--json"]);
    session.run(&["queue", "list"]);
    session.check("library");
}
