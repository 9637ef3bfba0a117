//! The routes of jobs, for jobs of the library and for tasks.

use std::time::Duration;

use redrive::{Redrive, Task};
use redrive_core::steps::{NewStep, RememberResult, Step, StepKind, Steps as _};
use redrive_core::store::Store as _;
use redrive_core::{Job, JobId, Parent, Reason, SignalName, State, StepName, Verdict, Wait, WaitCondition};
use redrive_wire::Scope;
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

/// Claims the only due job.
async fn claim(stage: &Stage) -> Job {
    let [job] = <[Job; 1]>::try_from(stage.claim().await).expect("one job is due");
    job
}

async fn remember(stage: &Stage, job: &Job, place: u32, kind: StepKind, value: &[u8]) {
    let name = StepName::new(format!("step {place}")).unwrap();
    let step = Step { place, name, kind, value: value.to_vec() };
    let results = stage.store.remember(vec![NewStep::new(job.lease(), step)]).await.unwrap();
    assert!(matches!(results[..], [RememberResult::Stored(_)]), "{results:?}");
}

fn wait_for_signal(name: &str) -> Verdict {
    Verdict::Wait(Wait::until(WaitCondition::Signal(SignalName::new(name).unwrap())))
}

#[tokio::test]
async fn a_job_that_sleeps_or_waits_is_shown_and_found_as_waiting() {
    let stage = Stage::open().await;
    let sleeping = enqueue(&stage).await;
    stage.settle(&claim(&stage).await, Verdict::Snooze(Duration::from_secs(60))).await;
    let waiting = enqueue(&stage).await;
    let signal = WaitCondition::Signal(SignalName::new("go").unwrap());
    let timed = Wait { at_most: Some(Duration::from_secs(60)), ..Wait::until(signal) };
    stage.settle(&claim(&stage).await, Verdict::Wait(timed)).await;
    let fresh = stage.task().await.to_string();
    for (id, kind) in [(sleeping, "timer"), (waiting, "signal")] {
        let job = stage.get(&format!("/v1/jobs/{id}")).await.body;
        assert_eq!((&job["state"], &job["waitingFor"]["kind"]), (&json!("waiting"), &json!(kind)), "{job}");
        assert_eq!(job["waitingFor"]["until"], job["nextRunAt"], "{job}");
        let why = stage.get(&format!("/v1/jobs/{id}/why")).await.body;
        assert_eq!((&why["state"], &why["until"]), (&json!("waiting"), &job["nextRunAt"]), "{why}");
    }
    let (sleeping, waiting) = (sleeping.to_string(), waiting.to_string());
    assert_eq!(ids(&stage.get("/v1/jobs?state=waiting").await), [waiting.as_str(), sleeping.as_str()]);
    assert_eq!(ids(&stage.get("/v1/jobs?state=pending").await), [fresh.as_str()]);
    for (state, count) in [("waiting", 2), ("pending", 1)] {
        assert_eq!(stage.get(&format!("/v1/jobs/count?state={state}")).await.body["count"], count, "{state}");
    }
}

/// The ids on a page.
fn ids(page: &Answer) -> Vec<&str> {
    assert_eq!(page.status, 200, "{}", page.body);
    page.body["items"].as_array().unwrap().iter().map(|job| job["jobId"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn jobs_of_every_kind_are_listed_and_filtered() {
    let stage = Stage::open().await;
    let call = json!({"target": "http://example.com/", "body": "hush", "headers": {"authorization": "hush"}});
    let task = stage.post("/v1/tasks", call).await.id().to_string();
    let enqueued = library(&stage).enqueue(receipt(7)).queue("mail").priority(9).key("order-7").await;
    let job = enqueued.unwrap().id().to_string();
    for (query, found) in [
        ("", vec![&job, &task]),
        ("?kind=receipt", vec![&job]),
        ("?kind=delivery&queue=default", vec![&task]),
        ("?queue=mail&state=pending", vec![&job]),
        ("?state=dead", vec![]),
        ("?idempotencyKey=order-7", vec![&job]),
        ("?target=http://example", vec![&task]),
        ("?createdBefore=5", vec![]),
        ("?createdAfter=5&finishedAfter=5", vec![]),
    ] {
        assert_eq!(ids(&stage.get(&format!("/v1/jobs{query}")).await), found, "{query}");
    }
    let first = stage.get("/v1/jobs?limit=1").await;
    let next = first.body["nextCursor"].as_str().unwrap();
    assert_eq!(ids(&stage.get(&format!("/v1/jobs?limit=1&cursor={next}")).await), [&task]);
    assert_eq!(stage.get("/v1/tasks").await.body["items"].as_array().unwrap().len(), 1);

    let shown = stage.get(&format!("/v1/jobs/{job}")).await.body;
    assert_eq!(shown["payload"]["json"], json!({"order": 7, "note": ""}));
    assert_eq!(
        (&shown["priority"], &shown["maxAttempts"], &shown["state"]),
        (&json!(9), &json!(8), &json!("pending"))
    );
    let shown = stage.get(&format!("/v1/jobs/{task}")).await.body;
    assert_eq!(shown["kind"], "delivery");
    assert!(
        !shown.to_string().contains("hush") && shown["payload"]["sizeBytes"].as_u64() > Some(0),
        "{shown}"
    );
}

#[tokio::test]
async fn an_invalid_query_or_id_is_rejected_with_its_field() {
    let stage = Stage::open().await;
    for (query, field) in [
        ("state=done", "state"),
        ("kind=", "kind"),
        ("target=%00", "target"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("other=1", "other"),
    ] {
        let refused = stage.get(&format!("/v1/jobs?{query}")).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)), "{query}");
    }
    let job = enqueue(&stage).await;
    for (path, field) in
        [("steps?limit=101", "limit"), ("steps?cursor=7", "cursor"), ("attempts?cursor=7", "cursor")]
    {
        let refused = stage.get(&format!("/v1/jobs/{job}/{path}")).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)), "{path}");
    }
    let unknown = uuid::Uuid::nil();
    for path in ["/v1/jobs/x", &format!("/v1/jobs/{unknown}"), &format!("/v1/jobs/{unknown}/steps")] {
        assert_eq!(stage.get(path).await.problem().0, 404, "{path}");
    }
}

