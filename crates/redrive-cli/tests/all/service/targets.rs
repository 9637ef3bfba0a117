//! Targets that misbehave, and what the log of attempts says about each.

use std::time::Duration;

use serde_json::{Value, json};

use crate::stage::{Client, Launch, Reply, Service, Target, eventually};

/// A service, and what goes to it.
struct Stage {
    _folder: tempfile::TempDir,
    _service: Service,
    client: Client,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = Launch::new(folder.path()).start();
        Self { client: service.client(), _folder: folder, _service: service }
    }

    /// A task to `url`, with two attempts 50 ms apart unless `more` says otherwise, when it has ended, and its attempts.
    async fn drive(&self, url: &str, more: &Value) -> (Value, Vec<Value>) {
        let mut task = json!({
            "targetUrl": url, "timeoutMs": 10_000,
            "policy": {"maxAttempts": 2, "backoffType": "FIXED", "initialDelayMs": 50, "jitterType": "NONE"},
        });
        for (field, value) in more.as_object().unwrap() {
            match (task[field].as_object_mut(), value.as_object()) {
                (Some(known), Some(more)) => known.extend(more.clone()),
                _ => task[field] = value.clone(),
            }
        }
        let id = self.client.create(&task).await;
        (self.client.ended(&id).await, self.client.attempts(&id).await)
    }
}

/// What an attempt came to, in the order of the assertion.
fn seen(attempt: &Value) -> (&str, &str, u64) {
    let text = |field: &str| attempt[field].as_str().unwrap_or("");
    (text("outcome"), text("phase"), attempt["responseStatus"].as_u64().unwrap_or(0))
}

#[tokio::test]
async fn a_target_that_fails_twice_gets_it_the_third_time() {
    let stage = Stage::new();
    let target = Target::start(|call| match call.number {
        1 => Reply::Answer(503, "", "busy".into()),
        2 => Reply::Answer(500, "", "broken".into()),
        _ => Reply::Answer(201, "", "thanks".into()),
    })
    .await;
    let (task, attempts) = stage.drive(&target.url("/"), &json!({"policy": {"maxAttempts": 5}})).await;
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(3)));
    assert_eq!(task["lastResponseStatus"], 201);
    let saw: Vec<_> = attempts.iter().map(seen).collect();
    let expected = [("failed", "ANSWERED", 503), ("failed", "ANSWERED", 500), ("succeeded", "ANSWERED", 201)];
    assert_eq!(saw, expected);
    let excerpts: Vec<_> = attempts.iter().map(|one| one["responseExcerpt"].as_str().unwrap()).collect();
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
async fn an_attempt_says_how_far_it_came() {
    let stage = Stage::new();
    let second = Duration::from_secs(1);
    let cases = [
        ("hangs", Reply::Hang, ("timeout", "NO_ANSWER", 0)),
        ("drips its head", Reply::Drip("HTTP/1.1 2", "00 x\r\n", second), ("timeout", "NO_ANSWER", 0)),
        (
            "drips its body",
            Reply::Drip("HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\n", "123456789", second),
            ("timeout", "ANSWERED", 200),
        ),
        ("closes without a word", Reply::Raw(""), ("failed", "NO_ANSWER", 0)),
        (
            "closes mid-body",
            Reply::Raw("HTTP/1.1 500 x\r\ncontent-length: 100\r\n\r\nhello"),
            ("failed", "ANSWERED", 500),
        ),
        ("sends garbage", Reply::Raw("\u{1}\u{2}\u{3} no HTTP at all\r\n\r\n"), ("failed", "NO_ANSWER", 0)),
        ("fails", Reply::status(500), ("failed", "ANSWERED", 500)),
    ];
    for (what, reply, expected) in cases {
        let target = Target::start(move |_| reply.clone()).await;
        let (task, attempts) = stage.drive(&target.url("/"), &json!({"timeoutMs": 700})).await;
        assert_eq!((&task["status"], &task["reason"]), (&json!("EXHAUSTED"), &json!("ATTEMPTS_EXHAUSTED")));
        assert_eq!(attempts.iter().map(seen).collect::<Vec<_>>(), [expected; 2], "{what}: {attempts:?}");
        assert!(attempts.iter().all(|attempt| attempt["errorMessage"].is_string()), "{what}");
        assert_eq!(target.count(), 2, "{what}: attempts were made in secret");
        if expected.0 == "timeout" {
            let took = attempts[0]["durationMs"].as_u64().unwrap();
            assert!((700..15_000).contains(&took), "{what}: {took} ms");
        }
    }
}

