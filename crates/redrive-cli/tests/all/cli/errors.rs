//! Error messages: each one says what to do next.

use std::net::TcpListener;

use crate::cli::session::Session;

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do_next() {
    let mut session = Session::start().await;
    let unknown = "0198ffff-0000-7000-8000-000000000000";
    session.run(&["task", "get", unknown]);
    session.run(&["task", "get", "no-id"]);
    session.run(&["job", "get", unknown]);
    session.run(&["operation", "get", unknown]);
    session.run(&["task", "watch", unknown]);
    session.run(&["task", "create", "ftp://example.com"]);
    session.run(&["task", "create", "http://example.com", "--body-json", "{"]);
    session.run(&["task", "create", "http://example.com", "-H", "nonsense"]);
    session.run(&["task", "create", "http://example.com", "--policy", "none"]);
    session.run(&["task", "create", "http://example.com", "--delay", "soon"]);
    session.run(&["task", "list", "--state", "lost"]);
    session.run(&["task", "list", "--since", "yesterday"]);
    session.run(&["task", "list", "--url", "localhost:7373"]);
    session.run(&["task", "list", "--api-key-file", "no-such-file"]);
    session.run(&["top"]);
    // The target is an HTTP server, but not a redrive service.
    let target = session.target.origin();
    session.run_with(&["task", "list"], |command| {
        command.env("REDRIVE_URL", target);
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stderr = session.stderr_of(&["task", "list", "--url", &format!("http://{closed}")], 5);
    assert!(stderr.starts_with(&format!("error: nothing answers at http://{closed} (")), "{stderr}");
    assert!(stderr.contains("start a service with `redrive serve`, or set --url or REDRIVE_URL"), "{stderr}");
    session.compare_with("errors");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_control_characters_cannot_change_the_terminal() {
    let session = Session::start().await;
    let escape = session.target.url("/escape");
    let shown = session.run_unrecorded(&["task", "create", &escape, "--wait"], 6);
    let id = shown.lines().next().unwrap().to_owned();
    let listed = session.run_unrecorded(&["task", "attempts", &id], 0);
    assert!(listed.contains("[31mgone") && !listed.contains('\x1b'), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_lists_every_exit_code() {
    let session = Session::start().await;
    let help = session.run_unrecorded(&["--help"], 0);
    assert!(help.contains("Exit codes:\n  0    success\n") && help.contains("  130  interrupted"), "{help}");
}
