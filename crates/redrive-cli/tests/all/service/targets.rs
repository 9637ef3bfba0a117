//! Targets that fail in different ways, and the attempt log that results.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually};

/// A service and its client.
struct Fixture {
    _folder: tempfile::TempDir,
    _service: Service,
    client: Client,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = Launch::new(folder.path()).start();
        Self { client: service.client(), _folder: folder, _service: service }
    }

    /// Creates a task with two attempts, 50 ms apart, and the changes of `more`. Returns the ended task and its attempts.
    async fn run_task(&self, url: &str, more: &Value) -> (Value, Vec<Value>) {
        let mut task = json!({
            "target": url, "timeoutMs": 10_000,
            "policy": {"maxAttempts": 2, "backoffType": "fixed", "initialDelayMs": 50, "jitterType": "none"},
        });
        for (field, value) in more.as_object().unwrap() {
            match (task[field].as_object_mut(), value.as_object()) {
                (Some(known), Some(more)) => known.extend(more.clone()),
                _ => task[field] = value.clone(),
            }
        }
        let id = self.client.create(&task).await;
        (self.client.wait_for_end(&id).await, self.client.attempts(&id).await)
    }
}

/// The outcome, the phase and the status of an attempt.
fn summary(attempt: &Value) -> (&str, &str, u64) {
    let text = |field: &str| attempt[field].as_str().unwrap_or("");
    (text("outcome"), text("phase"), attempt["responseStatus"].as_u64().unwrap_or(0))
}

#[tokio::test]
async fn a_task_succeeds_at_the_third_attempt() {
    let fixture = Fixture::new();
    let target = Target::start(|call| match call.number {
        1 => Reply::Answer(503, "", "busy".into()),
        2 => Reply::Answer(500, "", "broken".into()),
        _ => Reply::Answer(201, "", "thanks".into()),
    })
    .await;
    let (task, attempts) = fixture.run_task(&target.url("/"), &json!({"policy": {"maxAttempts": 5}})).await;
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(3)));
    assert_eq!(task["lastResponseStatus"], 201);
    let summaries: Vec<_> = attempts.iter().map(summary).collect();
    let expected = [("failed", "answered", 503), ("failed", "answered", 500), ("succeeded", "answered", 201)];
    assert_eq!(summaries, expected);
    let excerpts: Vec<_> =
        attempts.iter().map(|attempt| attempt["responseExcerpt"].as_str().unwrap()).collect();
    assert_eq!(excerpts, ["busy", "broken", "thanks"]);
    for (number, attempt) in attempts.iter().enumerate() {
        let retried = number < 2;
        assert_eq!(attempt["attemptNumber"], number + 1);
        assert_eq!(attempt["waitMs"].as_u64(), retried.then_some(50), "{attempt}");
        assert_eq!(attempt["nextAttemptAt"].is_i64(), retried, "{attempt}");
        assert_eq!(attempt["errorMessage"].is_string(), retried, "{attempt}");
    }
    let calls = target.calls();
    assert_eq!(calls.iter().map(|call| call.attempt()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(calls.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(50)));
    assert!(calls.iter().all(|call| call.key() == call.task_id()));
}

#[tokio::test]
async fn an_attempt_records_the_phase_in_which_it_failed() {
    let fixture = Fixture::new();
    let second = Duration::from_secs(1);
    let cases = [
        ("never answers", Reply::Hang, ("timeout", "no_answer", 0)),
        (
            "sends its head too slowly",
            Reply::Drip("HTTP/1.1 2", "00 x\r\n", second),
            ("timeout", "no_answer", 0),
        ),
        (
            "sends its body too slowly",
            Reply::Drip("HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\n", "123456789", second),
            ("timeout", "answered", 200),
        ),
        ("closes without an answer", Reply::Raw(""), ("failed", "no_answer", 0)),
        (
            "closes within the body",
            Reply::Raw("HTTP/1.1 500 x\r\ncontent-length: 100\r\n\r\nhello"),
            ("failed", "answered", 500),
        ),
        ("sends garbage", Reply::Raw("\u{1}\u{2}\u{3} no HTTP at all\r\n\r\n"), ("failed", "no_answer", 0)),
        ("fails", Reply::status(500), ("failed", "answered", 500)),
    ];
    for (what, reply, expected) in cases {
        let target = Target::start(move |_| reply.clone()).await;
        let (task, attempts) = fixture.run_task(&target.url("/"), &json!({"timeoutMs": 700})).await;
        assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("attempts_exhausted")));
        assert_eq!(attempts.iter().map(summary).collect::<Vec<_>>(), [expected; 2], "{what}: {attempts:?}");
        assert!(attempts.iter().all(|attempt| attempt["errorMessage"].is_string()), "{what}");
        assert_eq!(target.count(), 2, "{what}: the log lacks attempts");
        if expected.0 == "timeout" {
            let took = attempts[0]["durationMs"].as_u64().unwrap();
            assert!((700..15_000).contains(&took), "{what}: {took} ms");
        }
    }
}

