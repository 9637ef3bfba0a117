//! Jobs of the library beside the tasks: seen and operated on over HTTP.

use redrive::{Redrive, Task};
use redrive_core::steps::{Memory, Remembered, Step, StepKind, Steps as _};
use redrive_core::store::Store as _;
use redrive_core::{Await, Job, JobId, Parent, Reason, SignalName, State, StepName, Verdict, Wait};
use redrive_server::keys::Scope;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::stage::{Answer, Stage};

#[derive(Serialize, Deserialize)]
struct Receipt {
    order: u64,
    note: String,
}

impl Task for Receipt {
    const KIND: &'static str = "receipt";
    type Output = ();
}

fn receipt(order: u64) -> Receipt {
    Receipt { order, note: String::new() }
}

fn library(stage: &Stage) -> Redrive {
    Redrive::on(stage.store.clone())
}

async fn enqueue(stage: &Stage) -> JobId {
    library(stage).enqueue(receipt(7)).await.unwrap().id()
}

/// The only job that is due, claimed.
async fn claim(stage: &Stage) -> Job {
    let [job] = <[Job; 1]>::try_from(stage.claim().await).expect("one job is due");
    job
}

async fn remember(stage: &Stage, job: &Job, place: u32, kind: StepKind, value: &[u8]) {
    let name = StepName::new(format!("step {place}")).unwrap();
    let step = Step { place, name, kind, value: value.to_vec() };
    let kept = stage.store.remember(vec![Memory::new(job.lease(), step)]).await.unwrap();
    assert!(matches!(kept[..], [Remembered::Kept(_)]), "{kept:?}");
}

fn until_signal(name: &str) -> Verdict {
    Verdict::Wait(Wait::until(Await::Signal(SignalName::new(name).unwrap())))
}

/// The ids on a page.
fn ids(page: &Answer) -> Vec<&str> {
    assert_eq!(page.status, 200, "{}", page.body);
    page.body["items"].as_array().unwrap().iter().map(|job| job["jobId"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn jobs_of_every_kind_are_listed_by_what_they_are() {
    let stage = Stage::open().await;
    let call =
        json!({"targetUrl": "http://example.com/", "body": "hush", "headers": {"authorization": "hush"}});
    let task = stage.post("/retry-tasks", call).await.id().to_string();
    let enqueued = library(&stage).enqueue(receipt(7)).queue("mail").priority(9).key("order-7").await;
    let job = enqueued.unwrap().id().to_string();
    for (query, found) in [
        ("", vec![&job, &task]),
        ("?kind=receipt", vec![&job]),
        ("?kind=delivery&queue=default", vec![&task]),
        ("?queue=mail&state=pending", vec![&job]),
        ("?state=dead", vec![]),
        ("?idempotencyKey=order-7", vec![&job]),
        ("?subject=http://example", vec![&task]),
        ("?createdBefore=5", vec![]),
        ("?createdAfter=5&finishedAfter=5", vec![]),
    ] {
        assert_eq!(ids(&stage.get(&format!("/jobs{query}")).await), found, "{query}");
    }
    let first = stage.get("/jobs?limit=1").await;
    let next = first.body["nextCursor"].as_str().unwrap();
    assert_eq!(ids(&stage.get(&format!("/jobs?limit=1&cursor={next}")).await), [&task]);
    assert_eq!(stage.get("/retry-tasks").await.body["items"].as_array().unwrap().len(), 1);

    let shown = stage.get(&format!("/jobs/{job}")).await.body;
    assert_eq!(shown["payload"]["json"], json!({"order": 7, "note": ""}));
    assert_eq!(
        (&shown["priority"], &shown["maxAttempts"], &shown["state"]),
        (&json!(9), &json!(8), &json!("pending"))
    );
    let shown = stage.get(&format!("/jobs/{task}")).await.body;
    assert_eq!(shown["kind"], "delivery");
    assert!(
        !shown.to_string().contains("hush") && shown["payload"]["sizeBytes"].as_u64() > Some(0),
        "{shown}"
    );
}

#[tokio::test]
async fn a_bad_query_or_id_is_refused_by_name() {
    let stage = Stage::open().await;
    for (query, field) in [
        ("state=EXHAUSTED", "state"),
        ("kind=", "kind"),
        ("subject=%00", "subject"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("other=1", "other"),
    ] {
        let refused = stage.get(&format!("/jobs?{query}")).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)), "{query}");
    }
    let job = enqueue(&stage).await;
    for (path, field) in
        [("steps?limit=101", "limit"), ("steps?cursor=7", "cursor"), ("attempts?cursor=7", "cursor")]
    {
        let refused = stage.get(&format!("/jobs/{job}/{path}")).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)), "{path}");
    }
    let nobody = uuid::Uuid::nil();
    for path in ["/jobs/x", &format!("/jobs/{nobody}"), &format!("/jobs/{nobody}/steps")] {
        assert_eq!(stage.get(path).await.problem().0, 404, "{path}");
    }
}

