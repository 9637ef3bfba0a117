//! Options: where they may stand, which of them counts, and what a duration means.

use std::process::Command;

use serde_json::Value;

use crate::session::{Session, text};
use crate::stage::redrive;

/// A command without a service in its environment.
fn plain(session: &Session, arguments: &[&str]) -> Command {
    let mut command = redrive(session.folder.path());
    command.args(arguments);
    command
}

/// What a command prints; it must end with `code`.
fn said(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_options_may_stand_before_the_command_and_after_it() {
    let session = Session::start().await;
    let url = session.url();
    let id = session.quietly(&["task", "create", &session.target.url("/ok"), "--delay", "1h"], 0);
    for arguments in [
        ["--url", &url, "--json", "task", "list"],
        ["--json", "task", "--url", &url, "list"],
        ["task", "list", "--url", &url, "--json"],
        ["--url", &url, "task", "list", "--json"],
    ] {
        let listed = said(&mut plain(&session, &arguments), 0);
        let task: Value = serde_json::from_str(&listed).unwrap_or_else(|_| panic!("{arguments:?}: {listed}"));
        assert_eq!(task["taskId"], id, "{arguments:?}");
    }
    // Before the command it still goes before the environment.
    let mut command = plain(&session, &["--url", &url, "task", "list"]);
    said(command.env("REDRIVE_URL", "http://127.0.0.1:1"), 0);
    let missing = said(&mut plain(&session, &["--api-key-file", "none", "--url", &url, "task", "list"]), 2);
    assert!(missing.contains("--api-key-file"), "{missing}");
    let json = said(
        &mut plain(&session, &["--json", "simulate", "contention", "--clients", "2", "--trials", "1"]),
        0,
    );
    assert!(json.starts_with('{'), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_refuses_shared_options_that_it_would_ignore() {
    let session = Session::start().await;
    for command in ["serve", "demo", "migrate", "completions"] {
        for option in [&["--url", "http://127.0.0.1:1"][..], &["--api-key-file", "x"], &["--json"]] {
            let shell = if command == "completions" { &["bash"][..] } else { &[] };
            let after = [&[command][..], shell, option].concat();
            let before = [option, &[command], shell].concat();
            for arguments in [after, before] {
                let refused = said(&mut plain(&session, &arguments), 2);
                assert!(refused.contains(option[0]) && refused.contains(command), "{arguments:?}: {refused}");
            }
        }
        let help = said(&mut plain(&session, &[command, "--help"]), 0);
        assert!(!help.contains("--url") && !help.contains("--json"), "{help}");
    }
    let help = said(&mut plain(&session, &["simulate", "outage", "--help"]), 0);
    assert!(!help.contains("--url") && help.contains("--json"), "{help}");
    let help = said(&mut plain(&session, &["--help"]), 0);
    assert!(help.contains("--url <URL>") && help.contains("--json"), "{help}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_goes_before_a_variable_also_before_one_for_another_option() {
    let session = Session::start().await;
    let (url, exists) = (session.url(), |name: &str| session.folder.path().join(name).exists());
    // The service's keys, although the environment names a store.
    for arguments in [["key", "list", "--url", &url], ["--url", &url, "key", "list"]] {
        let mut command = plain(&session, &arguments);
        let listed = said(command.env("REDRIVE_STORE", "sqlite:variable.db"), 0);
        assert!(listed.contains("there are no keys") && !exists("variable.db"), "{listed}");
    }
    // The store's keys, although the environment names a service.
    let create = ["key", "create", "--name", "x", "--scope", "admin", "--store", "sqlite:option.db"];
    let made = said(plain(&session, &create).env("REDRIVE_URL", &url), 0);
    assert!(made.contains("rdk_") && exists("option.db"), "{made}");
    assert!(said(&mut plain(&session, &["key", "list", "--url", &url]), 0).contains("there are no keys"));
    // Two variables: the store, as documented.
    let mut command = plain(&session, &["key", "list"]);
    let listed = said(command.env("REDRIVE_URL", &url).env("REDRIVE_STORE", "sqlite:option.db"), 0);
    assert!(listed.contains("admin"), "{listed}");
    let both = ["key", "list", "--store", "sqlite:option.db", "--url", &url];
    let refused = said(&mut plain(&session, &both), 2);
    assert!(refused.contains("--store or --url, not both"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duration_is_ahead_for_at_and_ago_for_a_filter() {
    let session = Session::start().await;
    let ok = session.target.url("/ok");
    let task: Value =
        serde_json::from_str(&session.quietly(&["task", "create", &ok, "--at", "2h", "--json"], 0)).unwrap();
    let wait = task["nextAttemptAt"].as_i64().unwrap() - task["createdAt"].as_i64().unwrap();
    // A busy machine takes a while between the two.
    assert!((7_200_000..7_260_000).contains(&wait), "{task}");
    assert_eq!(task["status"], "PENDING");
    let listed = |option: &str| session.quietly(&["task", "list", "--json", option, "2h"], 0);
    assert_eq!((listed("--since").lines().count(), listed("--before").lines().count()), (1, 0));
    // A time that has passed is due at once.
    session.quietly(&["task", "create", &ok, "--at", "2020-05-01T08:00:00Z", "--wait"], 0);
    let both = ["task", "create", &ok, "--at", "2h", "--delay", "1h"];
    assert!(session.quietly_failing(&both, 2).contains("--delay"));
}