#[tokio::test]
async fn a_success_with_a_truncated_body_is_a_success_with_a_note() {
    let fixture = Fixture::new();
    let reply = "HTTP/1.1 201 x\r\ncontent-length: 100\r\n\r\nhello";
    let target = Target::start(move |_| Reply::Raw(reply)).await;
    let (task, attempts) = fixture.run_task(&target.url("/"), &json!({})).await;
    assert_eq!((&task["state"], target.count()), (&json!("succeeded"), 1), "{task}");
    assert_eq!(attempts.iter().map(summary).collect::<Vec<_>>(), [("succeeded", "answered", 201)]);
    assert_eq!(
        (&attempts[0]["responseExcerpt"], &attempts[0]["errorMessage"]),
        (&json!("hello"), &Value::Null)
    );
    let note = attempts[0]["note"].as_str().unwrap();
    assert!(note.contains("broke off"), "{note}");
}

#[tokio::test]
async fn a_failed_connection_is_recorded_as_never_sent() {
    let fixture = Fixture::new();
    let unreachable = Target::start_on("127.0.0.3", |_| Reply::Hang).await;
    unreachable.down().await;
    let (task, attempts) = fixture.run_task(&unreachable.url("/"), &json!({})).await;
    assert_eq!(task["reason"], "attempts_exhausted");
    assert_eq!(attempts.iter().map(summary).collect::<Vec<_>>(), [("failed", "never_sent", 0); 2]);
    let unknown = "http://no-such-host.invalid/";
    let (_, attempts) = fixture.run_task(unknown, &json!({})).await;
    assert_eq!(attempts.iter().map(summary).collect::<Vec<_>>(), [("failed", "never_sent", 0); 2]);
}

#[tokio::test]
async fn an_answer_of_2_gib_is_not_read_to_its_end() {
    let fixture = Fixture::new();
    let target = Target::start(|_| Reply::Flood(2 << 30)).await;
    let (task, attempts) = fixture.run_task(&target.url("/"), &json!({})).await;
    assert_eq!((&task["state"], attempts.len()), (&json!("succeeded"), 1));
    let excerpt = attempts[0]["responseExcerpt"].as_str().unwrap();
    assert!((1_000..8_192).contains(&excerpt.len()), "{} bytes of excerpt", excerpt.len());
    // The target fills the buffers of the socket before it notices that the connection is closed.
    assert!(target.sent_bytes() < 64 << 20, "{} bytes were read", target.sent_bytes());
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let fixture = Fixture::new();
    let elsewhere = Target::start_on("127.0.0.4", |_| Reply::status(200)).await;
    let location: &'static str = format!("location: {}\r\n", elsewhere.url("/")).leak();
    for status in [301, 302, 307, 308] {
        let target = Target::start(move |_| Reply::Answer(status, location, String::new())).await;
        let (task, attempts) = fixture.run_task(&target.url("/"), &json!({})).await;
        assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("not_retryable")));
        assert_eq!(
            attempts.iter().map(summary).map(|(_, _, status)| status).collect::<Vec<_>>(),
            [u64::from(status)]
        );
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_failure_that_is_not_retryable_makes_the_task_dead_at_once() {
    let fixture = Fixture::new();
    let target = Target::start(|_| Reply::Answer(400, "", "no".into())).await;
    let (task, attempts) = fixture.run_task(&target.url("/"), &json!({"policy": {"maxAttempts": 9}})).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("not_retryable")));
    assert_eq!((&task["attemptNumber"], &task["lastResponseStatus"]), (&json!(1), &json!(400)));
    assert_eq!((attempts.len(), target.count()), (1, 1));
}