#[tokio::test]
async fn a_large_content_is_whole_with_its_job_and_a_size_in_a_list() {
    let stage = Stage::open().await;
    let note = "x".repeat(2000);
    let id = library(&stage).enqueue(Receipt { order: 7, note: note.clone() }).await.unwrap().id();
    let listed = &stage.get("/jobs").await.body["items"][0]["payload"];
    assert_eq!(*listed, json!({"sizeBytes": listed["sizeBytes"]}));
    assert_eq!(stage.get(&format!("/jobs/{id}")).await.body["payload"]["json"]["note"], note);
}

#[tokio::test]
async fn steps_and_attempts_are_shown_page_by_page() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let job = claim(&stage).await;
    let children = [JobId(uuid::Uuid::from_u128(1)), JobId(uuid::Uuid::from_u128(2))];
    let bytes: Vec<u8> = children.iter().flat_map(|id| id.0.into_bytes()).collect();
    remember(&stage, &job, 0, StepKind::Done, br#"{"paid":true}"#).await;
    remember(&stage, &job, 1, StepKind::Failed, b"no stock").await;
    remember(&stage, &job, 2, StepKind::Children, &bytes).await;
    stage.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
    let (mut steps, mut cursor) = (Vec::new(), String::new());
    loop {
        let mut page = stage.get(&format!("/jobs/{id}/steps?limit=2{cursor}")).await.body;
        steps.append(page["items"].as_array_mut().unwrap());
        let Some(next) = page["nextCursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(
        steps,
        [
            json!({"place": 0, "name": "step 0", "kind": "done", "value": {"sizeBytes": 13, "json": {"paid": true}}}),
            json!({"place": 1, "name": "step 1", "kind": "failed", "value": {"sizeBytes": 8, "text": "no stock"}}),
            json!({"place": 2, "name": "step 2", "kind": "children", "value": {"sizeBytes": 79, "json": children}}),
        ]
    );
    let attempts = stage.get(&format!("/jobs/{id}/attempts")).await.body;
    let attempt = &attempts["items"][0];
    assert_eq!(
        (&attempt["run"], &attempt["attempt"], &attempt["ledTo"]),
        (&json!(1), &json!(1), &json!("dead"))
    );
    assert_eq!(
        (&attempt["error"], &attempt["detail"]["json"]["status"]),
        (&json!("status 503"), &json!(503))
    );
    let dead = stage.get(&format!("/jobs/{id}")).await.body;
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("NOT_RETRYABLE")));
}