#[tokio::test]
async fn a_success_whose_body_breaks_off_is_a_success_with_a_note() {
    let stage = Stage::new();
    let reply = "HTTP/1.1 201 x\r\ncontent-length: 100\r\n\r\nhello";
    let target = Target::start(move |_| Reply::Raw(reply)).await;
    let (task, attempts) = stage.drive(&target.url("/"), &json!({})).await;
    assert_eq!((&task["status"], target.count()), (&json!("SUCCEEDED"), 1), "{task}");
    assert_eq!(attempts.iter().map(seen).collect::<Vec<_>>(), [("succeeded", "ANSWERED", 201)]);
    assert_eq!(
        (&attempts[0]["responseExcerpt"], &attempts[0]["errorMessage"]),
        (&json!("hello"), &Value::Null)
    );
    let note = attempts[0]["note"].as_str().unwrap();
    assert!(note.contains("broke off"), "{note}");
}

#[tokio::test]
async fn a_request_that_was_never_sent_says_so() {
    let stage = Stage::new();
    let gone = Target::start_on("127.0.0.3", |_| Reply::Hang).await;
    gone.down().await;
    let (task, attempts) = stage.drive(&gone.url("/"), &json!({})).await;
    assert_eq!(task["reason"], "ATTEMPTS_EXHAUSTED");
    assert_eq!(attempts.iter().map(seen).collect::<Vec<_>>(), [("failed", "NEVER_SENT", 0); 2]);
    let unknown = "http://no-such-host.invalid/";
    let (_, attempts) = stage.drive(unknown, &json!({})).await;
    assert_eq!(attempts.iter().map(seen).collect::<Vec<_>>(), [("failed", "NEVER_SENT", 0); 2]);
}

