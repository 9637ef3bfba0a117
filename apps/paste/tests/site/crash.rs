//! The app and its workers are killed repeatedly under load: no acknowledged paste is lost, and none is stuck.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{Client, CreatedPaste, created_paste};
use crate::setup::{Process, TIMEOUT, TestSite, on_both_databases, text};

on_both_databases!(no_acknowledged_paste_is_lost);

const ROUNDS: usize = 6;
const CLIENTS: usize = 4;

/// The address of the site, which changes with each start.
type Url = Arc<Mutex<String>>;

async fn no_acknowledged_paste_is_lost(site: TestSite) {
    let mut processes = start(&site);
    let url: Url = Arc::new(Mutex::new(processes[0].url.clone()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..CLIENTS {
        load.spawn(paste_until_stopped(url.clone(), stop.clone()));
    }
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(300..1_200))).await;
        processes.iter_mut().for_each(Process::kill);
        processes = start(&site);
        url.lock().unwrap().clone_from(&processes[0].url);
    }
    stop.store(true, Ordering::Relaxed);
    let pastes: Vec<CreatedPaste> = load.join_all().await.into_iter().flatten().collect();
    assert!(pastes.len() > 2 * ROUNDS, "too few pastes for this test: {}", pastes.len());
    let client = processes[0].client();
    for paste in &pastes {
        assert_eq!(
            client.final_status(&paste.code, 2 * TIMEOUT).await,
            200,
            "{} of {}",
            paste.code,
            pastes.len()
        );
        let read = client.get(&format!("/raw/{}", paste.code)).await;
        assert_eq!(read.body, paste.content.as_bytes());
    }
    // Pastes that were stored but not acknowledged must end too.
    site.wait_for_count("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'", 0).await;
}

/// Starts one process, or on Postgres an app and two workers.
fn start(site: &TestSite) -> Vec<Process> {
    let lease = ["--lease", "2"];
    if !site.is_postgres() {
        return vec![site.start(&lease)];
    }
    let role = |role| site.start(&[&lease[..], &["--roles", role]].concat());
    vec![role("app"), role("worker"), role("worker")]
}

/// Creates pastes one after the other. Only acknowledged ones count.
async fn paste_until_stopped(url: Url, stop: Arc<AtomicBool>) -> Vec<CreatedPaste> {
    let mut pastes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let client = Client::new(&url.lock().unwrap().clone());
        let content = text("under load");
        match client.try_post(&json!({"content": content, "expiryDays": 1})).await {
            Some(answer) if answer.number() == 201 => pastes.push(created_paste(&answer, &content)),
            Some(_) | None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pastes
}
