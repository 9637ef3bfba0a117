//! The app and its workers killed again and again under load: nothing acknowledged is lost, and nothing is stuck.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{Client, Pasted, pasted};
use crate::stage::{Process, SOON, World, on_both, text};

on_both!(nothing_acknowledged_is_lost);

const ROUNDS: usize = 6;
const CLIENTS: usize = 4;

/// Where the load goes, which changes with each start.
type Url = Arc<Mutex<String>>;

async fn nothing_acknowledged_is_lost(world: World) {
    let mut processes = start(&world);
    let url: Url = Arc::new(Mutex::new(processes[0].url.clone()));
    let enough = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..CLIENTS {
        load.spawn(paste_until(url.clone(), enough.clone()));
    }
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(300..1_200))).await;
        processes.iter_mut().for_each(Process::kill);
        processes = start(&world);
        url.lock().unwrap().clone_from(&processes[0].url);
    }
    enough.store(true, Ordering::Relaxed);
    let pastes: Vec<Pasted> = load.join_all().await.into_iter().flatten().collect();
    assert!(pastes.len() > 2 * ROUNDS, "hardly any load: {}", pastes.len());
    let client = processes[0].client();
    for paste in &pastes {
        assert_eq!(client.ended(&paste.code, 2 * SOON).await, 200, "{} of {}", paste.code, pastes.len());
        let read = client.get(&format!("/raw/{}", paste.code)).await;
        assert_eq!(read.body, paste.content.as_bytes());
    }
    // Those too that were taken but not acknowledged have an end.
    world.until("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'", 0).await;
}

/// One process, or on Postgres an app and two workers.
fn start(world: &World) -> Vec<Process> {
    let lease = ["--lease", "2"];
    if !world.is_postgres() {
        return vec![world.start(&lease)];
    }
    let role = |role| world.start(&[&lease[..], &["--roles", role]].concat());
    vec![role("app"), role("worker"), role("worker")]
}

/// Pastes one after the other; what is not acknowledged does not count.
async fn paste_until(url: Url, enough: Arc<AtomicBool>) -> Vec<Pasted> {
    let mut pastes = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        let client = Client::new(&url.lock().unwrap().clone());
        let content = text("under load");
        match client.try_post(&json!({"content": content, "expiryDays": 1})).await {
            Some(answer) if answer.number() == 201 => pastes.push(pasted(&answer, &content)),
            Some(_) | None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pastes
}