#[tokio::test]
async fn a_dead_job_is_driven_again_with_or_without_its_steps_and_then_removed() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let post = async |verb: &str, body| stage.post(&format!("/jobs/{id}/{verb}"), body).await;
    for verb in ["redrive", "discard"] {
        assert_eq!(post(verb, json!({})).await.problem(), (409, "JOB_NOT_DEAD", None), "{verb}");
    }
    let die = async || {
        let job = claim(&stage).await;
        if stage.store.recall(id, 0, 1).await.unwrap().is_empty() {
            remember(&stage, &job, 0, StepKind::Done, b"1").await;
        }
        stage.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
    };
    die().await;
    for (run, request, steps) in
        [(2, json!({}), 1), (3, json!({"steps": "keep"}), 1), (4, json!({"steps": "forget"}), 0)]
    {
        let driven = post("redrive", request).await;
        assert_eq!(
            (driven.status, &driven.body["run"], &driven.body["state"]),
            (200, &json!(run), &json!("pending"))
        );
        assert_eq!(
            stage.get(&format!("/jobs/{id}/steps")).await.body["items"].as_array().unwrap().len(),
            steps
        );
        die().await;
    }
    assert_eq!(post("redrive", json!({"steps": "some"})).await.problem(), (422, "INVALID", Some("steps")));
    assert_eq!(post("signals", json!({"name": "late"})).await.problem(), (409, "JOB_ENDED", None));
    assert_eq!(post("discard", json!({})).await.status, 204);
    assert_eq!(post("discard", json!({})).await.status, 404);
}

#[tokio::test]
async fn a_job_is_paused_resumed_made_due_and_cancelled() {
    let stage = Stage::open().await;
    let hour = std::time::Duration::from_secs(3600);
    let id = library(&stage).enqueue(receipt(7)).delay(hour).await.unwrap().id();
    let post = async |verb: &str| stage.post(&format!("/jobs/{id}/{verb}"), json!({})).await;
    let paused = post("pause").await.body;
    assert_eq!(
        (&paused["held"], &paused["state"], &paused["awaits"]["what"]),
        (&json!(true), &json!("waiting"), &json!("unhold"))
    );
    assert_eq!(post("run-now").await.problem(), (409, "JOB_NOT_WAITING", None));
    assert_eq!(stage.get(&format!("/jobs/{id}/why")).await.body["because"], "HELD");
    let resumed = post("resume").await.body;
    assert_eq!(
        (&resumed["held"], &resumed["state"], &resumed["awaits"]),
        (&json!(false), &json!("pending"), &Value::Null)
    );
    assert_eq!(post("run-now").await.status, 200);
    claim(&stage).await;
    let asked = post("cancel").await;
    assert_eq!((asked.status, &asked.body["cancelRequested"]), (202, &json!(true)));
    let other = enqueue(&stage).await;
    let cancelled = stage.post(&format!("/jobs/{other}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    for verb in ["cancel", "pause", "resume"] {
        let late = stage.post(&format!("/jobs/{other}/{verb}"), json!({})).await;
        assert_eq!(late.problem(), (409, "JOB_ENDED", None), "{verb}");
    }
}

#[tokio::test]
async fn a_paused_task_has_no_next_attempt_until_it_is_resumed() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    stage.post(&format!("/jobs/{id}/pause"), json!({})).await;
    let task = stage.get(&format!("/retry-tasks/{id}")).await.body;
    assert_eq!((&task["status"], &task["nextAttemptAt"]), (&json!("PENDING"), &Value::Null));
    assert_eq!(stage.get(&format!("/retry-tasks/{id}/why")).await.body["because"], "HELD");
    assert!(stage.claim().await.is_empty());
    stage.post(&format!("/jobs/{id}/resume"), json!({})).await;
    assert!(stage.get(&format!("/retry-tasks/{id}")).await.body["nextAttemptAt"].is_i64());
    assert_eq!(claim(&stage).await.id, id);
}

