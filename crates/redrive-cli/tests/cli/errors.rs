//! What goes wrong outside the service, and what to do next.

use std::net::TcpListener;

use crate::session::Session;

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do_next() {
    let mut session = Session::start().await;
    let nobody = "0198ffff-0000-7000-8000-000000000000";
    session.run(&["task", "get", nobody]);
    session.run(&["task", "get", "no-id"]);
    session.run(&["job", "get", nobody]);
    session.run(&["operation", "get", nobody]);
    session.run(&["task", "watch", nobody]);
    session.run(&["task", "create", "ftp://example.com"]);
    session.run(&["task", "create", "http://example.com", "--body-json", "{"]);
    session.run(&["task", "create", "http://example.com", "-H", "nonsense"]);
    session.run(&["task", "create", "http://example.com", "--policy", "none"]);
    session.run(&["task", "create", "http://example.com", "--delay", "soon"]);
    session.run(&["task", "list", "--status", "lost"]);
    session.run(&["task", "list", "--since", "yesterday"]);
    session.run(&["task", "list", "--url", "localhost:7373"]);
    session.run(&["task", "list", "--api-key-file", "no-such-file"]);
    session.run(&["top"]);
    // A target is a server, but no service.
    let target = session.target.origin();
    session.run_as(&["task", "list"], |command| {
        command.env("REDRIVE_URL", target);
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = session.quietly_failing(&["task", "list", "--url", &format!("http://{closed}")], 5);
    let words = format!(
        "error: nothing answers at http://{closed}: is `redrive serve` running? REDRIVE_URL says where"
    );
    assert!(said.starts_with(&words), "{said}");
    session.check("errors");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_target_answers_cannot_touch_the_terminal() {
    let session = Session::start().await;
    let escape = session.target.url("/escape");
    let shown = session.quietly(&["task", "create", &escape, "--wait"], 6);
    let id = shown.lines().next().unwrap().to_owned();
    let said = session.quietly(&["task", "attempts", &id], 0);
    assert!(said.contains("[31mgone") && !said.contains('\x1b'), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_lists_every_exit_code() {
    let session = Session::start().await;
    let help = session.quietly(&["--help"], 0);
    assert!(help.contains("Exit codes:\n  0    done\n") && help.contains("  130  interrupted"), "{help}");
}
