//! A service and a worker of the library on one database, a target that works and one that fails, and jobs in every state.

use std::time::Duration;

use redrive::{Context, JobError, JobId, MissedRuns, Redrive, Schedule, Task};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually, redrive};

/// Renders an article, makes pictures of it, and waits until someone approves it.
#[derive(Serialize, Deserialize)]
struct Publish {
    article: String,
}

impl Task for Publish {
    const KIND: &'static str = "publish";
    type Output = String;
}

#[derive(Serialize, Deserialize)]
struct Resize {
    width: u32,
}

impl Task for Resize {
    const KIND: &'static str = "resize";
    type Output = u32;
}

/// Charges an amount, which always fails.
#[derive(Serialize, Deserialize)]
struct Charge {
    euros: u32,
    token: String,
}

impl Task for Charge {
    const KIND: &'static str = "charge";
    type Output = u32;
}

#[derive(Serialize, Deserialize)]
struct Report {}

impl Task for Report {
    const KIND: &'static str = "report";
    type Output = ();
}

async fn publish(job: Publish, cx: Context) -> Result<String, JobError> {
    let page = cx.step("render", || async { Ok::<_, JobError>(format!("<h1>{}</h1>", job.article)) }).await?;
    let pictures = cx.fan_out([320, 640].map(|width| Resize { width })).collect_all().await?;
    let by: String = cx.signal("approved").await?;
    Ok(format!("{page} with {} pictures, approved by {by}", pictures.len()))
}

async fn charge(job: Charge, cx: Context) -> Result<u32, JobError> {
    cx.step("reserve", || async { Ok::<_, JobError>(job.euros) }).await?;
    Err(JobError::reject("no such account"))
}

/// Everything that the tests of the console need.
pub(super) struct ConsoleFixture {
    pub(super) service: Service,
    pub(super) client: Client,
    pub(super) key: String,
    pub(super) failing_target: Target,
    pub(super) working_target: Target,
    /// A task that is dead after three attempts.
    pub(super) dead_task: String,
    /// A task that is due in an hour.
    pub(super) delayed_task: String,
    /// A job with steps and children that waits for a signal.
    pub(super) waiting_job: String,
    /// A dead job of the library.
    pub(super) dead_job: String,
    stop: oneshot::Sender<()>,
    worker: JoinHandle<()>,
    _folder: tempfile::TempDir,
    _server: Postgres,
}

impl ConsoleFixture {
    pub(super) async fn start() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        let folder = tempfile::tempdir().unwrap();
        let create = ["key", "create", "--name", "ops", "--scope", "admin", "--store", &server.address()];
        let output = redrive(folder.path()).args(create).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let key = String::from_utf8(output.stdout).unwrap();
        let key = key.split_whitespace().find(|word| word.starts_with("rdk_")).unwrap().to_owned();
        let flags = ["--store", &server.address(), "--allow-target", "127.0.0.0/8"];
        let service = Launch::new(folder.path()).flags(&flags).start();
        let client = service.client().with_key(&key);
        let library = Redrive::open(&server.address()).await.unwrap();
        let (stop, worker) = start_worker(&library);
        let working_target = Target::start(|_| Reply::Answer(200, "", "fine".to_owned())).await;
        let failing_target = Target::start(|call| {
            let status = if call.path == "/gone" { 410 } else { 503 };
            Reply::Answer(status, "", "<b>busy</b>, try later".to_owned())
        })
        .await;
        let (dead_task, delayed_task) = create_tasks(&client, &failing_target, &working_target).await;
        let (waiting_job, dead_job) = enqueue_jobs(&library, &client).await;
        Self {
            service,
            client,
            key,
            failing_target,
            working_target,
            dead_task,
            delayed_task,
            waiting_job,
            dead_job,
            stop,
            worker,
            _folder: folder,
            _server: server,
        }
    }

    /// The address of a page.
    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.service.address.port())
    }

    /// The page of the origin that fails.
    pub(super) fn origin_page(&self) -> String {
        format!(
            "/console/origins/show?origin={}",
            self.failing_target.origin().replace("://", "%3A%2F%2F").replace(':', "%3A")
        )
    }

    /// Creates a task that is due in an hour, and returns its id.
    pub(super) async fn create_delayed_task(&self, path: &str) -> String {
        self.client.create(&json!({"target": self.working_target.url(path), "delayMs": 3_600_000})).await
    }

    /// Reads a job through the API.
    pub(super) async fn job(&self, id: &str) -> Value {
        self.client.get(&format!("/v1/jobs/{id}")).await.json(200)
    }

    /// Waits until a job is in a state.
    pub(super) async fn wait_for_state(&self, id: &str, state: &str) {
        eventually(&format!("{id} is {state}"), async || {
            (self.job(id).await["state"] == state).then_some(())
        })
        .await;
    }

    pub(super) async fn end(self) {
        self.stop.send(()).unwrap();
        self.worker.await.unwrap();
    }
}