#[tokio::test]
async fn a_signal_is_kept_once_under_its_key_and_lets_its_job_go_on() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let path = format!("/jobs/{id}/signals");
    stage.settle(&claim(&stage).await, until_signal("approved")).await;
    let waiting = stage.get(&format!("/jobs/{id}")).await.body;
    assert_eq!((&waiting["state"], &waiting["awaits"]["signal"]), (&json!("waiting"), &json!("approved")));
    let why = stage.get(&format!("/jobs/{id}/why")).await.body;
    assert_eq!(
        (&why["because"], &why["detail"]),
        (&json!("AWAITS_SIGNAL"), &json!("it waits for the signal \"approved\""))
    );

    let send = async |key: &str, value: Value| {
        let body = json!({"name": "approved", "value": value});
        stage.send("POST", &path, Some(body), &[("idempotency-key", key)]).await
    };
    for (key, value, state) in
        [("a", json!(1), "pending"), ("a", json!(1), "pending"), ("b", json!(2), "pending")]
    {
        let sent = send(key, value).await;
        assert_eq!((sent.status, &sent.body["state"]), (202, &json!(state)), "{}", sent.body);
    }
    let job = claim(&stage).await;
    let mut taken = Vec::new();
    for place in 0..3 {
        let name = StepName::new("signal").unwrap();
        let names = vec![SignalName::new("approved").unwrap()];
        if let Some(signal) = stage.store.pending_signals(job.id, names, 1).await.unwrap().pop() {
            let step = Step { place, name, kind: StepKind::Signal, value: signal.value };
            let memory = Memory { takes: Some(signal.id), ..Memory::new(job.lease(), step) };
            if let [Remembered::Kept(step)] = &stage.store.remember(vec![memory]).await.unwrap()[..] {
                taken.push(String::from_utf8(step.value.clone()).unwrap());
            }
        }
        // The key is remembered although its signal was taken.
        assert_eq!(send("a", json!(1)).await.status, 202);
    }
    assert_eq!(taken, ["1", "2"]);

    for (body, field) in [
        (json!({"name": ""}), "name"),
        (json!({"value": 1}), "name"),
        (json!({"name": "x", "value": "y".repeat(65536)}), "value"),
        (json!({"name": "x", "other": 1}), "other"),
    ] {
        assert_eq!(stage.post(&path, body).await.problem(), (422, "INVALID", Some(field)));
    }
    let long = "k".repeat(257);
    let refused = send(&long, json!(1)).await;
    assert_eq!(refused.problem(), (422, "INVALID", Some("Idempotency-Key")));
}

#[tokio::test]
async fn the_cancel_of_a_child_lets_its_parent_go_on() {
    let stage = Stage::open().await;
    let parent = enqueue(&stage).await;
    let job = claim(&stage).await;
    let child = redrive_core::NewJob {
        parent: Some(Parent::new(parent, 0)),
        ..redrive_core::NewJob::new(JobId(uuid::Uuid::now_v7()), job.kind.clone(), job.policy.clone(), vec![])
    };
    let id = child.id;
    let name = StepName::new("fan out").unwrap();
    let step = Step { place: 0, name, kind: StepKind::Children, value: id.0.into_bytes().to_vec() };
    stage
        .store
        .remember(vec![Memory { children: vec![child], ..Memory::new(job.lease(), step) }])
        .await
        .unwrap();
    let until = Await::Children { branch: 0, failures_max: 1 };
    stage.settle(&job, Verdict::Wait(Wait::until(until))).await;
    let why = stage.get(&format!("/jobs/{parent}/why")).await.body;
    assert_eq!(why["because"], "AWAITS_CHILDREN", "{why}");
    let shown = stage.get(&format!("/jobs/{id}")).await.body;
    assert_eq!(shown["parent"], json!({"jobId": parent.to_string(), "branch": 0, "detached": false}));
    assert_eq!(stage.post(&format!("/jobs/{id}/cancel"), json!({})).await.status, 200);
    assert_eq!(stage.get(&format!("/jobs/{parent}")).await.body["state"], "pending");
}

#[tokio::test]
async fn a_quota_bounds_its_queue_until_it_is_removed() {
    let stage = Stage::open().await;
    let quota =
        json!({"concurrency": 1, "rate": {"count": 100, "perMs": 1000}, "perKey": {"concurrency": 1}});
    let put = stage.put("/queues/default/quota", quota.clone()).await;
    assert_eq!((put.status, &put.body), (200, &quota));
    let (one, two) = (enqueue(&stage).await, enqueue(&stage).await);
    let job = claim(&stage).await;
    assert_eq!(job.id, one);
    let why = stage.get(&format!("/jobs/{two}/why")).await.body;
    assert_eq!(why["because"], "QUOTA_REACHED", "{why}");
    assert_eq!(stage.get("/queues").await.body["items"][0]["quota"], quota);
    for (path, body, field) in [
        ("default", json!({"concurrency": 0}), "concurrency"),
        ("default", json!({"rate": {"count": 0, "perMs": 1}}), "rate"),
        ("default", json!({"perkey": {}}), "perkey"),
        ("default", json!({"perKey": []}), "perKey"),
        ("default", json!({"perKey": {"rate": [1, 1000]}}), "perKey"),
        ("default", json!({"rate": [1, 1000]}), "rate"),
        ("*", json!({}), "name"),
    ] {
        let refused = stage.put(&format!("/queues/{path}/quota"), body).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)));
    }
    assert_eq!(stage.delete("/queues/default/quota").await.status, 204);
    assert_eq!(stage.get("/queues").await.body["items"][0].get("quota"), None);
    assert_eq!(claim(&stage).await.id, two);
}

