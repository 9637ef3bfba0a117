//! Jobs of the library in the service's API: a service and a program with a worker of its own share a database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive::{Context, JobError, JobId, Redrive, Task};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::stage::{Client, Launch, Reply, Service, Target, eventually};

/// Renders an article, makes pictures of it in two sizes, and waits until someone approves.
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

/// Reserves an amount and takes it, which cannot work until the account is cured.
#[derive(Serialize, Deserialize)]
struct Charge {
    euros: u32,
}

impl Task for Charge {
    const KIND: &'static str = "charge";
    type Output = u32;
}

/// What happens to the accounts.
#[derive(Default)]
struct Bank {
    reserved: AtomicUsize,
    cured: AtomicBool,
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
        bank.reserved.fetch_add(1, Ordering::SeqCst);
        Ok::<_, JobError>(job.euros)
    };
    let euros = cx.step("reserve", reserve).await?;
    if bank.cured.load(Ordering::SeqCst) { Ok(euros) } else { Err(JobError::reject("no such account")) }
}

/// A database, a service on it, and a program with the library.
struct Scene {
    service: Service,
    redrive: Redrive,
    bank: Arc<Bank>,
    stop: Option<oneshot::Sender<()>>,
    worker: JoinHandle<()>,
    _folder: tempfile::TempDir,
    _server: Postgres,
}

impl Scene {
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
    client.get(&format!("/jobs/{id}")).await.json(200)
}

async fn post(client: &Client, id: JobId, verb: &str, body: Value) -> Value {
    client.post(&format!("/jobs/{id}/{verb}"), &body).await.json(200)
}

