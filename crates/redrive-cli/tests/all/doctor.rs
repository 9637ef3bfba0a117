//! `redrive migrate` and `redrive doctor` as a user runs them.

use std::path::Path;
use std::process::{Command, Output};

use redrive_testkit::servers::Postgres;
use serde_json::Value;

fn redrive(verb: &str, store: &str, more: &[&str]) -> Output {
    let mut redrive = Command::new(env!("CARGO_BIN_EXE_redrive"));
    // Deployments usually set the variable. The option --store is the same setting.
    redrive.arg(verb).args(more).env("REDRIVE_STORE", store);
    redrive.output().expect("the command starts")
}

/// The standard output of a command that ended with `code`.
fn stdout(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

/// The standard error of a command that ended with `code` and printed nothing to standard output.
fn stderr(output: &Output, code: i32) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn store_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("jobs.db").display())
}

#[test]
fn migrate_prints_the_schema_of_the_tables() {
    let server = Postgres::start();
    let address = server.address();
    let first = stdout(&redrive("migrate", &address, &[]), 0);
    let schema = server.run("SELECT max(version) FROM redrive.schema");
    assert_eq!(first, format!("{address} is at schema {schema}\n"));
    assert_eq!(stdout(&redrive("migrate", &address, &[]), 0), first, "a repeated migration changes nothing");

    let secret = address.replace("redrive@", "redrive:hunter2@");
    let named = stdout(&redrive("migrate", "sqlite:elsewhere", &["--store", &secret]), 0);
    assert!(named.starts_with("postgres://redrive:***@"), "{named}");

    server.run("INSERT INTO redrive.schema (version, compatible_since) VALUES (99, 99)");
    let refused = stderr(&redrive("migrate", &address, &[]), 1);
    assert!(refused.contains("upgrade redrive"), "{refused}");
}

#[test]
fn migrate_creates_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = store_in(folder.path());
    let line = stdout(&redrive("migrate", &address, &[]), 0);
    assert!(line.starts_with(&format!("{address} is at schema ")) && line.lines().count() == 1, "{line}");
    assert!(folder.path().join("jobs.db").exists());
    assert!(stderr(&redrive("migrate", "sqlite::memory:", &[]), 2).contains("use a file"));
}

#[test]
fn doctor_fails_only_if_a_finding_is_critical() {
    let server = Postgres::start();
    let address = server.address();
    let text = stdout(&redrive("doctor", &address, &[]), 0);
    assert!(text.starts_with("warning  "), "the most severe finding is not the first: {text}");
    assert!(text.contains("schema: the tables of redrive are missing\n"), "{text}");
    assert!(text.contains("      -> run `redrive migrate`"), "{text}");

    stdout(&redrive("migrate", &address, &[]), 0);
    let healthy = stdout(&redrive("doctor", &address, &[]), 0);
    assert!(healthy.contains(&format!("{address}: 0 critical, ")), "{healthy}");

    server.run("DROP INDEX redrive.waiting_for_slots");
    let broken = stdout(&redrive("doctor", &address, &[]), 1);
    let missing = "critical indexes: the index redrive.waiting_for_slots is missing";
    assert!(broken.starts_with(missing), "{broken}");
    let remedy = "      -> CREATE INDEX CONCURRENTLY waiting_for_slots ON redrive.waiting";
    assert!(broken.contains(remedy), "{broken}");
    assert!(broken.contains(": 1 critical, "), "{broken}");
}

#[test]
fn doctor_prints_the_findings_as_json() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    stdout(&redrive("migrate", &server.address(), &[]), 0);
    let json = stdout(&redrive("doctor", &server.address(), &["--json"]), 1);
    let json: Value = serde_json::from_str(&json).expect("the output is JSON");
    assert_eq!((&json["store"], &json["severity"]), (&server.address().into(), &"critical".into()), "{json}");
    let findings = json["findings"].as_array().expect("a list");
    let first = &findings[0];
    assert_eq!((&first["severity"], &first["check"]), (&"critical".into(), &"durability".into()), "{json}");
    assert_eq!(first["evidence"], "fsync = off, from: configuration file");
    assert!(first["remedy"].as_str().is_some_and(|remedy| remedy.contains("fsync = on")), "{first}");
    let last = &findings[findings.len() - 1];
    assert_eq!((&last["severity"], &last["remedy"]), (&"ok".into(), &Value::Null), "{json}");
}

#[test]
fn doctor_checks_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = store_in(folder.path());
    let missing = stdout(&redrive("doctor", &address, &[]), 0);
    assert!(missing.contains("there is no file yet"), "{missing}");
    stdout(&redrive("migrate", &address, &[]), 0);
    let text = stdout(&redrive("doctor", &address, &[]), 0);
    assert!(text.contains(": 0 critical, 0 warnings, 0 notes, 3 ok\n"), "{text}");

    std::fs::write(folder.path().join("jobs.db"), "no database at all, and long enough for a header")
        .expect("the file can be overwritten");
    let damaged = stdout(&redrive("doctor", &address, &[]), 1);
    assert!(damaged.starts_with("critical content: the file is damaged"), "{damaged}");
}

#[test]
fn doctor_prints_no_json_if_it_cannot_examine_the_store() {
    for (store, code) in
        [("postgres://me:hunter2@127.0.0.1:1/x", 1), ("mongodb://x", 2), ("sqlite::memory:", 2)]
    {
        let error = stderr(&redrive("doctor", store, &["--json"]), code);
        assert!(error.starts_with("error: ") && !error.contains("hunter2"), "{error}");
    }
    let help = stdout(&redrive("doctor", "sqlite:x", &["--help"]), 0);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("and 1 if one is or the store cannot be reached"), "{help}");
}