#[tokio::test]
async fn two_gibibytes_of_answer_are_not_swallowed() {
    let stage = Stage::new();
    let target = Target::start(|_| Reply::Flood(2 << 30)).await;
    let (task, attempts) = stage.drive(&target.url("/"), &json!({})).await;
    assert_eq!((&task["status"], attempts.len()), (&json!("SUCCEEDED"), 1));
    let excerpt = attempts[0]["responseExcerpt"].as_str().unwrap();
    assert!((1_000..8_192).contains(&excerpt.len()), "{} bytes of excerpt", excerpt.len());
    // What the sockets hold is sent before the other side hangs up.
    assert!(target.sent_bytes() < 64 << 20, "{} bytes were read", target.sent_bytes());
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let stage = Stage::new();
    let elsewhere = Target::start_on("127.0.0.4", |_| Reply::status(200)).await;
    let location: &'static str = format!("location: {}\r\n", elsewhere.url("/")).leak();
    for status in [301, 302, 307, 308] {
        let target = Target::start(move |_| Reply::Answer(status, location, String::new())).await;
        let (task, attempts) = stage.drive(&target.url("/"), &json!({})).await;
        assert_eq!((&task["status"], &task["reason"]), (&json!("EXHAUSTED"), &json!("NOT_RETRYABLE")));
        assert_eq!(
            attempts.iter().map(seen).map(|(_, _, status)| status).collect::<Vec<_>>(),
            [u64::from(status)]
        );
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn what_is_not_retryable_is_dead_at_once() {
    let stage = Stage::new();
    let target = Target::start(|_| Reply::Answer(400, "", "no".into())).await;
    let (task, attempts) = stage.drive(&target.url("/"), &json!({"policy": {"maxAttempts": 9}})).await;
    assert_eq!((&task["status"], &task["reason"]), (&json!("EXHAUSTED"), &json!("NOT_RETRYABLE")));
    assert_eq!((&task["attemptNumber"], &task["lastResponseStatus"]), (&json!(1), &json!(400)));
    assert_eq!((attempts.len(), target.count()), (1, 1));
}

#[tokio::test]
async fn retry_after_is_honoured_and_holds_the_whole_origin() {
    let stage = Stage::new();
    let target = Target::start(|call| match call.number {
        1 => Reply::Answer(503, "retry-after: 2\r\n", String::new()),
        _ => Reply::status(200),
    })
    .await;
    let patient = json!({
        "targetUrl": target.url("/first"),
        "policy": {"backoffType": "FIXED", "initialDelayMs": 1, "jitterType": "NONE"},
    });
    let first = stage.client.create(&patient).await;
    target.expect(1).await;
    eventually("the first attempt is settled", async || {
        (!stage.client.attempts(&first).await.is_empty()).then_some(())
    })
    .await;
    let second = stage.client.create(&json!({"targetUrl": target.url("/second")})).await;
    for id in [&first, &second] {
        assert_eq!(stage.client.ended(id).await["status"], "SUCCEEDED");
    }
    let attempts = stage.client.attempts(&first).await;
    assert!(attempts[0]["waitMs"].as_u64().unwrap() >= 2_000, "{attempts:?}");
    let calls = target.calls();
    for call in &calls[1..] {
        let wait = call.at - calls[0].at;
        assert!(wait >= Duration::from_millis(1_900), "{} came after {wait:?}", call.path);
    }
    assert_eq!(stage.client.task(&second).await["attemptNumber"], 1, "held back, and charged for it");
}

#[tokio::test]
async fn a_budget_that_is_used_up_ends_the_task() {
    let stage = Stage::new();
    let target = Target::start(|_| Reply::status(503)).await;
    let policy = json!({"policy": {"maxAttempts": 100, "initialDelayMs": 300, "totalBudgetMs": 1_000}});
    let (task, attempts) = stage.drive(&target.url("/"), &policy).await;
    assert_eq!((&task["status"], &task["reason"]), (&json!("EXHAUSTED"), &json!("BUDGET_EXCEEDED")));
    assert!((2..=4).contains(&attempts.len()), "{attempts:?}");
    let lived = task["finishedAt"].as_i64().unwrap() - task["createdAt"].as_i64().unwrap();
    assert!(lived <= 1_500, "{lived} ms");
}

#[tokio::test]
async fn what_the_caller_sent_arrives_as_it_was_and_the_key_is_the_callers() {
    let stage = Stage::new();
    let target = Target::start(|_| Reply::status(200)).await;
    let task = json!({
        "method": "PATCH", "headers": {"X-Order": "7"},
        "bodyJson": {"b": 1, "a": [2.50]}, "idempotencyKey": "order-7",
    });
    stage.drive(&target.url("/path?query=1"), &task).await;
    let call = target.calls().pop().unwrap();
    assert_eq!((call.method.as_str(), call.path.as_str()), ("PATCH", "/path?query=1"));
    assert_eq!((call.header("x-order"), call.key()), ("7", "order-7"));
    assert_eq!(call.header("content-type"), "application/json");
    assert_eq!(call.json(), json!({"b": 1, "a": [2.50]}));
}

#[tokio::test]
async fn without_a_key_the_task_is_its_own_and_the_creators_trace_goes_on() {
    let stage = Stage::new();
    let target = Target::start(|call| Reply::status(if call.number % 2 == 1 { 503 } else { 200 })).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = stage.client.with_header("traceparent", trace);
    let task = json!({
        "targetUrl": target.url("/"), "policy": {"backoffType": "FIXED", "initialDelayMs": 1, "jitterType": "NONE"},
    });
    // The second and the third are created under one request id, as a program does it that passes its own on.
    for (header, value) in
        [("idempotency-key", "from-the-header"), ("x-request-id", "request"), ("x-request-id", "request")]
    {
        let before = target.count();
        let client = traced.with_header(header, value);
        let id = client.create(&task).await;
        assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
        let key = if header == "idempotency-key" { value } else { id.as_str() };
        for call in &target.calls()[before..] {
            assert_eq!((call.key(), call.header("traceparent")), (key, trace), "{header}");
        }
        assert_eq!(target.count(), before + 2);
    }
}