#[tokio::test]
async fn a_list_shows_only_the_size_of_a_large_payload() {
    let stage = Stage::open().await;
    let note = "x".repeat(2000);
    let id = library(&stage).enqueue(Receipt { order: 7, note: note.clone() }).await.unwrap().id();
    let listed = &stage.get("/v1/jobs").await.body["items"][0]["payload"];
    assert_eq!(*listed, json!({"sizeBytes": listed["sizeBytes"]}));
    assert_eq!(stage.get(&format!("/v1/jobs/{id}")).await.body["payload"]["json"]["note"], note);
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
        let mut page = stage.get(&format!("/v1/jobs/{id}/steps?limit=2{cursor}")).await.body;
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
    let attempts = stage.get(&format!("/v1/jobs/{id}/attempts")).await.body;
    let attempt = &attempts["items"][0];
    assert_eq!(
        (&attempt["run"], &attempt["attempt"], &attempt["ledTo"]),
        (&json!(1), &json!(1), &json!("dead"))
    );
    assert_eq!(
        (&attempt["error"], &attempt["detail"]["json"]["status"]),
        (&json!("status 503"), &json!(503))
    );
    let dead = stage.get(&format!("/v1/jobs/{id}")).await.body;
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("not_retryable")));
}

#[tokio::test]
async fn a_dead_job_is_redriven_with_or_without_its_steps_and_then_discarded() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let post = async |verb: &str, body| stage.post(&format!("/v1/jobs/{id}/{verb}"), body).await;
    for verb in ["redrive", "discard"] {
        assert_eq!(post(verb, json!({})).await.problem(), (409, "job_not_dead", None), "{verb}");
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
        let redriven = post("redrive", request).await;
        assert_eq!(
            (redriven.status, &redriven.body["run"], &redriven.body["state"]),
            (200, &json!(run), &json!("pending"))
        );
        assert_eq!(
            stage.get(&format!("/v1/jobs/{id}/steps")).await.body["items"].as_array().unwrap().len(),
            steps
        );
        die().await;
    }
    assert_eq!(post("redrive", json!({"steps": "some"})).await.problem(), (422, "invalid", Some("steps")));
    assert_eq!(post("signals", json!({"name": "late"})).await.problem(), (409, "job_ended", None));
    assert_eq!(post("discard", json!({})).await.status, 204);
    assert_eq!(post("discard", json!({})).await.status, 404);
}