fn start_worker(library: &Redrive) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let worker = library
        .worker()
        .on(publish)
        .on(|job: Resize, _: Context| async move { Ok(job.width) })
        .on(charge)
        .on(|_: Report, _: Context| async { Ok(()) });
    let worker = tokio::spawn(async move {
        worker.run_until(async { stopped.await.unwrap_or_default() }).await.unwrap();
    });
    (stop, worker)
}

/// Creates tasks that succeed, tasks that become dead, one that waits for its retry, and one that is due in an hour.
/// Returns the ids of a dead task and of the delayed one.
async fn create_tasks(client: &Client, failing: &Target, working: &Target) -> (String, String) {
    let policy = json!({"policyId": "quick", "maxAttempts": 3, "backoffType": "exponential", "initialDelayMs": 40, "jitterType": "full"});
    client.post("/v1/policies", &policy).await.json(201);
    let mut ids = Vec::new();
    let secret = json!({"authorization": "Bearer hush", "x-order": "7"});
    for number in 0..4 {
        let task = json!({"target": failing.url(&format!("/hook/{number}")), "policyId": "quick", "headers": secret, "bodyJson": {"order": number}});
        ids.push(client.create(&task).await);
    }
    for number in 0..4 {
        ids.push(
            client
                .create(&json!({"target": failing.url("/gone"), "idempotencyKey": format!("gone-{number}")}))
                .await,
        );
        ids.push(client.create(&json!({"target": working.url(&format!("/order/{number}"))})).await);
    }
    for id in &ids {
        client.wait_for_end(id).await;
    }
    // One task that is still retrying, so that the page of the origin shows recent failures.
    let policy = json!({"initialDelayMs": 600_000, "maxDelayMs": 600_000, "jitterType": "none"});
    client.create(&json!({"target": failing.url("/slow"), "policy": policy})).await;
    let delayed = client.create(&json!({"target": working.url("/later"), "delayMs": 3_600_000})).await;
    (ids.swap_remove(0), delayed)
}

/// Enqueues a job that waits for a signal and one that becomes dead, and creates two schedules.
async fn enqueue_jobs(library: &Redrive, client: &Client) -> (String, String) {
    let text = |id: JobId| id.to_string();
    let waiting = text(library.enqueue(Publish { article: "Retries".into() }).await.unwrap().id());
    let dead =
        text(library.enqueue(Charge { euros: 7, token: "hush".into() }).queue("bank").await.unwrap().id());
    let nightly = Schedule::cron("0 3 * * *", "Europe/Berlin").unwrap();
    library.schedule("nightly", nightly, Report {}).missed(MissedRuns::Once).await.unwrap();
    library.schedule("hourly", Schedule::every(Duration::from_secs(3600)).unwrap(), Report {}).await.unwrap();
    let has_value = async |id: &str, field: &str, value: &str| {
        let job = client.get(&format!("/v1/jobs/{id}")).await.json(200);
        (job.pointer(field) == Some(&json!(value))).then_some(())
    };
    let waits_for_signal = async || has_value(&waiting, "/waitingFor/signals/0", "approved").await;
    eventually("the job waits for a signal", waits_for_signal).await;
    eventually("the job is dead", async || has_value(&dead, "/state", "dead").await).await;
    (waiting, dead)
}
