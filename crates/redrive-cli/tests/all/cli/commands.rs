//! Runs every command that calls a service, with and without `--json`.

use serde_json::Value;

use crate::cli::session::Session;
use crate::fixtures::{Reply, eventually};

/// Two attempts, 20 ms apart.
const QUICK: &str = r#"{"maxAttempts": 2, "backoffType": "fixed", "initialDelayMs": 20, "maxDelayMs": 20, "jitterType": "none"}"#;

/// The id, which a command prints on its first line.
fn id(output: &str) -> String {
    output.lines().next().unwrap_or_default().to_owned()
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
    let dead = id(&session.run(&[
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
    let later = ["task", "create", &ok, "--delay", "1h", "--key", "order-7", "--on-failure", &missing];
    let delayed = id(&session.run(&later));
    session.run(&later);
    session.run(&["task", "create", &missing, "--delay", "1h", "--key", "order-7"]);
    session.compare_with("task_create");
    session.clear();
    show_tasks(&mut session, &dead, &delayed);
    session.compare_with("task_show");
    session.clear();
    change_tasks(&mut session, &ok, &dead, &delayed);
    session.compare_with("task_change");

    let calls = session.target.calls();
    let flaky = calls.iter().find(|call| call.path == "/flaky").unwrap();
    assert_eq!(String::from_utf8_lossy(&flaky.body), r#"{"order": 7.10}"#, "JSON is sent unchanged");
    let put = calls.iter().find(|call| call.path == "/missing").unwrap();
    assert_eq!((put.method.as_str(), put.header("x-order"), &*put.body), ("PUT", "7", &b"seven"[..]));
}

fn show_tasks(session: &mut Session, dead: &str, delayed: &str) {
    session.run(&["task", "get", dead]);
    session.run(&["task", "get", delayed]);
    session.run(&["task", "get", delayed, "--json"]);
    session.run(&["task", "list"]);
    session.run(&["task", "list", "--limit", "1", "--state", "succeeded"]);
    session.run(&["task", "list", "--state", "dead", "--reason", "not_retryable", "--since", "1h", "--json"]);
    session.run(&["task", "attempts", dead]);
    session.run(&["task", "attempts", dead, "--json"]);
}

fn change_tasks(session: &mut Session, ok: &str, dead: &str, delayed: &str) {
    session.run(&["task", "run-now", delayed]);
    session.run(&["task", "watch", delayed]);
    session.run(&["task", "redrive", dead]);
    session.run(&["task", "watch", dead]);
    session.run(&["task", "redrive", dead, delayed]);
    let delayed = &session.run_unrecorded(&["task", "create", ok, "--delay", "1h"], 0);
    session.run(&["task", "cancel", delayed]);
    session.run(&["task", "cancel", delayed, "--json"]);
    session.run(&["task", "watch", delayed, "--json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_comes_from_an_option_a_file_or_standard_input() {
    let mut session = Session::start().await;
    let ok = session.target.url("/ok");
    let binary = session.folder.path().join("binary");
    std::fs::write(&binary, [0xff, 0, 1]).unwrap();
    let large = session.file("large", &"x".repeat(200_000));
    let at = |path: &std::path::Path| format!("@{}", path.display());
    session.run_unrecorded(&["task", "create", &ok, "--wait", "--body", &at(&binary)], 0);
    session.run_unrecorded(&["task", "create", &ok, "--wait", "--body", &at(&large)], 0);
    session.run_with_input(&["task", "create", &ok, "--wait", "--body", "-"], "from standard input\n");
    let bodies: Vec<Vec<u8>> = session.target.calls().into_iter().map(|call| call.body).collect();
    assert_eq!(bodies[0], [0xff, 0, 1]);
    assert_eq!((bodies[1].len(), bodies[1][0]), (200_000, b'x'));
    assert_eq!(bodies[2], b"from standard input\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs() {
    let mut session = Session::start().await;
    let (ok, missing) = (session.target.url("/ok"), session.target.url("/missing"));
    let dead = id(&session.run_unrecorded(&["task", "create", &missing, "--wait"], 6));
    let delayed = session.run_unrecorded(&["task", "create", &ok, "--delay", "1h"], 0);
    session.run(&["job", "list"]);
    session.run(&["job", "list", "--state", "dead", "--kind", "delivery", "--json"]);
    session.run(&["job", "list", "--kind", "mail"]);
    session.run(&["job", "get", &dead]);
    session.run(&["job", "get", &delayed, "--json"]);
    session.run(&["job", "attempts", &dead]);
    session.run(&["job", "attempts", &dead, "--json"]);
    session.run(&["job", "steps", &dead]);
    session.run(&["job", "pause", &delayed]);
    session.run(&["job", "get", &delayed]);
    session.run(&["job", "resume", &delayed]);
    session.run(&["job", "signal", &delayed, "approved", "true"]);
    session.run(&["job", "signal", &delayed, "approved", "yes"]);
    session.run(&["job", "signal", &dead, "approved"]);
    session.run(&["job", "run-now", &dead]);
    session.run(&["job", "redrive", &dead, "--forget-steps"]);
    session.run_unrecorded(&["task", "watch", &dead], 6);
    session.run(&["job", "cancel", &delayed, &dead]);
    session.compare_with("job");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters() {
    let mut session = Session::start().await;
    let missing = session.target.url("/missing");
    session.run(&["dead", "list"]);
    session.run(&["dead", "groups"]);
    session.run(&["dead", "discard"]);
    for _ in 0..3 {
        session.run_unrecorded(&["task", "create", &missing, "--wait"], 6);
    }
    session.run(&["dead", "list", "--limit", "2"]);
    session.run(&["dead", "list", "--limit", "1", "--json"]);
    session.run(&["dead", "list", "--kind", "mail"]);
    session.run(&["dead", "groups"]);
    session.run(&["dead", "groups", "--json"]);
    session.run(&["dead", "redrive", "--dry-run"]);
    session.run(&["dead", "redrive", "--dry-run", "--reason", "body_lost", "--json"]);
    session.run(&["dead", "redrive", "--canary", "1"]);
    session.target.set_script(|_| Reply::status(200));
    session.run(&["dead", "redrive", "--target", &missing, "--rate", "1000"]);
    session.target.set_script(|_| Reply::status(404));
    session.run_unrecorded(&["task", "create", &missing, "--wait"], 6);
    session.run(&["dead", "export"]);
    session.run(&["dead", "export", "--output", "dead.ndjson"]);
    session.run(&["dead", "export", "--output", "dead.ndjson"]);
    session.run(&["dead", "discard", "--dry-run"]);
    session.run(&["dead", "discard"]);
    session.run(&["dead", "discard", "--yes", "--json"]);
    session.run(&["dead", "list"]);
    session.compare_with("dead");
    let exported = std::fs::read_to_string(session.folder.path().join("dead.ndjson")).unwrap();
    let letter: Value = serde_json::from_str(&exported).unwrap();
    assert_eq!(letter["state"], "dead");
}

#[tokio::test(flavor = "multi_thread")]
async fn operations() {
    let mut session = Session::start().await;
    let missing = session.target.url("/missing");
    session.run(&["operation", "list"]);
    for _ in 0..2 {
        session.run_unrecorded(&["task", "create", &missing, "--wait"], 6);
    }
    let slow = session.run_unrecorded(&["dead", "discard", "--yes", "--rate", "0.01", "--detach"], 0);
    let client = session.service.client();
    eventually("the first dead letter is discarded", async || {
        (client.get(&format!("/v1/operations/{slow}")).await.json(200)["done"] == 1).then_some(())
    })
    .await;
    session.run(&["operation", "cancel", &slow, "--json"]);
    session.run(&["operation", "watch", &slow]);
    session.run(&["operation", "cancel", &slow]);
    let all = session.run_unrecorded(&["dead", "redrive", "--detach", "--reason", "not_retryable"], 0);
    session.run(&["operation", "watch", &all]);
    session.run(&["operation", "get", &all]);
    session.run(&["operation", "get", &all, "--json"]);
    session.run(&["operation", "list", "--json"]);
    let ok = session.target.url("/ok");
    for key in ["order-7", "order-8"] {
        session.run_unrecorded(&["task", "create", &ok, "--delay", "1h", "--key", key, "-d", key], 0);
    }
    session.run(&["operation", "start", "cancel", "--state", "pending", "--dry-run"]);
    session.run(&["operation", "start", "cancel", "--state", "pending"]);
    session.run(&["operation", "start", "cancel", "--text", "ORDER-7", "--yes"]);
    session.run(&["operation", "start", "run-now", "--target", &ok, "--canary", "1", "--rate", "100"]);
    session.run(&["operation", "start", "discard", "--kind", "mail"]);
    session.run(&["operation", "start", "burn"]);
    session.run(&["task", "list", "--target", &ok]);
    session.compare_with("operation");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies() {
    let mut session = Session::start().await.with_exact_durations();
    let quick = session.file("quick.json", QUICK);
    let quick = quick.to_str().unwrap();
    session.run(&["policy", "list"]);
    session.run(&["policy", "put", "quick", quick]);
    session.run_with_input(
        &["policy", "put", "quick", "-", "--json"],
        r#"{"maxAttempts": 3, "totalBudgetMs": null}"#,
    );
    session.run_with_input(
        &["policy", "put", "waits", "-"],
        r#"{"backoffType": "schedule", "delaysMs": [5000, 60000]}"#,
    );
    session.run(&["policy", "get", "quick"]);
    session.run(&["policy", "get", "default", "--json"]);
    session.run(&["policy", "list"]);
    session.run(&["policy", "list", "--json"]);
    session.run(&["policy", "get", "none"]);
    session.run_with_input(&["policy", "put", "wrong", "-"], r#"{"maxAttempts": 0}"#);
    session.run_with_input(&["policy", "put", "wrong", "-"], r#"{"maxRetries": 5}"#);
    session.run(&["policy", "preview", "upload"]);
    session.run(&["policy", "preview", "once", "--json"]);
    session.compare_with("policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn queues() {
    let mut session = Session::start().await.with_exact_durations();
    let ok = session.target.url("/ok");
    session.run(&["queue", "list"]);
    session.run_unrecorded(&["task", "create", &ok, "--delay", "1h"], 0);
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
    session.compare_with("queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys() {
    let mut session = Session::start().await;
    session.run(&["key", "list"]);
    session.run(&["key", "create", "--name", "ci", "--store", "sqlite:other.db"]);
    session.run(&["key", "create", "--name", "ci", "--scope", "write"]);
    session.run(&["key", "create", "--name", "ops", "--scope", "admin", "--store", "sqlite:other.db"]);
    // The list is ordered by ids, which are random. With one key, its order is certain.
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
    let listed = session.run_unrecorded(&["key", "list", "--store", "sqlite:other.db", "--json"], 0);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ops = listed.iter().find(|key| key["name"] == "ops").unwrap()["keyId"].as_str().unwrap();
    session.run(&["key", "revoke", ops, "--store", "sqlite:other.db"]);
    let bodies = ["key", "create", "--name", "eyes", "--scope", "read", "--bodies", "--json"];
    session.run(&[&bodies[..], &["--store", "sqlite:other.db"]].concat());
    let elsewhere = tempfile::tempdir().unwrap();
    session.run_with(&["key", "list"], |command| {
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
    session.run_with(&["task", "list"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.run_with(&["queue", "pause", "*"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.run(&["key", "revoke", eyes, "--api-key-file", file]);
    session.run(&["key", "revoke", eyes, "--api-key-file", file]);
    session.run_with(&["task", "list"], |command| {
        command.env("REDRIVE_API_KEY", reader);
    });
    session.compare_with("key");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_and_nodes() {
    let mut session = Session::start().await;
    let (ok, missing) = (session.target.url("/ok"), session.target.url("/missing"));
    session.run(&["top", "--once"]);
    session.run_unrecorded(&["task", "create", &ok, "--wait"], 0);
    session.run_unrecorded(&["task", "create", &missing, "--wait"], 6);
    session.run_unrecorded(&["task", "create", &ok, "--delay", "1h"], 0);
    session.run_unrecorded(&["queue", "pause", "default"], 0);
    session.run(&["top", "--once"]);
    session.run(&["top", "--once", "--json"]);
    session.run(&["node", "list"]);
    session.run(&["node", "list", "--json"]);
    // A key of one tenant does not show data of all tenants, such as rates and origins.
    let admin = session.run_unrecorded(&["key", "create", "--name", "ops", "--scope", "admin"], 0);
    let file = session.file("admin", &admin);
    let create = ["key", "create", "--name", "shop", "--tenant", "shop", "--scope", "read", "--api-key-file"];
    let shop = session.run_unrecorded(&[&create[..], &[file.to_str().unwrap()]].concat(), 0);
    for command in [&["top", "--once"][..], &["node", "list"]] {
        session.run_with(command, |command| {
            command.env("REDRIVE_API_KEY", &shop);
        });
    }
    session.compare_with("top");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_the_service_too() {
    let mut session = Session::start().await;
    let store = ["--store", "sqlite:none.db"];
    session.run(&["doctor", store[0], store[1]]);
    session.run(&["doctor", store[0], store[1], "--json"]);
    session.run_unrecorded(&["key", "create", "--name", "ops", "--scope", "admin"], 0);
    session.run(&["doctor", store[0], store[1]]);
    session.compare_with("doctor");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output =
        session.run_unrecorded(&["doctor", store[0], store[1], "--url", &format!("http://{closed}")], 1);
    assert!(output.starts_with("critical service: the service does not answer\n"), "{output}");
}
