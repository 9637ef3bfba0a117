//! Who may start it where, what it may call then, and which setting goes before which.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::stage::{Client, Launch, Reply, Service, Target, eventually, redrive};

fn complaint(output: &Output) -> String {
    complaint_with(output, 1)
}

fn complaint_with(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn make_key(folder: &Path) -> String {
    let output = redrive(folder).args(["key", "create", "--name", "x", "--scope", "admin"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_service_that_others_can_reach_needs_a_key_to_start_and_to_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::bare(folder.path()).flags(&["--listen", "0.0.0.0:0"]);
    let error = complaint(&launch.refused());
    assert!(error.contains("redrive key create"), "{error}");

    let key = make_key(folder.path());
    let service = launch.start();
    let client = service.client();
    let task = json!({"targetUrl": "https://example.com/", "delayMs": 60_000});
    let problem = client.post("/retry-tasks", &task).await.json(401);
    assert_eq!(problem["code"], "UNAUTHENTICATED");
    client.with_key("rdk_0123456789abcdef_0123456789").get("/retry-tasks").await.json(401);
    client.with_key(&key).post("/retry-tasks", &task).await.json(201);
    client.get("/healthz").await.json(200);
    assert!(!scan(folder.path(), key.as_bytes()), "the key is in a file as it is");
}

#[tokio::test]
async fn private_targets_are_refused_unless_allowed_and_not_denied() {
    let folder = tempfile::tempdir().unwrap();
    let key = make_key(folder.path());
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
            assert_eq!((&task["status"], target.count()), (&json!("SUCCEEDED"), 1), "{flags:?}: {task}");
        } else {
            assert_eq!(
                (&task["status"], &task["reason"], &task["attemptNumber"]),
                (&json!("EXHAUSTED"), &json!("TARGET_REFUSED"), &json!(1)),
                "{flags:?}: {task}"
            );
            assert_eq!(target.connections(), before, "{flags:?}: dialled all the same");
        }
    }
}

#[tokio::test]
async fn a_key_closes_loopback_while_the_service_runs_and_doctor_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let look = |key: Option<&str>| {
        let mut command = redrive(folder.path());
        command.args(["doctor", "--url", &format!("http://{}", service.address), "--json"]);
        command.envs(key.map(|key| ("REDRIVE_API_KEY", key)));
        let output = command.output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let findings = found["findings"].as_array().unwrap().clone();
        let of_loopback = findings.into_iter().find(|one| one["what"].as_str().unwrap().contains("loopback"));
        of_loopback.unwrap_or_else(|| panic!("{found}"))
    };
    assert_eq!(try_target(&client, &target).await["status"], "SUCCEEDED");
    let open = look(None);
    assert_eq!(open["gravity"], "note", "{open}");
    assert!(open["evidence"].as_str().unwrap().contains("no API keys"), "{open}");
    assert!(service.log().contains("tasks may call services on this machine"), "{}", service.log());

    let made = client.post("/keys", &json!({"name": "ops", "scope": "admin"})).await.json(201);
    let key = made["key"].as_str().unwrap();
    let refused = try_target(&client.with_key(key), &target).await;
    assert_eq!((&refused["reason"], target.count()), (&json!("TARGET_REFUSED"), 1), "{refused}");
    let closed = look(Some(key));
    assert_eq!(closed["gravity"], "fine", "{closed}");
    eventually("the log says so", async || {
        service.log().contains("tasks may not call services on this machine").then_some(())
    })
    .await;
}

async fn try_target(client: &Client, target: &Target) -> Value {
    client.ended(&client.create(&json!({"targetUrl": target.url("/")})).await).await
}