#[tokio::test]
async fn what_waits_for_its_turn_says_so() {
    let stage = Stage::open().await;
    let enqueue = async || library(&stage).enqueue(receipt(7)).in_order("order-7").await.unwrap().id();
    let (one, two) = (enqueue().await, enqueue().await);
    assert_eq!(claim(&stage).await.id, one);
    let shown = stage.get(&format!("/jobs/{two}")).await.body;
    assert_eq!(shown["partition"], json!({"key": "order-7", "order": "strict"}));
    assert_eq!(shown["awaits"]["what"], "turn", "{shown}");
    assert_eq!(stage.get(&format!("/jobs/{two}/why")).await.body["because"], "AWAITS_TURN");
}

#[tokio::test]
async fn dead_jobs_of_a_kind_are_driven_by_an_operation_and_tasks_are_left_alone() {
    let stage = Stage::open().await;
    let (task, job) = (stage.task().await, enqueue(&stage).await);
    stage.kill().await;
    assert_eq!(stage.get("/dead-letters").await.body["items"].as_array().unwrap().len(), 1);
    for (filter, matched) in [
        (json!({"dryRun": true}), 1),
        (json!({"dryRun": true, "kind": "receipt"}), 1),
        (json!({"dryRun": true, "kind": "receipt", "queue": "other"}), 0),
        (json!({"dryRun": true, "kind": "other"}), 0),
    ] {
        let counted = stage.post("/dead-letters/redrive", filter.clone()).await;
        assert_eq!(counted.body["matched"], matched, "{filter}");
    }
    let begun = stage.post("/dead-letters/redrive", json!({"kind": "receipt"})).await;
    assert_eq!(begun.body["filter"], json!({"kind": "receipt", "state": "dead"}), "{}", begun.body);
    let driving = tokio::spawn(stage.api.clone().drive_operations());
    let path = begun.header("location").unwrap();
    let ending = async {
        while stage.get(path).await.body["state"] == "RUNNING" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), ending).await.expect("it goes on");
    stage.closing.cancel();
    driving.await.unwrap();
    let states = stage.store.get(vec![task, job]).await.unwrap();
    let states: Vec<State> = states.into_iter().map(|job| job.unwrap().state).collect();
    assert_eq!(states, [State::Dead, State::Pending]);
}

#[tokio::test]
async fn each_verb_needs_its_scope() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let key = async |scope| format!("Bearer {}", stage.key(None, scope).await);
    let (read, write) = (key(Scope::Read).await, key(Scope::Write).await);
    let post = async |verb: &str, key: &str| {
        let body = json!({"name": "x"});
        let body = (verb == "signals").then_some(body);
        stage.send("POST", &format!("/jobs/{id}/{verb}"), body, &[("authorization", key)]).await
    };
    for verb in ["cancel", "redrive", "run-now", "pause", "resume", "signals", "discard"] {
        assert_eq!(post(verb, &read).await.problem(), (403, "FORBIDDEN", None), "{verb}");
    }
    assert_eq!(post("discard", &write).await.problem(), (403, "FORBIDDEN", None));
    for (verb, status) in
        [("signals", 202), ("pause", 200), ("resume", 200), ("run-now", 200), ("cancel", 200)]
    {
        assert_eq!(post(verb, &write).await.status, status, "{verb}");
    }
}
