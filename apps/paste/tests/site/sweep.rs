//! Sweeping: what is stale goes, in batches, with its blobs, however many sweep.

use std::sync::Arc;

use clap::Parser as _;
use paste::arguments::Arguments;
use paste::code::Code;
use paste::database::Stale;
use paste::read::Readable;
use paste::site::Site;
use paste::sweep::Sweep;
use redrive::JobId;
use serde_json::json;

use crate::stage::{SOON, UNUSED_BLOBS, World, on_both, text};

on_both!(what_is_stale_goes_with_its_blobs);

/// More than a batch.
const PASTES: usize = 130;

async fn what_is_stale_goes_with_its_blobs(world: World) {
    let mut site = world.start(&[]);
    let client = site.client();
    let shared = text("shared by all");
    let mut made = Vec::new();
    for number in 0..PASTES {
        // Some share a blob, some have their own.
        let content = if number % 3 == 0 { shared.clone() } else { text("own") };
        made.push(client.paste(&content).await);
    }
    for paste in &made {
        assert_eq!(client.ended(&paste.code, SOON).await, 200);
    }
    let kept = client.post(&json!({"content": shared, "expiryDays": 30, "customAlias": "kept"})).await;
    assert_eq!(kept.number(), 201);
    let failed =
        client.post(&json!({"content": text("failed"), "expiryDays": 30, "customAlias": "failed"})).await;
    assert_eq!(failed.number(), 201);
    assert_eq!(client.ended("failed", SOON).await, 200);
    world.sql("UPDATE pastes SET status = 'FAILED' WHERE code = 'failed'").await;
    world.sql("UPDATE pastes SET expires_at = created_at WHERE code NOT IN ('kept', 'failed')").await;
    site.kill();

    let sweepers = Sweepers::open(&world).await;
    let swept = sweepers.sweep(Stale::Expired).await;
    assert_eq!(swept, PASTES as u64, "each once, whoever it was");
    assert_eq!(world.sql("SELECT count(*) FROM pastes").await, 2);
    world.until("SELECT count(*) FROM blobs", 2).await;
    world.until_objects(2).await;
    assert_eq!(sweepers.sweep(Stale::Failed).await, 0, "it failed a moment ago");
    let yesterday = if world.is_postgres() { "interval '25 hours'" } else { "90000000" };
    let age =
        format!("UPDATE pastes SET created_at = created_at - {yesterday} WHERE code IN ('failed', 'kept')");
    world.sql(&age).await;
    assert_eq!(sweepers.sweep(Stale::Failed).await, 1);
    world.until("SELECT count(*) FROM blobs", 1).await;
    world.until_objects(1).await;
    let kept = sweepers.nodes[0].database.find(&Code::parse("kept").unwrap()).await.unwrap().unwrap();
    let Ok(Readable::Whole(content)) = sweepers.nodes[0].read(&kept.blob).await else {
        panic!("it cannot be read")
    };
    assert_eq!(content, shared.as_bytes());
}

/// Nodes that sweep: two on Postgres, one on SQLite, which runs two sweeps at once all the same.
struct Sweepers<'a> {
    world: &'a World,
    arguments: Arguments,
    nodes: Vec<Arc<Site>>,
}

impl<'a> Sweepers<'a> {
    async fn open(world: &'a World) -> Self {
        let count = if world.is_postgres() { 2 } else { 1 };
        let unused = format!("file:{}", world.folder.path().join("unused").display());
        let arguments = Arguments::parse_from(["paste", "--database", &world.database, "--objects", &unused]);
        let mut nodes: Vec<Arc<Site>> = Vec::new();
        for _ in 0..count {
            let mut site = Arc::into_inner(Site::open(&arguments).await.unwrap()).unwrap();
            site.objects = world.objects_in_process();
            nodes.push(Arc::new(site));
        }
        Self { world, arguments, nodes }
    }

    /// Sweeps twice at once, and waits until every blob without pastes is gone; says how many pastes are.
    async fn sweep(&self, what: Stale) -> u64 {
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
            self.world.until(UNUSED_BLOBS, 0).await;
            swept
        };
        let work = |site: &Arc<Site>| {
            site.worker(&self.arguments).without_schedules().run_until(std::future::pending())
        };
        tokio::select! {
            swept = done => swept,
            ended = futures_util::future::join_all(self.nodes.iter().map(work)) => {
                panic!("workers do not end by themselves: {ended:?}")
            }
        }
    }
}
