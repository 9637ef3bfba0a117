//! The whole service on a real socket.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Outcome;
use redrive_server::keys::{self, NewKey};
use redrive_server::{Config, Service, StartError};
use redrive_store_sqlite::SqliteStore;
use redrive_wire::Scope;
use redrive_worker::Context;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::stage::parts;

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

async fn start(listen: &str, store: &Arc<SqliteStore>) -> Result<Service, StartError> {
    let config = Config { listen: listen.parse().unwrap(), ..Config::default() };
    Service::start_with(config, store.clone(), parts(), done).await
}

#[tokio::test]
async fn a_service_on_a_public_address_needs_a_key() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let refused = start("0.0.0.0:0", &store).await.err().expect("the service does not start").to_string();
    assert!(refused.contains("redrive key create"), "{refused}");
    let new = NewKey::new("ops", Scope::Admin);
    keys::create(&*store, new, Default::default()).await.unwrap();
    assert!(start("0.0.0.0:0", &store).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_created_and_delivered_with_events_and_the_service_shuts_down() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let service = start("127.0.0.1:0", &store).await.unwrap();
    let address = service.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let mut events = TcpStream::connect(address).await.unwrap();
    events.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut received = read_until(&mut events, "200 OK").await;
    let body = r#"{"target":"http://example.com/"}"#;
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut client, "201 Created").await;
    received += &read_until(&mut events, "event: succeeded").await;
    assert!(received.contains("event: pending") && received.contains("event: running"), "{received}");
    stop.send(()).unwrap();
    let summary = running.await.unwrap().unwrap().unwrap();
    assert_eq!(summary.succeeded, 1);
    let mut rest = String::new();
    events.read_to_string(&mut rest).await.unwrap();
}

async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = String::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while !read.contains(text) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "ended before {text:?}: {read}");
            read.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the expected text");
    read
}
