//! Every command that talks to a service, for people and for programs.

use serde_json::Value;

use crate::session::Session;
use crate::stage::{Reply, eventually};

/// Two attempts, 20 ms apart.
const QUICK: &str = r#"{"maxAttempts": 2, "backoffType": "FIXED", "initialDelayMs": 20, "maxDelayMs": 20, "jitterType": "NONE"}"#;

fn id(said: &str) -> String {
    said.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks() {
    let mut session = Session::start().await;
    let (ok, flaky, missing) =
        (session.target.url("/ok"), session.target.url("/flaky"), session.target.url("/missing"));
    let policy = session.file("quick.json", QUICK);
    let policy = policy.to_str().unwrap();
    session.run(&["task", "list"]);
    session.run(&["task", "create", &ok, "--wait"]);
    session.run(&[
        "task",
        "create",
        &flaky,
        "--wait",
        "--policy-file",
        policy,
        "--body-json",
        r#"{"order": 7.10}"#,
    ]);
    session.run(&["task", "create", &flaky, "--wait", "--policy-file", policy, "--json"]);
    let lost = id(&session.run(&[
        "task",
        "create",
        &missing,
        "--wait",
        "-X",
        "PUT",
        "-H",
        "x-order: 7",
        "-d",
        "seven",
    ]));
    let later = ["task", "create", &ok, "--delay", "1h", "--key", "order-7", "--on-exhausted", &missing];
    let waits = id(&session.run(&later));
    session.run(&later);
    session.run(&["task", "create", &missing, "--delay", "1h", "--key", "order-7"]);
    session.check("task_create");
    session.forget();
    look_at_tasks(&mut session, &lost, &waits);
    session.check("task_look");
    session.forget();
    change_tasks(&mut session, &ok, &lost, &waits);
    session.check("task_change");

    let calls = session.target.calls();
    let flaky = calls.iter().find(|call| call.path == "/flaky").unwrap();
    assert_eq!(String::from_utf8_lossy(&flaky.body), r#"{"order": 7.10}"#, "JSON is sent as it was written");
    let put = calls.iter().find(|call| call.path == "/missing").unwrap();
    assert_eq!((put.method.as_str(), put.header("x-order"), &*put.body), ("PUT", "7", &b"seven"[..]));
}

fn look_at_tasks(session: &mut Session, lost: &str, waits: &str) {
    session.run(&["task", "get", lost]);
    session.run(&["task", "get", waits]);
    session.run(&["task", "get", waits, "--json"]);
    session.run(&["task", "list"]);
    session.run(&["task", "list", "--limit", "1", "--status", "succeeded"]);
    session.run(&[
        "task",
        "list",
        "--status",
        "exhausted",
        "--reason",
        "not-retryable",
        "--since",
        "1h",
        "--json",
    ]);
    session.run(&["task", "attempts", lost]);
    session.run(&["task", "attempts", lost, "--json"]);
}

fn change_tasks(session: &mut Session, ok: &str, lost: &str, waits: &str) {
    session.run(&["task", "run-now", waits]);
    session.run(&["task", "watch", waits]);
    session.run(&["task", "redrive", lost]);
    session.run(&["task", "watch", lost]);
    session.run(&["task", "redrive", lost, waits]);
    let waits = &session.quietly(&["task", "create", ok, "--delay", "1h"], 0);
    session.run(&["task", "cancel", waits]);
    session.run(&["task", "cancel", waits, "--json"]);
    session.run(&["task", "watch", waits, "--json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_come_from_anywhere() {
    let mut session = Session::start().await;
    let ok = session.target.url("/ok");
    let binary = session.folder.path().join("binary");
    std::fs::write(&binary, [0xff, 0, 1]).unwrap();
    let large = session.file("large", &"x".repeat(200_000));
    let at = |path: &std::path::Path| format!("@{}", path.display());
    session.quietly(&["task", "create", &ok, "--wait", "--body", &at(&binary)], 0);
    session.quietly(&["task", "create", &ok, "--wait", "--body", &at(&large)], 0);
    session.feed(&["task", "create", &ok, "--wait", "--body", "-"], "from standard input\n");
    let bodies: Vec<Vec<u8>> = session.target.calls().into_iter().map(|call| call.body).collect();
    assert_eq!(bodies[0], [0xff, 0, 1]);
    assert_eq!((bodies[1].len(), bodies[1][0]), (200_000, b'x'));
    assert_eq!(bodies[2], b"from standard input\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs() {
    let mut session = Session::start().await;
    let (ok, missing) = (session.target.url("/ok"), session.target.url("/missing"));
    let dead = id(&session.quietly(&["task", "create", &missing, "--wait"], 6));
    let waits = session.quietly(&["task", "create", &ok, "--delay", "1h"], 0);
    session.run(&["job", "list"]);
    session.run(&["job", "list", "--state", "dead", "--kind", "delivery", "--json"]);
    session.run(&["job", "list", "--kind", "mail"]);
    session.run(&["job", "get", &dead]);
    session.run(&["job", "get", &waits, "--json"]);
    session.run(&["job", "attempts", &dead]);
    session.run(&["job", "attempts", &dead, "--json"]);
    session.run(&["job", "steps", &dead]);
    session.run(&["job", "pause", &waits]);
    session.run(&["job", "get", &waits]);
    session.run(&["job", "resume", &waits]);
    session.run(&["job", "signal", &waits, "approved", "true"]);
    session.run(&["job", "signal", &waits, "approved", "yes"]);
    session.run(&["job", "signal", &dead, "approved"]);
    session.run(&["job", "run-now", &dead]);
    session.run(&["job", "redrive", &dead, "--forget-steps"]);
    session.quietly(&["task", "watch", &dead], 6);
    session.run(&["job", "cancel", &waits, &dead]);
    session.check("job");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters() {
    let mut session = Session::start().await;
    let missing = session.target.url("/missing");
    session.run(&["dead", "list"]);
    session.run(&["dead", "groups"]);
    session.run(&["dead", "discard"]);
    for _ in 0..3 {
        session.quietly(&["task", "create", &missing, "--wait"], 6);
    }
    session.run(&["dead", "list", "--limit", "2"]);
    session.run(&["dead", "list", "--limit", "1", "--json"]);
    session.run(&["dead", "list", "--kind", "mail"]);
    session.run(&["dead", "groups"]);
    session.run(&["dead", "groups", "--json"]);
    session.run(&["dead", "redrive", "--dry-run"]);
    session.run(&["dead", "redrive", "--dry-run", "--reason", "body-lost", "--json"]);
    session.run(&["dead", "redrive", "--canary", "1"]);
    session.target.now(|_| Reply::status(200));
    session.run(&["dead", "redrive", "--target", &missing, "--rate", "1000"]);
    session.target.now(|_| Reply::status(404));
    session.quietly(&["task", "create", &missing, "--wait"], 6);
    session.run(&["dead", "export"]);
    session.run(&["dead", "export", "--output", "dead.ndjson"]);
    session.run(&["dead", "export", "--output", "dead.ndjson"]);
    session.run(&["dead", "discard", "--dry-run"]);
    session.run(&["dead", "discard"]);
    session.run(&["dead", "discard", "--yes", "--json"]);
    session.run(&["dead", "list"]);
    session.check("dead");
    let exported = std::fs::read_to_string(session.folder.path().join("dead.ndjson")).unwrap();
    let letter: Value = serde_json::from_str(&exported).unwrap();
    assert_eq!(letter["status"], "EXHAUSTED");
}

#[tokio::test(flavor = "multi_thread")]
async fn operations() {
    let mut session = Session::start().await;
    let missing = session.target.url("/missing");
    session.run(&["operation", "list"]);
    for _ in 0..2 {
        session.quietly(&["task", "create", &missing, "--wait"], 6);
    }
    let slow = session.quietly(&["dead", "discard", "--yes", "--rate", "0.01", "--detach"], 0);
    let client = session.service.client();
    eventually("the first is gone", async || {
        (client.get(&format!("/operations/{slow}")).await.json(200)["done"] == 1).then_some(())
    })
    .await;
    session.run(&["operation", "stop", &slow, "--json"]);
    session.run(&["operation", "watch", &slow]);
    session.run(&["operation", "stop", &slow]);
    let all = session.quietly(&["dead", "redrive", "--detach", "--reason", "not-retryable"], 0);
    session.run(&["operation", "watch", &all]);
    session.run(&["operation", "get", &all]);
    session.run(&["operation", "get", &all, "--json"]);
    session.run(&["operation", "list", "--json"]);
    let ok = session.target.url("/ok");
    for key in ["order-7", "order-8"] {
        session.quietly(&["task", "create", &ok, "--delay", "1h", "--key", key, "-d", key], 0);
    }
    session.run(&["operation", "begin", "cancel", "--state", "pending", "--dry-run"]);
    session.run(&["operation", "begin", "cancel", "--state", "pending"]);
    session.run(&["operation", "begin", "cancel", "--text", "ORDER-7", "--yes"]);
    session.run(&["operation", "begin", "run-now", "--subject", &ok, "--canary", "1", "--rate", "100"]);
    session.run(&["operation", "begin", "discard", "--kind", "mail"]);
    session.run(&["operation", "begin", "burn"]);
    session.run(&["task", "list", "--target", &ok]);
    session.check("operation");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies() {
    let mut session = Session::start().await.with_exact_spans();
    let quick = session.file("quick.json", QUICK);
    let quick = quick.to_str().unwrap();
    session.run(&["policy", "list"]);
    session.run(&["policy", "put", "quick", quick]);
    session.feed(&["policy", "put", "quick", "-", "--json"], r#"{"maxAttempts": 3, "totalBudgetMs": null}"#);
    session
        .feed(&["policy", "put", "waits", "-"], r#"{"backoffType": "SCHEDULE", "delaysMs": [5000, 60000]}"#);
    session.run(&["policy", "get", "quick"]);
    session.run(&["policy", "get", "default", "--json"]);
    session.run(&["policy", "list"]);
    session.run(&["policy", "list", "--json"]);
    session.run(&["policy", "get", "none"]);
    session.feed(&["policy", "put", "wrong", "-"], r#"{"maxAttempts": 0}"#);
    session.feed(&["policy", "put", "wrong", "-"], r#"{"maxRetries": 5}"#);
    session.run(&["policy", "preview", "upload"]);
    session.run(&["policy", "preview", "once", "--json"]);
    session.check("policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn queues() {
    let mut session = Session::start().await.with_exact_spans();
    let ok = session.target.url("/ok");
    session.run(&["queue", "list"]);
    session.quietly(&["task", "create", &ok, "--delay", "1h"], 0);
    session.run(&[
        "queue",
        "limit",
        "default",
        "--concurrency",
        "5",
        "--rate",
        "100/1m",
        "--key-concurrency",
        "2",
    ]);
    session.run(&["queue", "pause", "default"]);
    session.run(&["queue", "list"]);
    session.run(&["queue", "list", "--json"]);
    session.run(&["queue", "resume", "default", "--json"]);
    session.run(&["queue", "pause", "*"]);
    session.run(&["queue", "resume", "*"]);
    session.run(&["queue", "limit", "default", "--off"]);
    session.run(&["queue", "limit", "*", "--concurrency", "1"]);
    session.run(&["queue", "limit", "default", "--rate", "often"]);
    session.run(&["queue", "pause", "nosuch"]);
    session.run(&["queue", "resume", "nosuch"]);
    session.run(&["queue", "limit", "nosuch", "--off"]);
    session.run(&["queue", "pause", "later", "--create"]);
    session.run(&["queue", "resume", "later"]);
    session.run(&["queue", "resume", "later"]);
    session.check("queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys() {
    let mut session = Session::start().await;
    session.run(&["key", "list"]);
    session.run(&["key", "create", "--name", "ci", "--store", "sqlite:other.db"]);
    session.run(&["key", "create", "--name", "ci", "--scope", "write"]);
    session.run(&["key", "create", "--name", "ops", "--scope", "admin", "--store", "sqlite:other.db"]);
    // They are listed by their ids, which are random: one is enough.
    session.run(&["key", "list", "--store", "sqlite:other.db"]);
    session.run(&["key", "list", "--store", "sqlite:other.db", "--json"]);
    session.run(&[
        "key",
        "create",
        "--name",
        "shop",
        "--tenant",
        "shop",
        "--store",
        "sqlite:other.db",
        "--json",
    ]);
    session.run(&["key", "revoke", "none", "--store", "sqlite:other.db"]);
    let listed = session.quietly(&["key", "list", "--store", "sqlite:other.db", "--json"], 0);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ops = listed.iter().find(|key| key["name"] == "ops").unwrap()["keyId"].as_str().unwrap();
    session.run(&["key", "revoke", ops, "--store", "sqlite:other.db"]);
    let bodies = ["key", "create", "--name", "eyes", "--scope", "read", "--bodies", "--json"];
    session.run(&[&bodies[..], &["--store", "sqlite:other.db"]].concat());
    let elsewhere = tempfile::tempdir().unwrap();
    session.run_as(&["key", "list"], |command| {
        command.env_remove("REDRIVE_URL").current_dir(elsewhere.path());
    });
    let admin = session.run(&["key", "create", "--name", "ops", "--scope", "admin"]);
    session.run(&["key", "list"]);
    let file = session.file("admin", &admin);
    let file = file.to_str().unwrap();
    session.run(&["key", "list", "--api-key-file", file]);
    session.run(&["key", "list", "--api-key-file", file, "--json"]);
    let reader = session.run(&[
        "key",
        "create",
        "--name",
        "eyes",
        "--scope",
        "read",
        "--api-key-file",
        file,
        "--json",
    ]);
    let reader: Value = serde_json::from_str(&reader).unwrap();
    let (eyes, reader) = (reader["keyId"].as_str().unwrap(), reader["key"].as_str().unwrap());
    session.run_as(&["task", "list"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.run_as(&["queue", "pause", "*"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.run(&["key", "revoke", eyes, "--api-key-file", file]);
    session.run(&["key", "revoke", eyes, "--api-key-file", file]);
    session.run_as(&["task", "list"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.check("key");
}

#[tokio::test(flavor = "multi_thread")]
async fn how_it_fares() {
    let mut session = Session::start().await;
    let (ok, missing) = (session.target.url("/ok"), session.target.url("/missing"));
    session.run(&["top", "--once"]);
    session.quietly(&["task", "create", &ok, "--wait"], 0);
    session.quietly(&["task", "create", &missing, "--wait"], 6);
    session.quietly(&["task", "create", &ok, "--delay", "1h"], 0);
    session.quietly(&["queue", "pause", "default"], 0);
    session.run(&["top", "--once"]);
    session.run(&["top", "--once", "--json"]);
    session.run(&["node", "list"]);
    session.run(&["node", "list", "--json"]);
    // A key of one tenant does not see what all share.
    let admin = session.quietly(&["key", "create", "--name", "ops", "--scope", "admin"], 0);
    let file = session.file("admin", &admin);
    let create = ["key", "create", "--name", "shop", "--tenant", "shop", "--scope", "read", "--api-key-file"];
    let shop = session.quietly(&[&create[..], &[file.to_str().unwrap()]].concat(), 0);
    for command in [&["top", "--once"][..], &["node", "list"]] {
        session.run_as(command, |command| {
            command.env("REDRIVE_API_KEY", &shop);
        });
    }
    session.check("top");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_looks_at_the_service_too() {
    let mut session = Session::start().await;
    let store = ["--store", "sqlite:none.db"];
    session.run(&["doctor", store[0], store[1]]);
    session.run(&["doctor", store[0], store[1], "--json"]);
    session.quietly(&["key", "create", "--name", "ops", "--scope", "admin"], 0);
    session.run(&["doctor", store[0], store[1]]);
    session.check("doctor");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let grave = session.quietly(&["doctor", store[0], store[1], "--url", &format!("http://{closed}")], 1);
    assert!(grave.starts_with("grave    service: the service does not answer\n"), "{grave}");
}