#[tokio::test]
async fn a_job_is_paused_resumed_made_due_and_cancelled() {
    let stage = Stage::open().await;
    let hour = std::time::Duration::from_secs(3600);
    let id = library(&stage).enqueue(receipt(7)).delay(hour).await.unwrap().id();
    let post = async |verb: &str| stage.post(&format!("/v1/jobs/{id}/{verb}"), json!({})).await;
    let paused = post("pause").await.body;
    assert_eq!(
        (&paused["paused"], &paused["state"], &paused["waitingFor"]["kind"]),
        (&json!(true), &json!("waiting"), &json!("unpause"))
    );
    assert_eq!(post("run-now").await.problem(), (409, "job_not_waiting", None));
    assert_eq!(stage.get(&format!("/v1/jobs/{id}/why")).await.body["because"], "paused");
    let resumed = post("resume").await.body;
    assert_eq!(
        (&resumed["paused"], &resumed["state"], &resumed["waitingFor"]),
        (&json!(false), &json!("pending"), &Value::Null)
    );
    assert_eq!(post("run-now").await.status, 200);
    claim(&stage).await;
    let requested = post("cancel").await;
    assert_eq!((requested.status, &requested.body["cancelRequested"]), (202, &json!(true)));
    let other = enqueue(&stage).await;
    let cancelled = stage.post(&format!("/v1/jobs/{other}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    for verb in ["cancel", "pause", "resume"] {
        let late = stage.post(&format!("/v1/jobs/{other}/{verb}"), json!({})).await;
        assert_eq!(late.problem(), (409, "job_ended", None), "{verb}");
    }
}

#[tokio::test]
async fn a_paused_task_has_no_next_attempt_until_it_is_resumed() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    stage.post(&format!("/v1/jobs/{id}/pause"), json!({})).await;
    let task = stage.get(&format!("/v1/tasks/{id}")).await.body;
    assert_eq!((&task["state"], &task["nextAttemptAt"]), (&json!("waiting"), &Value::Null));
    assert_eq!(stage.get(&format!("/v1/tasks/{id}/why")).await.body["because"], "paused");
    assert!(stage.claim().await.is_empty());
    stage.post(&format!("/v1/jobs/{id}/resume"), json!({})).await;
    assert!(stage.get(&format!("/v1/tasks/{id}")).await.body["nextAttemptAt"].is_i64());
    assert_eq!(claim(&stage).await.id, id);
}

#[tokio::test]
async fn a_signal_is_stored_once_per_key_and_resumes_its_job() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let path = format!("/v1/jobs/{id}/signals");
    stage.settle(&claim(&stage).await, wait_for_signal("approved")).await;
    let waiting = stage.get(&format!("/v1/jobs/{id}")).await.body;
    assert_eq!(
        (&waiting["state"], &waiting["waitingFor"]["signals"]),
        (&json!("waiting"), &json!(["approved"]))
    );
    let why = stage.get(&format!("/v1/jobs/{id}/why")).await.body;
    assert_eq!(
        (&why["because"], &why["detail"]),
        (&json!("waits_for_signal"), &json!("it waits for the signal \"approved\""))
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
            let new = NewStep { takes: Some(signal.id), ..NewStep::new(job.lease(), step) };
            if let [RememberResult::Stored(step)] = &stage.store.remember(vec![new]).await.unwrap()[..] {
                taken.push(String::from_utf8(step.value.clone()).unwrap());
            }
        }
        // The store remembers the key after the signal was taken.
        assert_eq!(send("a", json!(1)).await.status, 202);
    }
    assert_eq!(taken, ["1", "2"]);

    for (body, field) in [
        (json!({"name": ""}), "name"),
        (json!({"value": 1}), "name"),
        (json!({"name": "x", "value": "y".repeat(65536)}), "value"),
        (json!({"name": "x", "other": 1}), "other"),
    ] {
        assert_eq!(stage.post(&path, body).await.problem(), (422, "invalid", Some(field)));
    }
    let long = "k".repeat(257);
    let refused = send(&long, json!(1)).await;
    assert_eq!(refused.problem(), (422, "invalid", Some("Idempotency-Key")));
}

