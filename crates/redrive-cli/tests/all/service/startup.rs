//! The start of a service: API keys, targets that tasks may call, and which of several settings wins.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually, redrive};

/// The standard error of a service that ended with `code`.
fn stderr(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn create_admin_key(folder: &Path) -> String {
    let output = redrive(folder).args(["key", "create", "--name", "x", "--scope", "admin"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_service_on_a_public_address_needs_an_api_key_to_start_and_for_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::bare(folder.path()).flags(&["--listen", "0.0.0.0:0"]);
    let error = stderr(&launch.fail_to_start(), 1);
    assert!(error.contains("redrive key create"), "{error}");

    let key = create_admin_key(folder.path());
    let service = launch.start();
    let client = service.client();
    let task = json!({"target": "https://example.com/", "delayMs": 60_000});
    let problem = client.post("/v1/tasks", &task).await.json(401);
    assert_eq!(problem["code"], "unauthenticated");
    client.with_key("rdk_0123456789abcdef_0123456789").get("/v1/tasks").await.json(401);
    client.with_key(&key).post("/v1/tasks", &task).await.json(201);
    client.get("/healthz").await.json(200);
    assert!(!any_file_contains(folder.path(), key.as_bytes()), "a file contains the key in plain text");
}

#[tokio::test]
async fn private_targets_are_refused_unless_allowed_and_not_denied() {
    let folder = tempfile::tempdir().unwrap();
    let key = create_admin_key(folder.path());
    let target = Target::start(|_| Reply::status(200)).await;
    for (flags, delivered) in [
        (&[][..], false),
        (&["--allow-target", "127.0.0.0/8"][..], true),
        (&["--allow-target", "127.0.0.0/8", "--deny-target", "127.0.0.1/32"], false),
    ] {
        let launch = Launch::bare(folder.path()).flags(&["--listen", "0.0.0.0:0"]).flags(flags);
        let service = launch.start();
        let client = service.client().with_key(&key);
        let before = target.connections();
        let task = try_target(&client, &target).await;
        if delivered {
            assert_eq!((&task["state"], target.count()), (&json!("succeeded"), 1), "{flags:?}: {task}");
        } else {
            assert_eq!(
                (&task["state"], &task["reason"], &task["attemptNumber"]),
                (&json!("dead"), &json!("target_refused"), &json!(1)),
                "{flags:?}: {task}"
            );
            assert_eq!(target.connections(), before, "{flags:?}: the service connected to the target");
        }
    }
}

#[tokio::test]
async fn the_first_key_forbids_loopback_targets_and_doctor_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let loopback_finding = |key: Option<&str>| {
        let mut command = redrive(folder.path());
        command.args(["doctor", "--url", &format!("http://{}", service.address), "--json"]);
        command.envs(key.map(|key| ("REDRIVE_API_KEY", key)));
        let output = command.output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let findings = found["findings"].as_array().unwrap().clone();
        let about_loopback =
            findings.into_iter().find(|finding| finding["what"].as_str().unwrap().contains("loopback"));
        about_loopback.unwrap_or_else(|| panic!("{found}"))
    };
    assert_eq!(try_target(&client, &target).await["state"], "succeeded");
    let open = loopback_finding(None);
    assert_eq!(open["severity"], "note", "{open}");
    assert!(open["evidence"].as_str().unwrap().contains("no API keys"), "{open}");
    assert!(service.log().contains("tasks may call services on this machine"), "{}", service.log());

    let created = client.post("/v1/keys", &json!({"name": "ops", "scope": "admin"})).await.json(201);
    let key = created["key"].as_str().unwrap();
    let refused = try_target(&client.with_key(key), &target).await;
    assert_eq!((&refused["reason"], target.count()), (&json!("target_refused"), 1), "{refused}");
    let closed = loopback_finding(Some(key));
    assert_eq!(closed["severity"], "ok", "{closed}");
    eventually("the log reports the change", async || {
        service.log().contains("tasks may not call services on this machine").then_some(())
    })
    .await;
}

/// Delivers a task to the target, and returns the task when it has ended.
async fn try_target(client: &Client, target: &Target) -> Value {
    client.wait_for_end(&client.create(&json!({"target": target.url("/")})).await).await
}

#[tokio::test]
async fn an_option_wins_over_its_variable_and_the_variable_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let exists = |name: &str| folder.path().join(name).exists();
    let file = "listen = '127.0.0.1:1'\nstore = 'sqlite:file.db'\nbodies = 'file:file-bodies'\n";
    std::fs::write(folder.path().join("redrive.toml"), file).unwrap();
    let launch = Launch::bare(folder.path())
        .flags(&["--config", "redrive.toml", "--listen", "127.0.0.1:0"])
        .variable("REDRIVE_LISTEN", "127.0.0.1:2")
        .variable("REDRIVE_STORE", "sqlite:variable.db")
        .variable("REDRIVE_SECRET_KEY_FILE", "variable.key");

    let service = launch.start();
    assert!(service.address.port() > 2, "{}", service.address);
    assert!(exists("variable.db") && !exists("file.db"));
    assert!(exists("file-bodies") && exists("variable.key"));
    assert!(!exists("redrive.db") && !exists("bodies") && !exists("redrive.key"));
    drop(service);

    let service = launch.clone().flags(&["--store", "sqlite:flag.db"]).start();
    assert!(exists("flag.db") && !exists("file.db"));
    drop(service);
    let launch = Launch::bare(folder.path()).variable("REDRIVE_CONFIG", "none.toml");
    let error = stderr(&launch.fail_to_start(), 2);
    assert!(error.contains("--config") && error.contains("none.toml"), "{error}");
}

#[tokio::test]
async fn a_key_file_on_the_command_line_wins_over_a_key_in_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let key = |letter: &str| format!("{}=", letter.repeat(43));
    let launch = Launch::new(folder.path()).variable("REDRIVE_SECRET_KEY", &key("A"));
    drop(launch.start());
    assert!(!folder.path().join("redrive.key").exists(), "the variable is ignored");
    drop(launch.clone().flags(&["--store", "sqlite:other.db", "--secret-key-file", "flag.key"]).start());
    assert!(folder.path().join("flag.key").exists(), "the option is ignored");
    let both = launch.flags(&["--secret-key-file", "flag.key", "--secret-key", &key("B")]);
    let error = stderr(&both.fail_to_start(), 2);
    assert!(error.contains("--secret-key or --secret-key-file"), "{error}");
}

