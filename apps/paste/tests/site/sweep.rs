//! Sweeping: stale pastes are removed in batches with their blobs, by any number of sweepers.

use std::sync::Arc;

use clap::Parser as _;
use paste::arguments::Arguments;
use paste::code::Code;
use paste::database::StalePastes;
use paste::read::ContentBytes;
use paste::site::Site;
use paste::sweep::Sweep;
use redrive::JobId;
use serde_json::json;

use crate::setup::{TIMEOUT, TestSite, UNUSED_BLOBS, on_both_databases, text};

on_both_databases!(stale_pastes_are_removed_with_their_blobs);

/// The number of pastes, which is more than a batch.
const PASTES: usize = 130;

async fn stale_pastes_are_removed_with_their_blobs(test_site: TestSite) {
    let mut site = test_site.start(&[]);
    let client = site.client();
    let shared = text("shared by all");
    let mut pastes = Vec::new();
    for number in 0..PASTES {
        // A third of the pastes share a blob. The others have their own.
        let content = if number % 3 == 0 { shared.clone() } else { text("own") };
        pastes.push(client.paste(&content).await);
    }
    for paste in &pastes {
        assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    }
    let kept = client.post(&json!({"content": shared, "expiryDays": 30, "customAlias": "kept"})).await;
    assert_eq!(kept.number(), 201);
    let failed =
        client.post(&json!({"content": text("failed"), "expiryDays": 30, "customAlias": "failed"})).await;
    assert_eq!(failed.number(), 201);
    assert_eq!(client.final_status("failed", TIMEOUT).await, 200);
    test_site.sql("UPDATE pastes SET status = 'FAILED' WHERE code = 'failed'").await;
    test_site.sql("UPDATE pastes SET expires_at = created_at WHERE code NOT IN ('kept', 'failed')").await;
    site.kill();

    let sweepers = Sweepers::open(&test_site).await;
    let swept = sweepers.sweep(StalePastes::Expired).await;
    assert_eq!(swept, PASTES as u64, "the two sweeps together must remove each paste once");
    assert_eq!(test_site.sql("SELECT count(*) FROM pastes").await, 2);
    test_site.wait_for_count("SELECT count(*) FROM blobs", 2).await;
    test_site.wait_for_objects(2).await;
    assert_eq!(sweepers.sweep(StalePastes::Failed).await, 0, "a paste that failed just now is kept");
    let yesterday = if test_site.is_postgres() { "interval '25 hours'" } else { "90000000" };
    let age =
        format!("UPDATE pastes SET created_at = created_at - {yesterday} WHERE code IN ('failed', 'kept')");
    test_site.sql(&age).await;
    assert_eq!(sweepers.sweep(StalePastes::Failed).await, 1);
    test_site.wait_for_count("SELECT count(*) FROM blobs", 1).await;
    test_site.wait_for_objects(1).await;
    let kept = sweepers.nodes[0].database.find(&Code::parse("kept").unwrap()).await.unwrap().unwrap();
    let Ok(ContentBytes::Whole(content)) = sweepers.nodes[0].read(&kept.blob).await else {
        panic!("the content cannot be read")
    };
    assert_eq!(content, shared.as_bytes());
}

/// The sweeping nodes: two on Postgres, and one on SQLite, which also runs two sweeps at once.
struct Sweepers<'a> {
    test_site: &'a TestSite,
    arguments: Arguments,
    nodes: Vec<Arc<Site>>,
}

impl<'a> Sweepers<'a> {
    async fn open(test_site: &'a TestSite) -> Self {
        let count = if test_site.is_postgres() { 2 } else { 1 };
        let unused = format!("file:{}", test_site.folder.path().join("unused").display());
        let arguments =
            Arguments::parse_from(["paste", "--database", &test_site.database, "--objects", &unused]);
        let mut nodes: Vec<Arc<Site>> = Vec::new();
        for _ in 0..count {
            let mut site = Arc::into_inner(Site::open(&arguments).await.unwrap()).unwrap();
            site.objects = test_site.objects_in_process();
            nodes.push(Arc::new(site));
        }
        Self { test_site, arguments, nodes }
    }

    /// Runs two sweeps at once, and waits until every blob without pastes is removed. Returns the number of removed pastes.
    async fn sweep(&self, what: StalePastes) -> u64 {
        let redrive = &self.nodes[0].redrive;
        let mut jobs: Vec<JobId> = Vec::new();
        for _ in 0..2 {
            jobs.push(redrive.enqueue(Sweep { what }).await.unwrap().id());
        }
        let done = async {
            let mut swept = 0;
            for job in &jobs {
                swept += redrive.result::<Sweep>(*job).await.unwrap();
            }
            self.test_site.wait_for_count(UNUSED_BLOBS, 0).await;
            swept
        };
        let work = |site: &Arc<Site>| {
            site.worker(&self.arguments).without_schedules().run_until(std::future::pending())
        };
        tokio::select! {
            swept = done => swept,
            ended = futures_util::future::join_all(self.nodes.iter().map(work)) => {
                panic!("a worker ended before the sweeps: {ended:?}")
            }
        }
    }
}
