//! Outages of the object store: pastes survive short outages, and fail in long ones after the attempts of the policy.

use std::time::{Duration, Instant};

use redrive::{Attempt, PageRequest, Redrive, State};
use redrive_testkit::servers::Proxy;
use tokio::task::JoinSet;

use crate::browser::a_user_sees_a_paste_fail;
use crate::client::{Client, CreatedPaste};
use crate::setup::{TIMEOUT, TestSite, on_both_databases, text};

on_both_databases!(slow_interrupted_and_refused_uploads_are_retried);

/// These tests mostly wait, so they run together.
#[tokio::test(flavor = "multi_thread")]
async fn pastes_survive_short_outages_and_fail_in_long_ones() {
    let tests = [
        ("60 s", tokio::spawn(an_outage_of_sixty_seconds_fails_only_pastes_from_its_start())),
        ("10 s on SQLite", tokio::spawn(no_paste_fails_in_an_outage_of_ten_seconds(TestSite::on_sqlite()))),
        (
            "10 s on Postgres",
            tokio::spawn(no_paste_fails_in_an_outage_of_ten_seconds(TestSite::on_postgres())),
        ),
        ("in a browser", tokio::spawn(a_user_sees_a_paste_fail())),
    ];
    for (name, test) in tests {
        test.await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The wait of the policy before each attempt after the first.
const WAITS_MS: [u64; 5] = [1_000, 2_000, 4_000, 8_000, 16_000];
/// The largest difference between a wait and its value in [`WAITS_MS`].
const JITTER_MS: u64 = 200;

async fn paste_many(client: &Client, count: usize) -> Vec<CreatedPaste> {
    let mut pastes = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        pastes.spawn(async move { client.paste(&text("through the outage")).await });
    }
    pastes.join_all().await
}

async fn assert_intact(client: &Client, pastes: &[CreatedPaste]) {
    for paste in pastes {
        assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
        assert_eq!(client.get(&format!("/raw/{}", paste.code)).await.body, paste.content.as_bytes());
    }
}

async fn no_paste_fails_in_an_outage_of_ten_seconds(site: TestSite) {
    let process = site.start(&[]);
    let client = process.client();
    site.proxy.set_refusing(true);
    let down = Instant::now();
    let mut pastes = Vec::new();
    while down.elapsed() < Duration::from_secs(10) {
        pastes.extend(paste_many(&client, 5).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    site.proxy.set_refusing(false);
    assert_intact(&client, &pastes).await;
}

/// The number of failed attempts so far.
async fn failed_attempts(site: &TestSite) -> i64 {
    let log = if site.is_postgres() { "redrive.attempts" } else { "redrive_attempts" };
    site.sql(&format!("SELECT count(*) FROM {log}")).await
}

async fn wait_for_failed_attempts(site: &TestSite, count: i64) {
    let waited = tokio::time::timeout(TIMEOUT, async {
        while failed_attempts(site).await < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    waited.await.expect("an attempt fails");
}

async fn slow_interrupted_and_refused_uploads_are_retried(site: TestSite) {
    let process = site.start(&["--upload-timeout", "1"]);
    let client = process.client();
    // The object store hangs, and the first attempt times out.
    site.proxy.set_frozen(true);
    let slow = client.paste(&text("slow")).await;
    wait_for_failed_attempts(&site, 1).await;
    site.proxy.set_frozen(false);
    assert_intact(&client, &[slow]).await;
    // The object store answers with an error.
    site.proxy.answer_instead(Some(
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ));
    site.proxy.cut();
    let before = failed_attempts(&site).await;
    let refused = client.paste(&text("refused")).await;
    wait_for_failed_attempts(&site, before + 1).await;
    site.proxy.answer_instead(None);
    assert_intact(&client, &[refused]).await;
    // The connection breaks in the middle of the content, before and after the server has received that part.
    for break_connection in [Proxy::cut_before_request, Proxy::cut_after_request] {
        let marker = text("the middle");
        // The marker is repeated, because the end of a chunk may split it.
        let content = format!("{}{}{}", "a".repeat(1_500_000), marker.repeat(100), "b".repeat(1_500_000));
        let cuts_before = site.proxy.requests_cut();
        break_connection(&site.proxy, marker.as_bytes());
        let paste = client.paste(&content).await;
        assert_intact(&client, &[paste]).await;
        let was_cut = async {
            while site.proxy.requests_cut() == cuts_before {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, was_cut).await.expect("the proxy breaks a connection");
    }
}

/// This test uses Postgres, so that it can read the attempts while the site runs.
async fn an_outage_of_sixty_seconds_fails_only_pastes_from_its_start() {
    let site = TestSite::on_postgres();
    let process = site.start(&[]);
    let client = process.client();
    site.proxy.set_refusing(true);
    let down = Instant::now();
    let first = paste_many(&client, 5).await;
    let mut failing = JoinSet::new();
    for paste in &first {
        let (client, code) = (client.clone(), paste.code.clone());
        failing.spawn(
            async move { (client.final_status(&code, Duration::from_secs(60)).await, down.elapsed()) },
        );
    }
    for (status, after) in failing.join_all().await {
        assert_eq!(status, 404);
        // The waits add up to 31 s, with jitter. A busy machine needs more time.
        assert!((30..42).contains(&after.as_secs()), "{after:?}");
    }
    let redrive = Redrive::open(&site.database).await.unwrap();
    let dead = redrive.dead_letters(None, PageRequest::first(100)).await.unwrap().items;
    assert_eq!(dead.len(), first.len());
    for job in dead {
        check_log(&redrive.attempts(job.id, 100).await.unwrap());
    }
    assert_eq!(site.sql("SELECT count(*) FROM pastes WHERE status = 'FAILED'").await, first.len() as i64);
    assert_eq!(site.sql("SELECT count(*) FROM contents").await, 0);
    tokio::time::sleep(Duration::from_secs(45).saturating_sub(down.elapsed())).await;
    let later = paste_many(&client, 5).await;
    tokio::time::sleep(Duration::from_secs(60).saturating_sub(down.elapsed())).await;
    site.proxy.set_refusing(false);
    assert_intact(&client, &later).await;
    // Content whose upload failed can be pasted again, and gets a new blob.
    let repeated = client.paste(&first[0].content).await;
    assert_intact(&client, &[repeated]).await;
}

/// Checks that there are six attempts, with the waits of the policy.
fn check_log(log: &[Attempt]) {
    assert_eq!(log.len(), 6, "{log:?}");
    for (attempt, wait) in log.iter().zip(WAITS_MS) {
        assert_eq!((attempt.led_to, attempt.entry.outcome.as_str()), (State::Retrying, "failed"));
        let planned = attempt.wait.expect("the attempt is followed by a wait").as_millis() as u64;
        assert!((wait - JITTER_MS..=wait + JITTER_MS).contains(&planned), "{planned} ms instead of {wait}");
    }
    for (pair, wait) in log.windows(2).zip(WAITS_MS) {
        let start = |attempt: &Attempt| attempt.entry.started_at.as_ms() as u64;
        let interval = start(&pair[1]) - start(&pair[0]);
        assert!(interval >= wait - JITTER_MS, "attempts start {interval} ms apart instead of {wait} ms");
    }
    assert_eq!(log[5].led_to, State::Dead);
}
