//! Commands on jobs and schedules of programs that use the library.

use redrive::{Context, JobError, JobId, MissedRuns, Redrive, Schedule, Task};
use redrive_core::State;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::cli::session::Session;
use crate::fixtures::eventually;

/// Renders an article, and waits until someone approves it.
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

/// Runs a program that leaves a job that waits for a signal, a dead job and a schedule in the store.
async fn run_program(folder: &std::path::Path) -> (JobId, JobId) {
    let redrive = Redrive::open(&format!("sqlite:{}", folder.join("redrive.db").display())).await.unwrap();
    let waits = redrive.enqueue(Publish { article: "news".to_owned() }).queue("press").await.unwrap().id();
    let dead = redrive.enqueue(Report { days: 7 }).await.unwrap().id();
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    redrive
        .schedule("nightly", nightly, Report { days: 1 })
        .queue("reports")
        .missed(MissedRuns::All)
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = redrive
        .worker()
        .on(publish)
        .on(|_: Report, _: Context| async { Err::<(), _>(JobError::reject("no such\x1b[2J report")) });
    let worker =
        tokio::spawn(async move { worker.run_until(async { stopped.await.unwrap_or_default() }).await });
    eventually("one job waits and the other is dead", async || {
        let jobs = redrive.backend().get(vec![waits, dead]).await.unwrap();
        let states: Vec<State> = jobs.into_iter().flatten().map(|job| job.state).collect();
        (states == [State::Waiting, State::Dead]).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    worker.await.unwrap().unwrap();
    (waits, dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_schedules_of_programs() {
    let folder = tempfile::tempdir().unwrap();
    let (waits, dead) = run_program(folder.path()).await;
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
    session.compare_with("library");
}