/// Runs the example command that `serve` prints, in a shell.
fn run_example(service: &Service, folder: &Path, key: &str) -> Value {
    let line = service.next_line();
    let example = line.strip_prefix("try: ").unwrap_or_else(|| panic!("{line}"));
    let mut shell = Command::new("sh");
    let output =
        shell.args(["-c", example]).current_dir(folder).env("REDRIVE_API_KEY", key).output().unwrap();
    assert!(output.status.success(), "{example}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{example}: {output:?}"))
}

#[tokio::test]
async fn the_example_that_serve_prints_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let task = run_example(&service, folder.path(), "");
    let ended =
        service.client().wait_for_end(task["taskId"].as_str().unwrap_or_else(|| panic!("{task}"))).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    drop(service);

    // With API keys, tasks may not call the service itself unless --allow-target permits it.
    let key = create_admin_key(folder.path());
    let launch = Launch::bare(folder.path()).flags(&["--listen", "0.0.0.0:0"]);
    let service = launch.start();
    let task = run_example(&service, folder.path(), &key);
    assert_eq!(
        (&task["state"], &task["target"]),
        (&json!("pending"), &json!("https://example.com/")),
        "{task}"
    );
    let client = service.client().with_key(&key);
    client.post(&format!("/v1/tasks/{}/cancel", task["taskId"].as_str().unwrap()), &json!({})).await;
    drop(service);

    let service = launch.flags(&["--allow-target", "127.0.0.0/8"]).start();
    let task = run_example(&service, folder.path(), &key);
    let client = service.client().with_key(&key);
    let ended = client.wait_for_end(task["taskId"].as_str().unwrap_or_else(|| panic!("{task}"))).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
}

#[tokio::test]
async fn a_second_process_on_the_same_file_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path());
    let service = launch.start();
    let error = stderr(&launch.fail_to_start(), 1);
    assert!(error.contains("redrive.db"), "{error}");
    println!("{error}");
    service.client().get("/readyz").await.json(200);
    drop(service);
    launch.start();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).with_soft_file_limit(1024).start();
    let (soft, hard) = service.open_files();
    assert_eq!(soft, hard, "the soft limit was not raised");
    let log = service.log();
    assert!(hard == "1024" || log.contains("raised the limit of open files"), "{log}");
    assert!(log.contains(&hard), "{log}");
}

#[tokio::test]
async fn health_checks_answer_although_idle_connections_exceed_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).flags(&["--connections", "20"]).start();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], service.address.port()));
    let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let client = service.client();
    client.get("/healthz").await.json(200);
    client.get("/readyz").await.json(200);
    assert_eq!(client.get("/v1/tasks").await.json(503)["code"], "unavailable");
    drop(idle);
}

/// Whether a file under `folder` contains these bytes.
pub(crate) fn any_file_contains(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return any_file_contains(&path, bytes);
        }
        std::fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes)
    })
}
