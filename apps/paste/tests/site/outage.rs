//! Outages of the object store: short ones cost nothing but time, long ones end as the strategy says.

use std::time::{Duration, Instant};

use redrive::{Attempt, PageRequest, Redrive, State};
use redrive_testkit::servers::Proxy;
use tokio::task::JoinSet;

use crate::browser::a_person_sees_a_paste_fail;
use crate::client::{Client, Pasted};
use crate::stage::{SOON, World, on_both, text};

on_both!(what_is_slow_or_cut_or_refused_is_tried_again);

/// These hardly do anything but wait, so that they wait together.
#[tokio::test(flavor = "multi_thread")]
async fn outages_end_as_the_strategy_says() {
    let parts = [
        ("60 s", tokio::spawn(sixty_seconds_fail_what_began_with_it_and_nothing_later())),
        ("10 s on SQLite", tokio::spawn(ten_seconds_cost_no_paste(World::on_sqlite()))),
        ("10 s on Postgres", tokio::spawn(ten_seconds_cost_no_paste(World::on_postgres()))),
        ("in a browser", tokio::spawn(a_person_sees_a_paste_fail())),
    ];
    for (part, ended) in parts {
        ended.await.unwrap_or_else(|error| panic!("{part}: {error}"));
    }
}

/// What is planned before each attempt but the first, and by how much it may differ.
const WAITS_MS: [u64; 5] = [1_000, 2_000, 4_000, 8_000, 16_000];
const JITTER_MS: u64 = 200;

async fn paste_many(client: &Client, count: usize) -> Vec<Pasted> {
    let mut pastes = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        pastes.spawn(async move { client.paste(&text("through the outage")).await });
    }
    pastes.join_all().await
}

async fn are_intact(client: &Client, pastes: &[Pasted]) {
    for paste in pastes {
        assert_eq!(client.ended(&paste.code, SOON).await, 200);
        assert_eq!(client.get(&format!("/raw/{}", paste.code)).await.body, paste.content.as_bytes());
    }
}

async fn ten_seconds_cost_no_paste(world: World) {
    let site = world.start(&[]);
    let client = site.client();
    world.proxy.refuse(true);
    let down = Instant::now();
    let mut pastes = Vec::new();
    while down.elapsed() < Duration::from_secs(10) {
        pastes.extend(paste_many(&client, 5).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    world.proxy.refuse(false);
    are_intact(&client, &pastes).await;
}

/// How many attempts have failed so far.
async fn failed(world: &World) -> i64 {
    let log = if world.is_postgres() { "redrive.attempts" } else { "redrive_attempts" };
    world.sql(&format!("SELECT count(*) FROM {log}")).await
}

async fn until_failed(world: &World, count: i64) {
    let waited = tokio::time::timeout(SOON, async {
        while failed(world).await < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    waited.await.expect("an attempt fails");
}

async fn what_is_slow_or_cut_or_refused_is_tried_again(world: World) {
    let site = world.start(&["--upload-timeout", "1"]);
    let client = site.client();
    // Slow: the first attempt is given up on.
    world.proxy.freeze(true);
    let slow = client.paste(&text("slow")).await;
    until_failed(&world, 1).await;
    world.proxy.freeze(false);
    are_intact(&client, &[slow]).await;
    // Answers with an error.
    world.proxy.answer(Some(
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ));
    world.proxy.cut();
    let before = failed(&world).await;
    let refused = client.paste(&text("refused")).await;
    until_failed(&world, before + 1).await;
    world.proxy.answer(None);
    are_intact(&client, &[refused]).await;
    // Cut in the middle of the content, before and after the server has that part.
    for cut in [Proxy::cut_before_request, Proxy::cut_after_request] {
        let needle = text("the middle");
        // Again and again, since chunks end where they please.
        let content = format!("{}{}{}", "a".repeat(1_500_000), needle.repeat(100), "b".repeat(1_500_000));
        let faults = world.proxy.faults();
        cut(&world.proxy, needle.as_bytes());
        let paste = client.paste(&content).await;
        are_intact(&client, &[paste]).await;
        let cut = async {
            while world.proxy.faults() == faults {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, cut).await.expect("something is cut");
    }
}

/// A long outage, on Postgres so that the log can be read beside the site.
async fn sixty_seconds_fail_what_began_with_it_and_nothing_later() {
    let world = World::on_postgres();
    let site = world.start(&[]);
    let client = site.client();
    world.proxy.refuse(true);
    let down = Instant::now();
    let first = paste_many(&client, 5).await;
    let mut failing = JoinSet::new();
    for paste in &first {
        let (client, code) = (client.clone(), paste.code.clone());
        failing.spawn(async move { (client.ended(&code, Duration::from_secs(60)).await, down.elapsed()) });
    }
    for (number, after) in failing.join_all().await {
        assert_eq!(number, 404);
        // 31 s of waits, each a little more or less, and what a busy machine adds.
        assert!((30..42).contains(&after.as_secs()), "{after:?}");
    }
    let redrive = Redrive::open(&world.database).await.unwrap();
    let dead = redrive.dead(None, PageRequest::first(100)).await.unwrap().items;
    assert_eq!(dead.len(), first.len());
    for job in dead {
        check_log(&redrive.attempts(job.id, 100).await.unwrap());
    }
    assert_eq!(world.sql("SELECT count(*) FROM pastes WHERE status = 'FAILED'").await, first.len() as i64);
    assert_eq!(world.sql("SELECT count(*) FROM contents").await, 0);
    tokio::time::sleep(Duration::from_secs(45).saturating_sub(down.elapsed())).await;
    let later = paste_many(&client, 5).await;
    tokio::time::sleep(Duration::from_secs(60).saturating_sub(down.elapsed())).await;
    world.proxy.refuse(false);
    are_intact(&client, &later).await;
    // What failed can be pasted again, and is a new generation.
    let again = client.paste(&first[0].content).await;
    are_intact(&client, &[again]).await;
}

/// Six attempts, and between them what the strategy says.
fn check_log(log: &[Attempt]) {
    assert_eq!(log.len(), 6, "{log:?}");
    for (attempt, wait) in log.iter().zip(WAITS_MS) {
        assert_eq!((attempt.led_to, attempt.entry.outcome.as_str()), (State::Retrying, "failed"));
        let planned = attempt.wait.expect("another attempt follows").as_millis() as u64;
        assert!((wait - JITTER_MS..=wait + JITTER_MS).contains(&planned), "{planned} ms instead of {wait}");
    }
    for (pair, wait) in log.windows(2).zip(WAITS_MS) {
        let began = |attempt: &Attempt| attempt.entry.started_at.as_ms() as u64;
        let apart = began(&pair[1]) - began(&pair[0]);
        assert!(apart >= wait - JITTER_MS, "{apart} ms apart instead of {wait}");
    }
    assert_eq!(log[5].led_to, State::Dead);
}
