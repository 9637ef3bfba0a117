//! The API for jobs of the library: a service and a program with its own worker share a database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive::{Context, JobError, JobId, Redrive, Task};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually};

/// Renders an article, makes pictures of it in two sizes, and waits until someone approves it.
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

/// Reserves an amount and charges it, which fails until the account works.
#[derive(Serialize, Deserialize)]
struct Charge {
    euros: u32,
}

impl Task for Charge {
    const KIND: &'static str = "charge";
    type Output = u32;
}

/// The state of the accounts, which the test changes and reads.
#[derive(Default)]
struct Bank {
    /// How often the step `reserve` ran.
    reservations: AtomicUsize,
    account_works: AtomicBool,
}

async fn publish(job: Publish, cx: Context) -> Result<String, JobError> {
    let page = cx.step("render", || async { Ok::<_, JobError>(format!("<h1>{}</h1>", job.article)) }).await?;
    let pictures = [320, 640].map(|width| Resize { width });
    let pictures = cx.fan_out(pictures).each(|child| child.queue("images")).collect_all().await?;
    let pictures = pictures.iter().flatten().count();
    let by: String = cx.signal("approved").await?;
    Ok(format!("{page} with {pictures} pictures, approved by {by}"))
}

async fn charge(job: Charge, cx: Context, bank: Arc<Bank>) -> Result<u32, JobError> {
    let reserve = || async {
        bank.reservations.fetch_add(1, Ordering::SeqCst);
        Ok::<_, JobError>(job.euros)
    };
    let euros = cx.step("reserve", reserve).await?;
    if bank.account_works.load(Ordering::SeqCst) {
        Ok(euros)
    } else {
        Err(JobError::reject("no such account"))
    }
}

/// A database, a service that uses it, and a worker of the library on the same database.
struct Fixture {
    service: Service,
    redrive: Redrive,
    bank: Arc<Bank>,
    stop: Option<oneshot::Sender<()>>,
    worker: JoinHandle<()>,
    _folder: tempfile::TempDir,
    _server: Postgres,
}

impl Fixture {
    async fn new() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        let folder = tempfile::tempdir().unwrap();
        let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
        let redrive = Redrive::open(&server.address()).await.unwrap();
        let bank = Arc::new(Bank::default());
        let (stop, stopped) = oneshot::channel();
        let worker = {
            let bank = bank.clone();
            let worker = redrive
                .worker()
                .on(publish)
                .on(|job: Resize, _: Context| async move { Ok(job.width) })
                .on(move |job: Charge, cx: Context| charge(job, cx, bank.clone()));
            tokio::spawn(async move {
                worker.run_until(async { stopped.await.unwrap_or_default() }).await.unwrap();
            })
        };
        Self { service, redrive, bank, stop: Some(stop), worker, _folder: folder, _server: server }
    }

    async fn end(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.worker.await.unwrap();
    }
}

async fn job(client: &Client, id: JobId) -> Value {
    client.get(&format!("/v1/jobs/{id}")).await.json(200)
}

async fn post(client: &Client, id: JobId, verb: &str, body: Value) -> Value {
    client.post(&format!("/v1/jobs/{id}/{verb}"), &body).await.json(200)
}

