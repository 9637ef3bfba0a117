//! Secrets do not appear in help texts, errors, logs of any level or the arguments of a process.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use regex::Regex;
use serde_json::json;

use crate::fixtures::{Launch, Reply, Target, eventually, redrive};

/// The password, key or token of every test.
const SECRET: &str = "MARKER5ECRET";

/// The standard output and error of a command.
fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn help(folder: &Path, path: &[String], variables: &BTreeSet<String>) -> String {
    let address = format!("postgres://me:{SECRET}@127.0.0.1:1/db");
    let mut command = redrive(folder);
    command.args(path).arg("--help").envs(variables.iter().map(|name| (name, &address)));
    printed(&command.output().unwrap())
}

/// The commands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let after = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = after.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

/// Every command, found by following the help texts, and every environment variable that a command reads.
fn commands_and_variables(folder: &Path) -> (Vec<Vec<String>>, BTreeSet<String>) {
    let variable = Regex::new(r"\[env: ([A-Z0-9_]+)").unwrap();
    let (mut commands, mut variables) = (vec![Vec::new()], BTreeSet::new());
    let mut next = 0;
    while next < commands.len() {
        let path = commands[next].clone();
        let help = help(folder, &path, &BTreeSet::new());
        variables.extend(variable.captures_iter(&help).map(|found| found[1].to_owned()));
        commands.extend(subcommands(&help).into_iter().map(|name| [path.clone(), vec![name]].concat()));
        next += 1;
    }
    (commands, variables)
}

#[test]
fn no_help_text_shows_the_value_of_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let (commands, variables) = commands_and_variables(folder.path());
    assert!(commands.len() > 30 && variables.len() > 10, "{commands:?} {variables:?}");
    assert!(variables.contains("REDRIVE_STORE"), "{variables:?}");
    for path in commands {
        let help = help(folder.path(), &path, &variables);
        assert!(help.contains("Usage:"), "{path:?}: {help}");
        assert!(!help.contains(SECRET), "the help of {path:?} shows the secret: {help}");
    }
}

#[test]
fn no_error_shows_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let addresses = [
        format!("postgres://me:{SECRET}@127.0.0.1:1/db"),
        format!("postgres://127.0.0.1:1/db?user=me&password={SECRET}"),
        format!("postgres://me:{SECRET}@[bad/db"),
        format!("postgres://me:{SECRET}/x@127.0.0.1:1/db"),
        format!("redis://me:{SECRET}@127.0.0.1:1"),
        format!("redis://me:{SECRET}@host:port"),
        format!("redis-cluster://me:{SECRET}@127.0.0.1:1"),
        format!("mysql://me:{SECRET}@host/db"),
        format!("me:{SECRET}@host"),
    ];
    let commands: [&[&str]; 4] =
        [&["doctor"], &["migrate"], &["key", "list"], &["serve", "--listen", "127.0.0.1:0"]];
    for address in &addresses {
        for arguments in commands {
            let mut command = redrive(folder.path());
            command.args(arguments).env("REDRIVE_STORE", address).env("RUST_LOG", "trace");
            let output = command.output().unwrap();
            let text = printed(&output);
            assert!(!output.status.success(), "{arguments:?} on {address} succeeds");
            assert!(!text.contains(SECRET), "{arguments:?} on {address} shows the secret: {text}");
        }
    }
    let file = folder.path().join("redrive.toml");
    for line in [format!("store = \"postgres://me:{SECRET}@host"), format!("secret-key = {SECRET}")] {
        std::fs::write(&file, format!("lease = '9s'\n{line}\n")).unwrap();
        let output = redrive(folder.path()).args(["serve", "--config", "redrive.toml"]).output().unwrap();
        let text = printed(&output);
        assert!(text.contains("line 2") && !text.contains(SECRET), "{line}: {text}");
    }
    let (key, url) = (format!("rdk_0123456789abcdef_{SECRET}"), format!("http://me:{SECRET}@127.0.0.1:1"));
    let odd = format!("htp:me:{SECRET}@host");
    for (name, value, arguments) in [
        ("REDRIVE_URL", url.as_str(), &["task", "list"][..]),
        ("REDRIVE_URL", odd.as_str(), &["task", "list"]),
        ("REDRIVE_API_KEY", key.as_str(), &["task", "list", "--url", "http://127.0.0.1:1"]),
        ("REDRIVE_LISTEN", url.as_str(), &["serve"]),
        ("REDRIVE_BODIES", url.as_str(), &["serve", "--listen", "127.0.0.1:0"]),
        ("REDRIVE_SECRET_KEY", SECRET, &["serve", "--listen", "127.0.0.1:0"]),
    ] {
        let mut command = redrive(folder.path());
        command.args(arguments).env(name, value).env("RUST_LOG", "trace");
        let output = command.output().unwrap();
        let text = printed(&output);
        assert!(!output.status.success() && !text.is_empty(), "{name} {arguments:?}");
        assert!(!text.contains(SECRET), "{name} for {arguments:?} shows the secret: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_level_trace_arguments_and_files_contain_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let made = redrive(folder.path()).args(["key", "create", "--name", "ops", "--scope", "admin"]).output();
    let key = String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned();
    let encryption_key = format!("{SECRET}{}=", "A".repeat(43 - SECRET.len()));
    let service = Launch::new(folder.path())
        .flags(&["--allow-target", "127.0.0.0/8"])
        .variable("REDRIVE_SECRET_KEY", &encryption_key)
        .variable("RUST_LOG", "trace")
        .start();
    let target = Target::start(|_| Reply::Answer(200, "", "thanks".to_owned())).await;
    let client = service.client().with_key(&key);
    let headers =
        json!({"Authorization": format!("Bearer {SECRET}"), "X-Api-Key": SECRET, "X-Plain": "seen"});
    let task = json!({"target": target.url("/hook"), "headers": headers, "body": "order 7"});
    let id = client.post("/v1/tasks", &task).await.json(201)["taskId"].as_str().unwrap().to_owned();
    let path = format!("/v1/tasks/{id}");
    eventually("the task is delivered", async || {
        let task = client.get(&path).await.json(200);
        (task["state"] == "succeeded").then_some(())
    })
    .await;
    let call = target.calls().remove(0);
    assert_eq!(call.header("authorization"), format!("Bearer {SECRET}"), "the header is sent unchanged");
    assert_eq!((call.header("x-api-key"), call.header("x-plain")), (SECRET, "seen"));
    let log = service.log();
    assert!(log.contains("TRACE"), "the log has no lines of level trace");
    let secret = key.rsplit('_').next().unwrap();
    for hidden in [SECRET, secret, &encryption_key] {
        let line = log.lines().find(|line| line.contains(hidden));
        assert_eq!(line, None, "the log shows a secret");
    }
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", service.id())).unwrap();
    assert!(!arguments.contains(SECRET) && !arguments.contains(secret), "{arguments}");
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
            assert!(!found, "{} contains a credential in plain text", path.display());
        }
    }
}