#[tokio::test]
async fn retry_after_delays_every_task_of_the_origin() {
    let fixture = Fixture::new();
    let target = Target::start(|call| match call.number {
        1 => Reply::Answer(503, "retry-after: 2\r\n", String::new()),
        _ => Reply::status(200),
    })
    .await;
    let task = json!({
        "target": target.url("/first"),
        "policy": {"backoffType": "fixed", "initialDelayMs": 1, "jitterType": "none"},
    });
    let first = fixture.client.create(&task).await;
    target.wait_for_calls(1).await;
    eventually("the first attempt is settled", async || {
        (!fixture.client.attempts(&first).await.is_empty()).then_some(())
    })
    .await;
    let second = fixture.client.create(&json!({"target": target.url("/second")})).await;
    for id in [&first, &second] {
        assert_eq!(fixture.client.wait_for_end(id).await["state"], "succeeded");
    }
    let attempts = fixture.client.attempts(&first).await;
    assert!(attempts[0]["waitMs"].as_u64().unwrap() >= 2_000, "{attempts:?}");
    let calls = target.calls();
    for call in &calls[1..] {
        let wait = call.at - calls[0].at;
        assert!(wait >= Duration::from_millis(1_900), "{} came after {wait:?}", call.path);
    }
    assert_eq!(
        fixture.client.task(&second).await["attemptNumber"],
        1,
        "the held task was charged an attempt"
    );
}

#[tokio::test]
async fn a_task_is_dead_when_its_time_budget_ends() {
    let fixture = Fixture::new();
    let target = Target::start(|_| Reply::status(503)).await;
    // Attempts start every 300 ms, so at most ten fit into the budget.
    let policy = json!({"policy": {
        "backoffType": "fixed", "jitterType": "none", "initialDelayMs": 300, "maxAttempts": 100, "totalBudgetMs": 3_000,
    }});
    let (task, attempts) = fixture.run_task(&target.url("/"), &policy).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("budget_exceeded")));
    assert!((2..=10).contains(&attempts.len()), "{attempts:?}");
    let calls = target.calls();
    let last_start = calls[calls.len() - 1].at - calls[0].at;
    assert!(last_start <= Duration::from_millis(3_500), "the last call began after {last_start:?}");
}

#[tokio::test]
async fn the_target_gets_the_request_and_the_key_of_the_caller_unchanged() {
    let fixture = Fixture::new();
    let target = Target::start(|_| Reply::status(200)).await;
    let task = json!({
        "method": "PATCH", "headers": {"X-Order": "7"},
        "bodyJson": {"b": 1, "a": [2.50]}, "idempotencyKey": "order-7",
    });
    fixture.run_task(&target.url("/path?query=1"), &task).await;
    let call = target.calls().pop().unwrap();
    assert_eq!((call.method.as_str(), call.path.as_str()), ("PATCH", "/path?query=1"));
    assert_eq!((call.header("x-order"), call.key()), ("7", "order-7"));
    assert_eq!(call.header("content-type"), "application/json");
    assert_eq!(call.json(), json!({"b": 1, "a": [2.50]}));
}

#[tokio::test]
async fn without_a_key_the_task_id_is_sent_and_the_trace_of_the_caller_continues() {
    let fixture = Fixture::new();
    let target = Target::start(|call| Reply::status(if call.number % 2 == 1 { 503 } else { 200 })).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = fixture.client.with_header("traceparent", trace);
    let task = json!({
        "target": target.url("/"), "policy": {"backoffType": "fixed", "initialDelayMs": 1, "jitterType": "none"},
    });
    // The second and the third task have the same request id, like tasks that one request to a program creates.
    for (header, value) in
        [("idempotency-key", "from-the-header"), ("x-request-id", "request"), ("x-request-id", "request")]
    {
        let before = target.count();
        let client = traced.with_header(header, value);
        let id = client.create(&task).await;
        assert_eq!(client.wait_for_end(&id).await["state"], "succeeded");
        let key = if header == "idempotency-key" { value } else { id.as_str() };
        for call in &target.calls()[before..] {
            assert_eq!((call.key(), call.header("traceparent")), (key, trace), "{header}");
        }
        assert_eq!(target.count(), before + 2);
    }
}
