//! Tests of `redrive simulate`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.arg("simulate").args(arguments).current_dir(folder).env("COLUMNS", "100");
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the output is text")
}

fn json(arguments: &[&str]) -> Value {
    let output = simulate(arguments, &std::env::temp_dir());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn contention_reports_writes_and_time_for_each_jitter() {
    let report = json(&["contention", "--clients", "20", "--trials", "10", "--json"]);
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["jitter"].as_str()).collect();
    assert_eq!(names, ["none", "exponential", "equal", "full", "decorrelated"]);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().expect("a figure");
        assert!(figure("meanWriteCalls") >= 20.0 && figure("meanCompletionMs") > 30.0, "{row}");
    }
    assert_eq!(report, json(&["contention", "--clients", "20", "--trials", "10", "--json"]));
    assert_ne!(report, json(&["contention", "--clients", "20", "--trials", "10", "--json", "--seed", "2"]));
}

#[test]
fn contention_without_clients_runs_with_10_to_190() {
    let report = json(&["contention", "--trials", "1", "--json"]);
    let rows = report["rows"].as_array().expect("rows");
    let clients: Vec<u64> = rows.iter().step_by(5).filter_map(|row| row["clients"].as_u64()).collect();
    assert_eq!(clients, (1..=19).map(|ten| ten * 10).collect::<Vec<u64>>());
}

#[test]
fn an_outage_is_printed_as_text_svg_and_csv() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments =
        ["outage", "--tasks", "200", "--policy", "full,exponential", "--svg", "o.svg", "--csv", "o.csv"];
    let output = simulate(&arguments, folder.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(printed.contains("the target is back") && !printed.contains('\u{1b}'), "{printed}");
    assert!(
        printed.lines().any(|line| line.starts_with("full ")) && !printed.contains("quadratic"),
        "{printed}"
    );
    let written = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    assert!(written("o.svg").starts_with("<svg ") && written("o.csv").starts_with("name,startMs,calls\n"));
}

#[test]
fn a_policy_from_a_file_is_simulated_and_options_apply_to_every_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = r#"{"maxAttempts": 8, "jitterType": "full"}"#;
    std::fs::write(folder.path().join("mine.json"), policy).expect("the file is written");
    let arguments = ["outage", "--tasks", "100", "--policy", "full", "--file", "mine.json", "--json"];
    let output = simulate(&[&arguments[..], &["--budget", "10s"]].concat(), folder.path());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), rows[1]["policy"].as_str()), (2, Some("mine.json")));
    for row in rows {
        assert!(row["lostToBudget"].as_u64() > Some(50) && row["succeeded"] == 0, "{row}");
    }
}

#[test]
fn errors_name_the_invalid_value() {
    for (arguments, code, problem) in [
        (&["outage", "--policy", "hourly"][..], 2, "--policy: unknown policy \"hourly\": choose from none"),
        (&["outage", "--file", "nowhere.json"], 2, "cannot read the file nowhere.json"),
        (&["contention", "--clients", "0"], 2, "--clients"),
        (&["contention", "--base", "50ms", "--cap", "60ms"], 2, "must not be above maxDelayMs"),
    ] {
        let output = simulate(arguments, &std::env::temp_dir());
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(problem), "{arguments:?}: {stderr}");
    }
}
