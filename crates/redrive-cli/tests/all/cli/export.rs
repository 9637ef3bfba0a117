//! An interrupted export continues where it stopped, and writes each dead letter once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::cli::session::{Session, text};
use crate::fixtures::{TIMEOUT, within};

/// More dead letters than fit on one page.
const LETTERS: usize = 1100;

/// Starts a proxy that closes all connections, for good, after the service has sent this many bytes through it.
async fn start_failing_proxy(service: std::net::SocketAddr, bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let remaining = Arc::new(AtomicUsize::new(bytes));
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            tokio::spawn(forward(caller, service, remaining.clone()));
        }
    });
    format!("http://{address}")
}

async fn forward(caller: TcpStream, service: std::net::SocketAddr, remaining: Arc<AtomicUsize>) {
    let (mut from_caller, mut to_caller) = caller.into_split();
    let (mut from_service, mut to_service) = TcpStream::connect(service).await.unwrap().into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_caller, &mut to_service).await });
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from_service.read(&mut buffer).await {
        let allowed = remaining.load(Ordering::SeqCst);
        if read == 0 || allowed == 0 || to_caller.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        remaining.store(allowed.saturating_sub(read), Ordering::SeqCst);
    }
}

fn ids(lines: &str) -> Vec<String> {
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["taskId"].to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_export_continues_where_it_stopped() {
    let session = Session::start().await;
    let client = session.service.client();
    let items = vec![json!({"target": session.target.url("/missing")}); LETTERS / 2];
    for _ in 0..2 {
        client.post("/v1/tasks/batch", &json!({"items": items})).await.json(200);
    }
    within(TIMEOUT * 2, "all tasks are dead", async || {
        let counted =
            client.post("/v1/operations", &json!({"kind": "redrive", "dryRun": true})).await.json(200);
        (counted["matched"] == LETTERS).then_some(())
    })
    .await;
    let whole = session.run_unrecorded(&["dead", "export"], 0);
    assert_eq!(whole.lines().count(), LETTERS);
    // The proxy forwards the whole first page, and a small part of the second.
    let first_page_bytes: usize = whole.lines().take(1000).map(|line| line.len() + 1).sum();
    let proxy = start_failing_proxy(session.service.address, first_page_bytes + 4096).await;

    let arguments = ["dead", "export", "--output", "dead.ndjson"];
    let output = session.command(&arguments).env("REDRIVE_URL", proxy).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    // A page may be shorter than its limit, but the first page is complete.
    let path = session.folder.path().join("dead.ndjson");
    let mut partial = std::fs::read_to_string(&path).unwrap();
    let written = partial.lines().count();
    assert!((1..LETTERS).contains(&written), "{written}: {stderr}");
    let written = redrive_core::text::count_of(written as u64, "dead letter");
    let message =
        format!("the export was interrupted after {written}: run the same command again to continue");
    assert!(stderr.contains(&message), "{stderr}");
    // A crash may leave an incomplete page at the end of the file.
    partial += r#"{"taskId": "torn"#;
    std::fs::write(&path, partial).unwrap();

    let other =
        session.command(&["dead", "export", "--output", "dead.ndjson", "--reason", "body_lost"]).output();
    assert!(text(&other.unwrap().stderr).contains("belongs to an unfinished export with another filter"));
    session.run_unrecorded(&arguments, 0);
    let exported = std::fs::read_to_string(&path).unwrap();
    assert_eq!(ids(&exported), ids(&whole));
    assert_eq!(ids(&exported).iter().collect::<BTreeSet<_>>().len(), LETTERS);
    assert!(!session.folder.path().join("dead.ndjson.part").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_export_to_a_pipe_says_how_to_continue() {
    let session = Session::start().await;
    session.run_unrecorded(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let proxy = start_failing_proxy(session.service.address, 0).await;
    let output = session.command(&["dead", "export"]).env("REDRIVE_URL", proxy).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("the export was interrupted after 0 dead letters: run it again"), "{stderr}");
}