#[tokio::test]
async fn a_flag_goes_before_its_variable_and_that_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let there = |name: &str| folder.path().join(name).exists();
    let file = "listen = '127.0.0.1:1'\nstore = 'sqlite:file.db'\nbodies = 'file:file-bodies'\n";
    std::fs::write(folder.path().join("redrive.toml"), file).unwrap();
    let launch = Launch::bare(folder.path())
        .flags(&["--config", "redrive.toml", "--listen", "127.0.0.1:0"])
        .variable("REDRIVE_LISTEN", "127.0.0.1:2")
        .variable("REDRIVE_STORE", "sqlite:variable.db")
        .variable("REDRIVE_SECRET_KEY_FILE", "variable.key");

    let service = launch.start();
    assert!(service.address.port() > 2, "{}", service.address);
    assert!(there("variable.db") && !there("file.db"));
    assert!(there("file-bodies") && there("variable.key"));
    assert!(!there("redrive.db") && !there("bodies") && !there("redrive.key"));
    drop(service);

    let service = launch.clone().flags(&["--store", "sqlite:flag.db"]).start();
    assert!(there("flag.db") && !there("file.db"));
    drop(service);
    let launch = Launch::bare(folder.path()).variable("REDRIVE_CONFIG", "none.toml");
    let error = complaint_with(&launch.refused(), 2);
    assert!(error.contains("--config") && error.contains("none.toml"), "{error}");
}

#[tokio::test]
async fn a_key_file_on_the_command_line_goes_before_a_key_in_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let key = |letter: &str| format!("{}=", letter.repeat(43));
    let launch = Launch::new(folder.path()).variable("REDRIVE_SECRET_KEY", &key("A"));
    drop(launch.start());
    assert!(!folder.path().join("redrive.key").exists(), "the variable counts");
    drop(launch.clone().flags(&["--store", "sqlite:other.db", "--secret-key-file", "flag.key"]).start());
    assert!(folder.path().join("flag.key").exists(), "the option counts");
    let both = launch.flags(&["--secret-key-file", "flag.key", "--secret-key", &key("B")]);
    let error = complaint_with(&both.refused(), 2);
    assert!(error.contains("--secret-key or --secret-key-file"), "{error}");
}

/// Runs the command that `serve` prints as an example, as a person would paste it.
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
    let ended = service.client().ended(task["taskId"].as_str().unwrap_or_else(|| panic!("{task}"))).await;
    assert_eq!(ended["status"], "SUCCEEDED", "{ended}");
    drop(service);

    // With keys it may not call itself, unless it is told so.
    let key = make_key(folder.path());
    let launch = Launch::bare(folder.path()).flags(&["--listen", "0.0.0.0:0"]);
    let service = launch.start();
    let task = run_example(&service, folder.path(), &key);
    assert_eq!(
        (&task["status"], &task["targetUrl"]),
        (&json!("PENDING"), &json!("https://example.com/")),
        "{task}"
    );
    let client = service.client().with_key(&key);
    client.delete(&format!("/retry-tasks/{}", task["taskId"].as_str().unwrap())).await;
    drop(service);

    let service = launch.flags(&["--allow-target", "127.0.0.0/8"]).start();
    let task = run_example(&service, folder.path(), &key);
    let client = service.client().with_key(&key);
    let ended = client.ended(task["taskId"].as_str().unwrap_or_else(|| panic!("{task}"))).await;
    assert_eq!(ended["status"], "SUCCEEDED", "{ended}");
}

#[tokio::test]
async fn a_second_process_on_the_same_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path());
    let service = launch.start();
    let error = complaint(&launch.refused());
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
    let service = Launch::new(folder.path()).soft_files(1024).start();
    let (soft, hard) = service.open_files();
    assert_eq!(soft, hard, "the shell may set more than 1024: {hard}");
    let log = service.log();
    assert!(hard == "1024" || log.contains("limit of open files raised"), "{log}");
    assert!(log.contains(&hard), "{log}");
}

#[tokio::test]
async fn silent_sockets_beyond_the_limit_do_not_keep_health_from_answering() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).flags(&["--connections", "20"]).start();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], service.address.port()));
    let silent: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let client = service.client();
    client.get("/healthz").await.json(200);
    client.get("/readyz").await.json(200);
    assert_eq!(client.get("/retry-tasks").await.json(503)["code"], "UNAVAILABLE");
    drop(silent);
}

/// Whether any file under `folder` has these bytes in it.
pub(crate) fn scan(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return scan(&path, bytes);
        }
        std::fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes)
    })
}
