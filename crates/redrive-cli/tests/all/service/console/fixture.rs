//! A service on a database that a program with the library shares, a target that works, one that does not, and a past.

use std::time::Duration;

use redrive::{Context, JobError, JobId, Missed, Redrive, Schedule, Task};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::stage::{Client, Launch, Reply, Service, Target, eventually, redrive};

/// Renders an article, makes pictures of it, and waits until someone approves.
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

/// Takes an amount, which cannot work.
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

pub(super) struct Scene {
    pub(super) service: Service,
    pub(super) client: Client,
    pub(super) key: String,
    pub(super) broken: Target,
    pub(super) works: Target,
    /// A task that was given up.
    pub(super) exhausted: String,
    /// A task that is due in an hour.
    pub(super) delayed: String,
    /// A job with steps and children that waits for a signal.
    pub(super) publishing: String,
    /// A job that cannot work.
    pub(super) charged: String,
    stop: oneshot::Sender<()>,
    worker: JoinHandle<()>,
    _folder: tempfile::TempDir,
    _server: Postgres,
}

impl Scene {
    pub(super) async fn set() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        let folder = tempfile::tempdir().unwrap();
        let create = ["key", "create", "--name", "ops", "--scope", "admin", "--store", &server.address()];
        let made = redrive(folder.path()).args(create).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let key = String::from_utf8(made.stdout).unwrap();
        let key = key.split_whitespace().find(|word| word.starts_with("rdk_")).unwrap().to_owned();
        let flags = ["--store", &server.address(), "--allow-target", "127.0.0.0/8"];
        let service = Launch::new(folder.path()).flags(&flags).start();
        let client = service.client().with_key(&key);
        let library = Redrive::open(&server.address()).await.unwrap();
        let (stop, worker) = work(&library);
        let works = Target::start(|_| Reply::Answer(200, "", "fine".to_owned())).await;
        let broken = Target::start(|call| {
            let status = if call.path == "/gone" { 410 } else { 503 };
            Reply::Answer(status, "", "<b>busy</b>, try later".to_owned())
        })
        .await;
        let (exhausted, delayed) = past(&client, &broken, &works).await;
        let (publishing, charged) = jobs(&library, &client).await;
        Self {
            service,
            client,
            key,
            broken,
            works,
            exhausted,
            delayed,
            publishing,
            charged,
            stop,
            worker,
            _folder: folder,
            _server: server,
        }
    }

    /// Where a page is.
    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.service.address.port())
    }

    /// The page of the origin that does not work.
    pub(super) fn origin_page(&self) -> String {
        format!(
            "/console/origins/of?origin={}",
            self.broken.origin().replace("://", "%3A%2F%2F").replace(':', "%3A")
        )
    }

    /// A task that is due in an hour.
    pub(super) async fn later(&self, path: &str) -> String {
        self.client.create(&json!({"targetUrl": self.works.url(path), "delayMs": 3_600_000})).await
    }

    /// What the API says of a job.
    pub(super) async fn job(&self, id: &str) -> Value {
        self.client.get(&format!("/jobs/{id}")).await.json(200)
    }

    /// Waits until a job is in a state.
    pub(super) async fn until(&self, id: &str, state: &str) {
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

fn work(library: &Redrive) -> (oneshot::Sender<()>, JoinHandle<()>) {
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

/// Tasks that have come to an end, well and badly, and one that has not begun.
async fn past(client: &Client, broken: &Target, works: &Target) -> (String, String) {
    let policy = json!({"policyId": "quick", "maxAttempts": 3, "backoffType": "EXPONENTIAL", "initialDelayMs": 40, "jitterType": "FULL"});
    client.post("/retry-policies", &policy).await.json(201);
    let mut ends = Vec::new();
    let secret = json!({"authorization": "Bearer hush", "x-order": "7"});
    for number in 0..4 {
        let task = json!({"targetUrl": broken.url(&format!("/hook/{number}")), "policyId": "quick", "headers": secret, "bodyJson": {"order": number}});
        ends.push(client.create(&task).await);
    }
    for number in 0..4 {
        ends.push(
            client
                .create(
                    &json!({"targetUrl": broken.url("/gone"), "idempotencyKey": format!("gone-{number}")}),
                )
                .await,
        );
        ends.push(client.create(&json!({"targetUrl": works.url(&format!("/order/{number}"))})).await);
    }
    for id in &ends {
        client.ended(id).await;
    }
    // One that struggles still, so that the origin's gate has something to say.
    let policy = json!({"initialDelayMs": 600_000, "maxDelayMs": 600_000, "jitterType": "NONE"});
    client.create(&json!({"targetUrl": broken.url("/slow"), "policy": policy})).await;
    let delayed = client.create(&json!({"targetUrl": works.url("/later"), "delayMs": 3_600_000})).await;
    (ends.swap_remove(0), delayed)
}

async fn jobs(library: &Redrive, client: &Client) -> (String, String) {
    let at = |id: JobId| id.to_string();
    let publishing = at(library.enqueue(Publish { article: "Retries".into() }).await.unwrap().id());
    let charged =
        at(library.enqueue(Charge { euros: 7, token: "hush".into() }).queue("bank").await.unwrap().id());
    let nightly = Schedule::cron("0 3 * * *", "Europe/Berlin").unwrap();
    library.schedule("nightly", nightly, Report {}).missed(Missed::Once).await.unwrap();
    library.schedule("hourly", Schedule::every(Duration::from_secs(3600)).unwrap(), Report {}).await.unwrap();
    let is = async |id: &str, field: &str, value: &str| {
        let job = client.get(&format!("/jobs/{id}")).await.json(200);
        (job.pointer(field) == Some(&json!(value))).then_some(())
    };
    eventually("it waits for a signal", async || is(&publishing, "/awaits/signal", "approved").await).await;
    eventually("it is dead", async || is(&charged, "/state", "dead").await).await;
    (publishing, charged)
}