/// The job, once it is as it should be.
async fn until(client: &Client, id: JobId, field: &str, value: &str) -> Value {
    eventually(&format!("job {id}: {field} is {value}"), async || {
        let job = job(client, id).await;
        (job.pointer(field) == Some(&json!(value))).then_some(job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_steps_children_and_a_signal_is_seen_and_goes_on_as_it_is_told() {
    let scene = Scene::new().await;
    let client = scene.service.client();
    client.post("/queues/images/pause", &json!({})).await.json(204);
    let article = "Retries".to_owned();
    let id = scene.redrive.enqueue(Publish { article }).await.unwrap().id();

    let waiting = until(&client, id, "/awaits/what", "children").await;
    assert_eq!(
        (&waiting["state"], &waiting["payload"]["json"]),
        (&json!("waiting"), &json!({"article": "Retries"}))
    );
    let why = client.get(&format!("/jobs/{id}/why")).await.json(200);
    assert_eq!(why["because"], "AWAITS_CHILDREN", "{why}");
    let steps = client.get(&format!("/jobs/{id}/steps")).await.json(200);
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
        let why = client.get(&format!("/jobs/{child}/why")).await.json(200);
        assert_eq!(why["because"], "QUEUE_PAUSED", "{why}");
    }

    assert_eq!(post(&client, children[0], "cancel", json!({})).await["state"], "cancelled");
    client.post("/queues/images/resume", &json!({})).await.json(204);
    until(&client, id, "/awaits/signal", "approved").await;
    assert_eq!(job(&client, children[1]).await["output"]["json"], 640);

    let signal = json!({"name": "approved", "value": "Ada"});
    let keyed = client.with_header("idempotency-key", "click-1");
    keyed.post(&format!("/jobs/{id}/signals"), &signal).await.json(202);
    let done = until(&client, id, "/state", "succeeded").await;
    assert_eq!(done["output"]["json"], "<h1>Retries</h1> with 1 pictures, approved by Ada");
    let late = client.post(&format!("/jobs/{id}/signals"), &signal).await.json(409);
    assert_eq!(late["code"], "JOB_ENDED");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_job_is_found_driven_again_paused_and_bounded() {
    let scene = Scene::new().await;
    let client = scene.service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let task = client.create(&json!({"targetUrl": target.url("/")})).await;
    let enqueue = async |euros| scene.redrive.enqueue(Charge { euros }).await.unwrap().id();
    let (kept, afresh) = (enqueue(1).await, enqueue(2).await);
    for id in [kept, afresh] {
        let dead = until(&client, id, "/state", "dead").await;
        assert_eq!(
            (&dead["reason"], &dead["lastError"]),
            (&json!("NOT_RETRYABLE"), &json!("no such account"))
        );
        let attempts = client.get(&format!("/jobs/{id}/attempts")).await.json(200);
        assert_eq!(attempts["items"][0]["error"], "no such account", "{attempts}");
    }
    assert_eq!(client.list("/jobs?state=dead&kind=charge").await.len(), 2);
    assert_eq!(client.list("/dead-letters?").await.len(), 0);
    client.ended(&task).await;
    assert_eq!(client.list("/jobs?").await.len(), 3, "tasks are jobs too");
    assert_eq!(client.list("/retry-tasks?").await.len(), 1, "and jobs are no tasks");

    scene.bank.cured.store(true, Ordering::SeqCst);
    post(&client, kept, "redrive", json!({"steps": "keep"})).await;
    assert_eq!(until(&client, kept, "/state", "succeeded").await["run"], 2);
    assert_eq!(scene.bank.reserved.load(Ordering::SeqCst), 2, "once for each job");
    post(&client, afresh, "redrive", json!({"steps": "forget"})).await;
    until(&client, afresh, "/state", "succeeded").await;
    assert_eq!(scene.bank.reserved.load(Ordering::SeqCst), 3, "once more");

    let hour = Duration::from_secs(3600);
    let later = scene.redrive.enqueue(Charge { euros: 3 }).delay(hour).await.unwrap().id();
    assert_eq!(post(&client, later, "pause", json!({})).await["awaits"]["what"], "unhold");
    let refused = client.post(&format!("/jobs/{later}/run-now"), &json!({})).await.json(409);
    assert_eq!(refused["code"], "JOB_NOT_WAITING");
    assert_eq!(post(&client, later, "resume", json!({})).await["state"], "pending");
    post(&client, later, "run-now", json!({})).await;
    until(&client, later, "/state", "succeeded").await;

    let quota = json!({"concurrency": 5, "perKey": {"concurrency": 1}});
    client.put("/queues/default/quota", &quota).await.json(200);
    let read = scene.redrive.limit_of(&redrive::Queue::default()).await.unwrap();
    assert_eq!((read.concurrency, read.per_key.concurrency), (Some(5), Some(1)), "the library sees it");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_others_jobs() {
    let scene = Scene::new().await;
    let open = scene.service.client();
    let key = async |client: &Client, new: Value| {
        client.post("/keys", &new).await.json(201)["key"].as_str().unwrap().to_owned()
    };
    let admin = open.with_key(&key(&open, json!({"name": "ops", "scope": "admin"})).await);
    let of = async |tenant: &str| {
        let new = json!({"name": tenant, "tenant": tenant, "scope": "admin"});
        open.with_key(&key(&admin, new).await)
    };
    let (ours, theirs) = (of("ours").await, of("theirs").await);
    let hour = Duration::from_secs(3600);
    let enqueue = scene.redrive.enqueue(Charge { euros: 1 }).tenant("ours").delay(hour);
    let id = enqueue.await.unwrap().id();
    assert_eq!(ours.list("/jobs?").await.len(), 1);
    assert_eq!(theirs.list("/jobs?").await.len(), 0);
    for path in ["", "/attempts", "/steps", "/why"] {
        theirs.get(&format!("/jobs/{id}{path}")).await.json(404);
    }
    for verb in ["cancel", "redrive", "run-now", "pause", "resume", "discard"] {
        theirs.post(&format!("/jobs/{id}/{verb}"), &json!({})).await.json(404);
    }
    theirs.post(&format!("/jobs/{id}/signals"), &json!({"name": "approved"})).await.json(404);
    theirs.put("/queues/default/quota", &json!({})).await.json(403);
    let still = job(&ours, id).await;
    assert_eq!((&still["state"], &still["held"]), (&json!("pending"), &json!(false)), "{still}");
    scene.end().await;
}
