//! An export that is cut off goes on where it stopped, and holds each dead letter once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::session::{Session, text};
use crate::stage::{PATIENCE, within};

/// More than a page.
const LETTERS: usize = 1100;

/// Passes bytes on to the service until so many came back, then hangs up for good.
async fn cut_off_after(service: std::net::SocketAddr, bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let left = Arc::new(AtomicUsize::new(bytes));
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            tokio::spawn(pass(caller, service, left.clone()));
        }
    });
    format!("http://{address}")
}

async fn pass(caller: TcpStream, service: std::net::SocketAddr, left: Arc<AtomicUsize>) {
    let (mut from_caller, mut to_caller) = caller.into_split();
    let (mut from_service, mut to_service) = TcpStream::connect(service).await.unwrap().into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_caller, &mut to_service).await });
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from_service.read(&mut buffer).await {
        let rest = left.load(Ordering::SeqCst);
        if read == 0 || rest == 0 || to_caller.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        left.store(rest.saturating_sub(read), Ordering::SeqCst);
    }
}

fn ids(lines: &str) -> Vec<String> {
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["taskId"].to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_goes_on_where_it_was_cut_off() {
    let session = Session::start().await;
    let client = session.service.client();
    let items = vec![json!({"targetUrl": session.target.url("/missing")}); LETTERS / 2];
    for _ in 0..2 {
        client.post("/retry-tasks/batch", &json!({"items": items})).await.json(200);
    }
    within(PATIENCE * 2, "all are dead", async || {
        let counted = client.post("/dead-letters/redrive", &json!({"dryRun": true})).await.json(200);
        (counted["matched"] == LETTERS).then_some(())
    })
    .await;
    let whole = session.quietly(&["dead", "export"], 0);
    assert_eq!(whole.lines().count(), LETTERS);
    // All of the first page goes through, and little of the second.
    let first: usize = whole.lines().take(1000).map(|line| line.len() + 1).sum();
    let proxy = cut_off_after(session.service.address, first + 4096).await;

    let arguments = ["dead", "export", "--output", "dead.ndjson"];
    let output = session.command(&arguments).env("REDRIVE_URL", proxy).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    // Pages may be short, but the first one is there.
    let path = session.folder.path().join("dead.ndjson");
    let mut torn = std::fs::read_to_string(&path).unwrap();
    let written = torn.lines().count();
    assert!((1..LETTERS).contains(&written), "{written}: {said}");
    let words = format!(
        "cut off after {written} dead letters; run the same command again and it goes on: the answer of"
    );
    assert!(said.contains(&words), "{said}");
    // A crash may leave more behind than was complete.
    torn += r#"{"taskId": "torn"#;
    std::fs::write(&path, torn).unwrap();

    let other =
        session.command(&["dead", "export", "--output", "dead.ndjson", "--reason", "body-lost"]).output();
    assert!(text(&other.unwrap().stderr).contains("holds the beginning of another export"));
    session.quietly(&arguments, 0);
    let exported = std::fs::read_to_string(&path).unwrap();
    assert_eq!(ids(&exported), ids(&whole));
    assert_eq!(ids(&exported).iter().collect::<BTreeSet<_>>().len(), LETTERS);
    assert!(!session.folder.path().join("dead.ndjson.part").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_to_a_pipe_says_where_to_go_on() {
    let session = Session::start().await;
    session.quietly(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let proxy = cut_off_after(session.service.address, 0).await;
    let output = session.command(&["dead", "export"]).env("REDRIVE_URL", proxy).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("cut off after 0 dead letters; run it again"), "{said}");
}