#[tokio::test]
async fn the_cancel_of_a_child_resumes_its_parent() {
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
        .remember(vec![NewStep { children: vec![child], ..NewStep::new(job.lease(), step) }])
        .await
        .unwrap();
    let until = WaitCondition::Children { branch: 0, failures_max: 1 };
    stage.settle(&job, Verdict::Wait(Wait::until(until))).await;
    let why = stage.get(&format!("/v1/jobs/{parent}/why")).await.body;
    assert_eq!(why["because"], "waits_for_children", "{why}");
    let shown = stage.get(&format!("/v1/jobs/{id}")).await.body;
    assert_eq!(shown["parent"], json!({"jobId": parent.to_string(), "branch": 0, "detached": false}));
    assert_eq!(stage.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    assert_eq!(stage.get(&format!("/v1/jobs/{parent}")).await.body["state"], "pending");
}

#[tokio::test]
async fn the_limits_of_a_queue_apply_until_they_are_removed() {
    let stage = Stage::open().await;
    let limits =
        json!({"concurrency": 1, "rate": {"count": 100, "perMs": 1000}, "perKey": {"concurrency": 1}});
    let put = stage.put("/v1/queues/default/limits", limits.clone()).await;
    assert_eq!((put.status, &put.body), (200, &limits));
    let (one, two) = (enqueue(&stage).await, enqueue(&stage).await);
    let job = claim(&stage).await;
    assert_eq!(job.id, one);
    let why = stage.get(&format!("/v1/jobs/{two}/why")).await.body;
    assert_eq!(why["because"], "limits_reached", "{why}");
    assert_eq!(stage.get("/v1/queues").await.body["items"][0]["limits"], limits);
    for (path, body, field) in [
        ("default", json!({"concurrency": 0}), "concurrency"),
        ("default", json!({"rate": {"count": 0, "perMs": 1}}), "rate"),
        ("default", json!({"perkey": {}}), "perkey"),
        ("default", json!({"perKey": []}), "perKey"),
        ("default", json!({"perKey": {"rate": [1, 1000]}}), "perKey"),
        ("default", json!({"rate": [1, 1000]}), "rate"),
        ("*", json!({}), "name"),
    ] {
        let refused = stage.put(&format!("/v1/queues/{path}/limits"), body).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)));
    }
    assert_eq!(stage.delete("/v1/queues/default/limits").await.status, 204);
    assert_eq!(stage.get("/v1/queues").await.body["items"][0].get("limits"), None);
    assert_eq!(claim(&stage).await.id, two);
}

#[tokio::test]
async fn a_job_that_waits_for_a_slot_is_shown_as_waiting_for_it() {
    let stage = Stage::open().await;
    let enqueue = async || library(&stage).enqueue(receipt(7)).in_order("order-7").await.unwrap().id();
    let (one, two) = (enqueue().await, enqueue().await);
    assert_eq!(claim(&stage).await.id, one);
    let shown = stage.get(&format!("/v1/jobs/{two}")).await.body;
    assert_eq!(shown["partition"], json!({"key": "order-7", "order": "strict"}));
    assert_eq!(shown["waitingFor"]["kind"], "slot", "{shown}");
    assert_eq!(stage.get(&format!("/v1/jobs/{two}/why")).await.body["because"], "waits_for_slot");
}

#[tokio::test]
async fn an_operation_redrives_the_dead_jobs_of_a_kind_and_no_tasks() {
    let stage = Stage::open().await;
    let (task, job) = (stage.task().await, enqueue(&stage).await);
    stage.kill().await;
    assert_eq!(stage.get("/v1/dead-letters").await.body["items"].as_array().unwrap().len(), 1);
    for (filter, matched) in [
        (json!({}), 2),
        (json!({"kind": "receipt"}), 1),
        (json!({"kind": "receipt", "queue": "other"}), 0),
        (json!({"kind": "other"}), 0),
    ] {
        let request = json!({"kind": "redrive", "filter": filter, "dryRun": true});
        let counted = stage.post("/v1/operations", request).await;
        assert_eq!(counted.body["matched"], matched, "{filter}");
    }
    let created =
        stage.post("/v1/operations", json!({"kind": "redrive", "filter": {"kind": "receipt"}})).await;
    assert_eq!(created.body["filter"], json!({"kind": "receipt", "state": "dead"}), "{}", created.body);
    let running = tokio::spawn(stage.api.clone().run_operations());
    let path = created.header("location").unwrap();
    let ending = async {
        while stage.get(path).await.body["state"] == "running" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), ending).await.expect("the operation ends");
    stage.closing.cancel();
    running.await.unwrap();
    let states = stage.store.get(vec![task, job]).await.unwrap();
    let states: Vec<State> = states.into_iter().map(|job| job.unwrap().state).collect();
    assert_eq!(states, [State::Dead, State::Pending]);
}

#[tokio::test]
async fn each_action_on_a_job_needs_its_scope() {
    let stage = Stage::open().await;
    let id = enqueue(&stage).await;
    let key = async |scope| format!("Bearer {}", stage.key(None, scope).await);
    let (read, write) = (key(Scope::Read).await, key(Scope::Write).await);
    let post = async |verb: &str, key: &str| {
        let body = json!({"name": "x"});
        let body = (verb == "signals").then_some(body);
        stage.send("POST", &format!("/v1/jobs/{id}/{verb}"), body, &[("authorization", key)]).await
    };
    for verb in ["cancel", "redrive", "run-now", "pause", "resume", "signals", "discard"] {
        assert_eq!(post(verb, &read).await.problem(), (403, "forbidden", None), "{verb}");
    }
    assert_eq!(post("discard", &write).await.problem(), (403, "forbidden", None));
    for (verb, status) in
        [("signals", 202), ("pause", 200), ("resume", 200), ("run-now", 200), ("cancel", 200)]
    {
        assert_eq!(post(verb, &write).await.status, status, "{verb}");
    }
}
