//! Output to pipes: to a reader that closes the pipe early, and to one that reads everything.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cli::session::{Session, text};

/// Enough tasks that their list does not fit into the buffer of a pipe.
const TASKS: usize = 1500;

/// A session with [`TASKS`] delayed tasks.
async fn session_with_tasks() -> Session {
    let session = Session::start().await;
    let client = session.service.client();
    let items = vec![json!({"target": session.target.url("/ok"), "delayMs": 3_600_000}); TASKS / 2];
    for _ in 0..2 {
        client.post("/v1/tasks/batch", &json!({"items": items})).await.json(200);
    }
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_not_an_error() {
    let session = session_with_tasks().await;
    for more in [&[][..], &["--json"]] {
        let mut command = session.command(&[&["task", "list", "--all"], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_list_has_the_items_of_every_page() {
    let session = session_with_tasks().await;
    let lines = session.run_unrecorded(&["task", "list", "--all", "--json"], 0);
    let ids: std::collections::BTreeSet<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["taskId"].to_string())
        .collect();
    assert_eq!((lines.lines().count(), ids.len()), (TASKS, TASKS));
    let some = session.run_unrecorded(&["task", "list", "--limit", "1200"], 0);
    assert_eq!(some.lines().count(), 1 + 1200, "the items of several pages follow one header");
    assert_eq!(some.lines().filter(|line| line.starts_with("TASK")).count(), 1);
}
