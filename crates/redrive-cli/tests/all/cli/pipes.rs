//! Readers that have seen enough, and programs that read everything.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::session::{Session, text};

/// More than a pipe holds.
const TASKS: usize = 1500;

async fn full() -> Session {
    let session = Session::start().await;
    let client = session.service.client();
    let items = vec![json!({"targetUrl": session.target.url("/ok"), "delayMs": 3_600_000}); TASKS / 2];
    for _ in 0..2 {
        client.post("/retry-tasks/batch", &json!({"items": items})).await.json(200);
    }
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_closes_the_pipe_is_no_error() {
    let session = full().await;
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
async fn all_of_a_list_goes_over_every_page() {
    let session = full().await;
    let lines = session.quietly(&["task", "list", "--all", "--json"], 0);
    let ids: std::collections::BTreeSet<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["taskId"].to_string())
        .collect();
    assert_eq!((lines.lines().count(), ids.len()), (TASKS, TASKS));
    let some = session.quietly(&["task", "list", "--limit", "1200"], 0);
    assert_eq!(some.lines().count(), 1 + 1200, "more than a page, under one head");
    assert_eq!(some.lines().filter(|line| line.starts_with("TASK")).count(), 1);
}