/// Waits until a field of a job has this value, and returns the job.
async fn until(client: &Client, id: JobId, field: &str, value: &str) -> Value {
    eventually(&format!("job {id}: {field} is {value}"), async || {
        let job = job(client, id).await;
        (job.pointer(field) == Some(&json!(value))).then_some(job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_shows_and_controls_a_job_with_steps_children_and_a_signal() {
    let fixture = Fixture::new().await;
    let client = fixture.service.client();
    client.post("/v1/queues/images/pause", &json!({})).await.json(204);
    let article = "Retries".to_owned();
    let id = fixture.redrive.enqueue(Publish { article }).await.unwrap().id();

    let waiting = until(&client, id, "/waitingFor/kind", "children").await;
    assert_eq!(
        (&waiting["state"], &waiting["payload"]["json"]),
        (&json!("waiting"), &json!({"article": "Retries"}))
    );
    let why = client.get(&format!("/v1/jobs/{id}/why")).await.json(200);
    assert_eq!(why["because"], "waits_for_children", "{why}");
    let steps = client.get(&format!("/v1/jobs/{id}/steps")).await.json(200);
    let steps = steps["items"].as_array().unwrap();
    assert_eq!(
        (&steps[0]["name"], &steps[0]["value"]["json"]),
        (&json!("render"), &json!("<h1>Retries</h1>"))
    );
    assert_eq!(steps[1]["kind"], "children");
    let children: Vec<JobId> = serde_json::from_value(steps[1]["value"]["json"].clone()).unwrap();
    assert_eq!(children.len(), 2);
    for child in &children {
        assert_eq!(job(&client, *child).await["parent"]["jobId"], json!(id.to_string()));
        let why = client.get(&format!("/v1/jobs/{child}/why")).await.json(200);
        assert_eq!(why["because"], "queue_paused", "{why}");
    }

    assert_eq!(post(&client, children[0], "cancel", json!({})).await["state"], "cancelled");
    client.post("/v1/queues/images/resume", &json!({})).await.json(204);
    until(&client, id, "/waitingFor/signals/0", "approved").await;
    assert_eq!(job(&client, children[1]).await["output"]["json"], 640);

    let signal = json!({"name": "approved", "value": "Ada"});
    let keyed = client.with_header("idempotency-key", "click-1");
    keyed.post(&format!("/v1/jobs/{id}/signals"), &signal).await.json(202);
    let done = until(&client, id, "/state", "succeeded").await;
    assert_eq!(done["output"]["json"], "<h1>Retries</h1> with 1 pictures, approved by Ada");
    let late = client.post(&format!("/v1/jobs/{id}/signals"), &signal).await.json(409);
    assert_eq!(late["code"], "job_ended");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_can_be_redriven_paused_and_limited() {
    let fixture = Fixture::new().await;
    let client = fixture.service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let task = client.create(&json!({"target": target.url("/")})).await;
    let enqueue = async |euros| fixture.redrive.enqueue(Charge { euros }).await.unwrap().id();
    let (kept, restarted) = (enqueue(1).await, enqueue(2).await);
    for id in [kept, restarted] {
        let dead = until(&client, id, "/state", "dead").await;
        assert_eq!(
            (&dead["reason"], &dead["lastError"]),
            (&json!("not_retryable"), &json!("no such account"))
        );
        let attempts = client.get(&format!("/v1/jobs/{id}/attempts")).await.json(200);
        assert_eq!(attempts["items"][0]["error"], "no such account", "{attempts}");
    }
    assert_eq!(client.list("/v1/jobs?state=dead&kind=charge").await.len(), 2);
    assert_eq!(client.list("/v1/dead-letters?").await.len(), 0);
    client.wait_for_end(&task).await;
    assert_eq!(client.list("/v1/jobs?").await.len(), 3, "tasks are jobs");
    assert_eq!(client.list("/v1/tasks?").await.len(), 1, "jobs of other kinds are not tasks");

    fixture.bank.account_works.store(true, Ordering::SeqCst);
    post(&client, kept, "redrive", json!({"steps": "keep"})).await;
    assert_eq!(until(&client, kept, "/state", "succeeded").await["run"], 2);
    assert_eq!(
        fixture.bank.reservations.load(Ordering::SeqCst),
        2,
        "a redrive that keeps steps does not repeat the step"
    );
    post(&client, restarted, "redrive", json!({"steps": "forget"})).await;
    until(&client, restarted, "/state", "succeeded").await;
    assert_eq!(
        fixture.bank.reservations.load(Ordering::SeqCst),
        3,
        "a redrive that forgets steps repeats the step"
    );

    let hour = Duration::from_secs(3600);
    let later = fixture.redrive.enqueue(Charge { euros: 3 }).delay(hour).await.unwrap().id();
    assert_eq!(post(&client, later, "pause", json!({})).await["waitingFor"]["kind"], "unpause");
    let refused = client.post(&format!("/v1/jobs/{later}/run-now"), &json!({})).await.json(409);
    assert_eq!(refused["code"], "job_not_waiting");
    assert_eq!(post(&client, later, "resume", json!({})).await["state"], "pending");
    post(&client, later, "run-now", json!({})).await;
    until(&client, later, "/state", "succeeded").await;

    let limits = json!({"concurrency": 5, "perKey": {"concurrency": 1}});
    client.put("/v1/queues/default/limits", &limits).await.json(200);
    let read = fixture.redrive.limits(&redrive::Queue::default()).await.unwrap();
    assert_eq!(
        (read.concurrency, read.per_key.concurrency),
        (Some(5), Some(1)),
        "the library reads the same limits"
    );
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_others_jobs() {
    let fixture = Fixture::new().await;
    let open = fixture.service.client();
    let key = async |client: &Client, new: Value| {
        client.post("/v1/keys", &new).await.json(201)["key"].as_str().unwrap().to_owned()
    };
    let admin = open.with_key(&key(&open, json!({"name": "ops", "scope": "admin"})).await);
    let client_of = async |tenant: &str| {
        let new = json!({"name": tenant, "tenant": tenant, "scope": "admin"});
        open.with_key(&key(&admin, new).await)
    };
    let (ours, theirs) = (client_of("ours").await, client_of("theirs").await);
    let hour = Duration::from_secs(3600);
    let enqueue = fixture.redrive.enqueue(Charge { euros: 1 }).tenant("ours").delay(hour);
    let id = enqueue.await.unwrap().id();
    assert_eq!(ours.list("/v1/jobs?").await.len(), 1);
    assert_eq!(theirs.list("/v1/jobs?").await.len(), 0);
    for path in ["", "/attempts", "/steps", "/why"] {
        theirs.get(&format!("/v1/jobs/{id}{path}")).await.json(404);
    }
    for verb in ["cancel", "redrive", "run-now", "pause", "resume", "discard"] {
        theirs.post(&format!("/v1/jobs/{id}/{verb}"), &json!({})).await.json(404);
    }
    theirs.post(&format!("/v1/jobs/{id}/signals"), &json!({"name": "approved"})).await.json(404);
    theirs.put("/v1/queues/default/limits", &json!({})).await.json(403);
    let unchanged = job(&ours, id).await;
    assert_eq!(
        (&unchanged["state"], &unchanged["paused"]),
        (&json!("pending"), &json!(false)),
        "{unchanged}"
    );
    fixture.end().await;
}
