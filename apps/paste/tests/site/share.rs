//! Equal content is stored once, and is there for as long as a paste has it, whatever crashes when.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use paste::arguments::Arguments;
use paste::code::Code;
use paste::content::Content;
use paste::database::{Created, Fate, NewPaste, Status};
use paste::read::Readable;
use paste::site::Site;
use paste::token::OwnerHash;
use paste::upload::Upload;
use redrive::{Filter, Kind, PageRequest, Task as _};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::stage::{SOON, UNUSED_BLOBS, World, on_both, text};

on_both!(
    equal_content_is_uploaded_once,
    a_paste_that_comes_before_the_removal_keeps_its_blob,
    whatever_crashes_no_blob_is_lost_and_none_is_left
);

async fn equal_content_is_uploaded_once(world: World) {
    world.proxy.refuse(true);
    let mut site = world.start(&[]);
    let client = site.client();
    let content = text("the same");
    let mut pastes = JoinSet::new();
    for _ in 0..20 {
        let (client, content) = (client.clone(), content.clone());
        pastes.spawn(async move { client.paste(&content).await });
    }
    let mut pastes = pastes.join_all().await;
    world.proxy.refuse(false);
    for paste in &pastes {
        assert_eq!(client.ended(&paste.code, SOON).await, 200, "the one result reaches every paste");
    }
    let late = client.post(&serde_json::json!({"content": content, "expiryDays": 1})).await;
    assert_eq!(late.json()["data"]["status"], "PROCESSED", "what is stored is ready at once");
    assert_eq!((world.sql("SELECT count(*) FROM blobs").await, world.objects().await), (1, 1));
    // Each but the last leaves it there for the others.
    pastes.push(crate::client::pasted(&late, &content));
    while let Some(paste) = pastes.pop() {
        assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 204);
        if let Some(next) = pastes.last() {
            assert_eq!(client.get(&format!("/raw/{}", next.code)).await.body, content.as_bytes());
        }
    }
    world.until("SELECT count(*) FROM blobs", 0).await;
    world.until_objects(0).await;
    site.kill();
    let site = world.open().await;
    let uploads = Filter { kind: Some(Kind::new(Upload::KIND).unwrap()), ..Filter::default() };
    assert_eq!(site.redrive.list(uploads, PageRequest::first(100)).await.unwrap().items.len(), 1);
}

/// The last paste of a blob goes, and before the removal is worked on another comes.
async fn a_paste_that_comes_before_the_removal_keeps_its_blob(world: World) {
    let site = world.open().await;
    let contents = [text("it comes again")];
    let first = add(&site, &contents, 0).await;
    let arguments = arguments(&world);
    let uploaded = world.until("SELECT count(*) FROM blobs WHERE state = 'stored'", 1);
    site.worker(&arguments).without_schedules().run_until(uploaded).await.unwrap();
    let blob = site.database.find(&first.0).await.unwrap().expect("it is there").blob;
    remove(&site, first).await;
    let (second, ..) = add(&site, &contents, 0).await;
    assert_eq!(site.database.condemn(blob.id).await.unwrap(), Fate::Used);
    let paste = site.database.find(&second).await.unwrap().expect("it is there");
    assert_eq!((paste.blob.id, paste.status), (blob.id, Status::Processed));
}

/// Pastes, removals and crashes by lot, on few contents, so that they meet. A worker that is dropped has crashed: what it
/// was doing stops wherever it is.
async fn whatever_crashes_no_blob_is_lost_and_none_is_left(world: World) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut lot = fastrand::Rng::with_seed(seed);
    let site = world.open().await;
    let contents: Vec<String> = (0..3).map(|_| text("by lot")).collect();
    let mut alive: Vec<(Code, OwnerHash, usize)> = Vec::new();
    for _ in 0..40 {
        for _ in 0..lot.usize(1..4) {
            if alive.is_empty() || lot.bool() {
                alive.push(add(&site, &contents, lot.usize(..contents.len())).await);
            } else {
                remove(&site, alive.swap_remove(lot.usize(..alive.len()))).await;
            }
        }
        if lot.u8(..3) == 0 {
            world.proxy.cut();
        }
        let life = Duration::from_millis(lot.u64(..120));
        let arguments = arguments(&world);
        let worker = site.worker(&arguments).without_schedules();
        let _crash = tokio::time::timeout(life, worker.run_until(std::future::pending())).await;
    }
    let arguments = arguments(&world);
    let worker = site.worker(&arguments).without_schedules();
    let settled = async {
        world.until("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'", 0).await;
        world.until(UNUSED_BLOBS, 0).await;
    };
    worker.run_until(settled).await.unwrap();
    for (code, _, content) in &alive {
        let paste = site.database.find(code).await.unwrap().expect("an acknowledged paste is there");
        assert_eq!(paste.status, Status::Processed);
        match site.read(&paste.blob).await.expect("its object is there") {
            Readable::Whole(bytes) => assert_eq!(bytes, contents[*content].as_bytes()),
            Readable::Stream(_) => panic!("it is small"),
        }
    }
    let used: std::collections::BTreeSet<usize> = alive.iter().map(|(_, _, content)| *content).collect();
    assert_eq!(world.sql("SELECT count(*) FROM blobs").await, used.len() as i64);
    assert_eq!(world.sql("SELECT count(*) FROM contents").await, 0);
    assert_eq!(world.objects().await, used.len());
}

async fn add(site: &Site, contents: &[String], content: usize) -> (Code, OwnerHash, usize) {
    let (code, owner, blob) = (Code::draw().unwrap(), OwnerHash::of("owner"), Uuid::now_v7());
    let upload = site.redrive.enqueue(Upload { blob }).prepare().await.unwrap();
    let new = NewPaste {
        code: code.clone(),
        expiry_days: 1,
        owner,
        content: Content::new(contents[content].clone()).unwrap(),
        blob,
        upload,
    };
    assert!(matches!(site.database.create(new).await.unwrap(), Created::Done { .. }));
    (code, owner, content)
}

async fn remove(site: &Site, (code, owner, _): (Code, OwnerHash, usize)) {
    let paste = site.database.find(&code).await.unwrap().expect("an acknowledged paste is there");
    let removal = site.removal(paste.blob.id).await.unwrap();
    assert!(site.database.delete(&code, owner, removal).await.unwrap());
}

fn arguments(world: &World) -> Arguments {
    Arguments::parse_from([
        "paste",
        "--database",
        &world.database,
        "--objects",
        "file:unused",
        "--lease",
        "0.5",
    ])
}

impl World {
    /// The site in this process.
    async fn open(&self) -> Arc<Site> {
        let objects = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        let objects = format!("file:{}", objects.display());
        let mut arguments = arguments(self);
        arguments.objects = objects;
        let mut site = Arc::into_inner(Site::open(&arguments).await.unwrap()).unwrap();
        site.objects = self.objects_in_process();
        Arc::new(site)
    }
}
