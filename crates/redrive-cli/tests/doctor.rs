//! `redrive migrate` and `redrive doctor` as a user runs them.

use std::path::Path;
use std::process::{Command, Output};

use redrive_testkit::servers::Postgres;
use serde_json::Value;

fn redrive(verb: &str, store: &str, more: &[&str]) -> Output {
    let mut redrive = Command::new(env!("CARGO_BIN_EXE_redrive"));
    // By the environment, as deployments do; the flag is the same setting.
    redrive.arg(verb).args(more).env("REDRIVE_STORE", store);
    redrive.output().expect("the command starts")
}

/// What it prints, if it ends like this.
fn printed(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

fn complaint(output: &Output, code: i32) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("jobs.db").display())
}

#[test]
fn migrate_says_in_a_line_at_which_schema_the_tables_are() {
    let server = Postgres::start();
    let address = server.address();
    let first = printed(&redrive("migrate", &address, &[]), 0);
    let schema = server.run("SELECT max(version) FROM redrive.schema");
    assert_eq!(first, format!("{address} is at schema {schema}\n"));
    assert_eq!(printed(&redrive("migrate", &address, &[]), 0), first, "a second time is no different");

    let secret = address.replace("redrive@", "redrive:hunter2@");
    let named = printed(&redrive("migrate", "sqlite:elsewhere", &["--store", &secret]), 0);
    assert!(named.starts_with("postgres://redrive:***@"), "{named}");

    server.run("INSERT INTO redrive.schema (version, compatible_since) VALUES (99, 99)");
    let refused = complaint(&redrive("migrate", &address, &[]), 1);
    assert!(refused.contains("upgrade redrive"), "{refused}");
}

#[test]
fn migrate_makes_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = file(folder.path());
    let line = printed(&redrive("migrate", &address, &[]), 0);
    assert!(line.starts_with(&format!("{address} is at schema ")) && line.lines().count() == 1, "{line}");
    assert!(folder.path().join("jobs.db").exists());
    assert!(complaint(&redrive("migrate", "sqlite::memory:", &[]), 2).contains("name a file"));
}

#[test]
fn doctor_ends_well_unless_something_is_grave() {
    let server = Postgres::start();
    let address = server.address();
    let text = printed(&redrive("doctor", &address, &[]), 0);
    assert!(text.starts_with("warning  "), "the gravest come first: {text}");
    assert!(text.contains("schema: the tables of redrive are missing\n"), "{text}");
    assert!(text.contains("      -> run `redrive migrate`"), "{text}");

    printed(&redrive("migrate", &address, &[]), 0);
    let healthy = printed(&redrive("doctor", &address, &[]), 0);
    assert!(healthy.contains(&format!("{address}: 0 grave, ")), "{healthy}");

    server.run("DROP INDEX redrive.jobs_due");
    let ill = printed(&redrive("doctor", &address, &[]), 1);
    assert!(ill.starts_with("grave    indexes: the index redrive.jobs_due is missing"), "{ill}");
    assert!(ill.contains("      -> CREATE INDEX CONCURRENTLY jobs_due ON redrive.jobs"), "{ill}");
    assert!(ill.contains(": 1 grave, "), "{ill}");
}

#[test]
fn doctor_tells_programs_the_same() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    printed(&redrive("migrate", &server.address(), &[]), 0);
    let json = printed(&redrive("doctor", &server.address(), &["--json"]), 1);
    let json: Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!((&json["store"], &json["gravity"]), (&server.address().into(), &"grave".into()), "{json}");
    let findings = json["findings"].as_array().expect("a list");
    let first = &findings[0];
    assert_eq!((&first["gravity"], &first["check"]), (&"grave".into(), &"durability".into()), "{json}");
    assert_eq!(first["evidence"], "fsync = off, from: configuration file");
    assert!(first["remedy"].as_str().is_some_and(|remedy| remedy.contains("fsync = on")), "{first}");
    let last = &findings[findings.len() - 1];
    assert_eq!((&last["gravity"], &last["remedy"]), (&"fine".into(), &Value::Null), "{json}");
}

#[test]
fn doctor_looks_at_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = file(folder.path());
    let missing = printed(&redrive("doctor", &address, &[]), 0);
    assert!(missing.contains("there is no file yet"), "{missing}");
    printed(&redrive("migrate", &address, &[]), 0);
    let text = printed(&redrive("doctor", &address, &[]), 0);
    assert!(text.contains(": 0 grave, 0 warnings, 0 notes, 3 fine\n"), "{text}");

    std::fs::write(folder.path().join("jobs.db"), "no database at all, and long enough for a header")
        .expect("it is spoilt");
    let spoilt = printed(&redrive("doctor", &address, &[]), 1);
    assert!(spoilt.starts_with("grave    content: the file is damaged"), "{spoilt}");
}

#[test]
fn doctor_fails_without_a_word_to_programs_when_it_cannot_look() {
    for (store, code) in
        [("postgres://me:hunter2@127.0.0.1:1/x", 1), ("mongodb://x", 2), ("sqlite::memory:", 2)]
    {
        let error = complaint(&redrive("doctor", store, &["--json"]), code);
        assert!(error.starts_with("error: ") && !error.contains("hunter2"), "{error}");
    }
    let help = printed(&redrive("doctor", "sqlite:x", &["--help"]), 0);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("with 1 when something is or the store cannot be reached"), "{help}");
}
