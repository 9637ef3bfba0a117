//! Options: their place on the command line, which of two options wins, and what a duration means.

use std::process::Command;

use serde_json::Value;

use crate::cli::session::{Session, text};
use crate::fixtures::redrive;

/// A command without `REDRIVE_URL` in its environment.
fn command_without_url(session: &Session, arguments: &[&str]) -> Command {
    let mut command = redrive(session.folder.path());
    command.args(arguments);
    command
}

/// Runs a command, which must end with `code`. Returns its standard output and error.
fn output_of(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_options_are_accepted_before_and_after_the_command() {
    let session = Session::start().await;
    let url = session.url();
    let id = session.run_unrecorded(&["task", "create", &session.target.url("/ok"), "--delay", "1h"], 0);
    for arguments in [
        ["--url", &url, "--json", "task", "list"],
        ["--json", "task", "--url", &url, "list"],
        ["task", "list", "--url", &url, "--json"],
        ["--url", &url, "task", "list", "--json"],
    ] {
        let listed = output_of(&mut command_without_url(&session, &arguments), 0);
        let task: Value = serde_json::from_str(&listed).unwrap_or_else(|_| panic!("{arguments:?}: {listed}"));
        assert_eq!(task["taskId"], id, "{arguments:?}");
    }
    // An option before the command also wins over the environment.
    let mut command = command_without_url(&session, &["--url", &url, "task", "list"]);
    output_of(command.env("REDRIVE_URL", "http://127.0.0.1:1"), 0);
    let missing = output_of(
        &mut command_without_url(&session, &["--api-key-file", "none", "--url", &url, "task", "list"]),
        2,
    );
    assert!(missing.contains("--api-key-file"), "{missing}");
    let json = output_of(
        &mut command_without_url(
            &session,
            &["--json", "simulate", "contention", "--clients", "2", "--trials", "1"],
        ),
        0,
    );
    assert!(json.starts_with('{'), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_rejects_shared_options_that_it_would_ignore() {
    let session = Session::start().await;
    for command in ["serve", "demo", "migrate", "completions"] {
        for option in [&["--url", "http://127.0.0.1:1"][..], &["--api-key-file", "x"], &["--json"]] {
            let shell = if command == "completions" { &["bash"][..] } else { &[] };
            let after = [&[command][..], shell, option].concat();
            let before = [option, &[command], shell].concat();
            for arguments in [after, before] {
                let refused = output_of(&mut command_without_url(&session, &arguments), 2);
                assert!(refused.contains(option[0]) && refused.contains(command), "{arguments:?}: {refused}");
            }
        }
        let help = output_of(&mut command_without_url(&session, &[command, "--help"]), 0);
        assert!(!help.contains("--url") && !help.contains("--json"), "{help}");
    }
    let help = output_of(&mut command_without_url(&session, &["simulate", "outage", "--help"]), 0);
    assert!(!help.contains("--url") && help.contains("--json"), "{help}");
    let help = output_of(&mut command_without_url(&session, &["--help"]), 0);
    assert!(help.contains("--url <URL>") && help.contains("--json"), "{help}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_wins_over_the_variable_of_another_option() {
    let session = Session::start().await;
    let (url, exists) = (session.url(), |name: &str| session.folder.path().join(name).exists());
    // --url wins, although the environment names a store.
    for arguments in [["key", "list", "--url", &url], ["--url", &url, "key", "list"]] {
        let mut command = command_without_url(&session, &arguments);
        let listed = output_of(command.env("REDRIVE_STORE", "sqlite:variable.db"), 0);
        assert!(listed.contains("there are no keys") && !exists("variable.db"), "{listed}");
    }
    // --store wins, although the environment names a service.
    let create = ["key", "create", "--name", "x", "--scope", "admin", "--store", "sqlite:option.db"];
    let made = output_of(command_without_url(&session, &create).env("REDRIVE_URL", &url), 0);
    assert!(made.contains("rdk_") && exists("option.db"), "{made}");
    assert!(
        output_of(&mut command_without_url(&session, &["key", "list", "--url", &url]), 0)
            .contains("there are no keys")
    );
    // With two variables the store wins, as documented.
    let mut command = command_without_url(&session, &["key", "list"]);
    let listed = output_of(command.env("REDRIVE_URL", &url).env("REDRIVE_STORE", "sqlite:option.db"), 0);
    assert!(listed.contains("admin"), "{listed}");
    let both = ["key", "list", "--store", "sqlite:option.db", "--url", &url];
    let refused = output_of(&mut command_without_url(&session, &both), 2);
    assert!(refused.contains("--store or --url, not both"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duration_means_the_future_for_at_and_the_past_for_a_filter() {
    let session = Session::start().await;
    let ok = session.target.url("/ok");
    let task: Value =
        serde_json::from_str(&session.run_unrecorded(&["task", "create", &ok, "--at", "2h", "--json"], 0))
            .unwrap();
    let wait = task["nextAttemptAt"].as_i64().unwrap() - task["createdAt"].as_i64().unwrap();
    // A busy machine may take a while between the two times.
    assert!((7_200_000..7_260_000).contains(&wait), "{task}");
    assert_eq!(task["state"], "pending");
    let listed = |option: &str| session.run_unrecorded(&["task", "list", "--json", option, "2h"], 0);
    assert_eq!((listed("--since").lines().count(), listed("--before").lines().count()), (1, 0));
    // A task with a time in the past is due at once.
    session.run_unrecorded(&["task", "create", &ok, "--at", "2020-05-01T08:00:00Z", "--wait"], 0);
    let both = ["task", "create", &ok, "--at", "2h", "--delay", "1h"];
    assert!(session.stderr_of(&both, 2).contains("--delay"));
}
