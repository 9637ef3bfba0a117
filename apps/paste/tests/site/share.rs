//! Equal content is stored once, and no crash removes it while a paste has it.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use paste::arguments::Arguments;
use paste::code::Code;
use paste::content::Content;
use paste::database::{CondemnResult, CreateResult, NewPaste, Status};
use paste::read::ContentBytes;
use paste::site::Site;
use paste::token::OwnerHash;
use paste::upload::Upload;
use redrive::{Filter, Kind, PageRequest, Task as _};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::setup::{TIMEOUT, TestSite, UNUSED_BLOBS, on_both_databases, text};

on_both_databases!(
    equal_content_is_uploaded_once,
    a_paste_that_is_added_before_the_removal_keeps_its_blob,
    crashes_neither_lose_a_blob_nor_leave_an_unused_one
);

async fn equal_content_is_uploaded_once(test_site: TestSite) {
    test_site.proxy.set_refusing(true);
    let mut site = test_site.start(&[]);
    let client = site.client();
    let content = text("the same");
    let mut pastes = JoinSet::new();
    for _ in 0..20 {
        let (client, content) = (client.clone(), content.clone());
        pastes.spawn(async move { client.paste(&content).await });
    }
    let mut pastes = pastes.join_all().await;
    test_site.proxy.set_refusing(false);
    for paste in &pastes {
        assert_eq!(
            client.final_status(&paste.code, TIMEOUT).await,
            200,
            "the result of the single upload applies to every paste"
        );
    }
    let late = client.post(&serde_json::json!({"content": content, "expiryDays": 1})).await;
    assert_eq!(late.json()["data"]["status"], "PROCESSED", "a paste of stored content is ready at once");
    assert_eq!((test_site.sql("SELECT count(*) FROM blobs").await, test_site.objects().await), (1, 1));
    // Only the removal of the last paste removes the blob.
    pastes.push(crate::client::created_paste(&late, &content));
    while let Some(paste) = pastes.pop() {
        assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 204);
        if let Some(next) = pastes.last() {
            assert_eq!(client.get(&format!("/raw/{}", next.code)).await.body, content.as_bytes());
        }
    }
    test_site.wait_for_count("SELECT count(*) FROM blobs", 0).await;
    test_site.wait_for_objects(0).await;
    site.kill();
    let site = test_site.open().await;
    let uploads = Filter { kind: Some(Kind::new(Upload::KIND).unwrap()), ..Filter::default() };
    assert_eq!(site.redrive.list(uploads, PageRequest::first(100)).await.unwrap().items.len(), 1);
}

/// After the last paste of a blob was removed, and before the removal of the blob runs, another paste is added.
async fn a_paste_that_is_added_before_the_removal_keeps_its_blob(test_site: TestSite) {
    let site = test_site.open().await;
    let contents = [text("pasted twice")];
    let first = add(&site, &contents, 0).await;
    let arguments = arguments(&test_site);
    let uploaded = test_site.wait_for_count("SELECT count(*) FROM blobs WHERE state = 'stored'", 1);
    site.worker(&arguments).without_schedules().run_until(uploaded).await.unwrap();
    let blob = site.database.find(&first.0).await.unwrap().expect("the paste exists").blob;
    remove(&site, first).await;
    let (second, ..) = add(&site, &contents, 0).await;
    assert_eq!(site.database.condemn(blob.id).await.unwrap(), CondemnResult::Used);
    let paste = site.database.find(&second).await.unwrap().expect("the paste exists");
    assert_eq!((paste.blob.id, paste.status), (blob.id, Status::Processed));
}

/// Makes random pastes and removals with few contents, so that they interfere, and drops the worker at random times, which is like a
/// crash.
async fn crashes_neither_lose_a_blob_nor_leave_an_unused_one(test_site: TestSite) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let site = test_site.open().await;
    let contents: Vec<String> = (0..3).map(|_| text("random")).collect();
    let mut alive: Vec<(Code, OwnerHash, usize)> = Vec::new();
    for _ in 0..40 {
        for _ in 0..rng.usize(1..4) {
            if alive.is_empty() || rng.bool() {
                alive.push(add(&site, &contents, rng.usize(..contents.len())).await);
            } else {
                remove(&site, alive.swap_remove(rng.usize(..alive.len()))).await;
            }
        }
        if rng.u8(..3) == 0 {
            test_site.proxy.cut();
        }
        let until_crash = Duration::from_millis(rng.u64(..120));
        let arguments = arguments(&test_site);
        let worker = site.worker(&arguments).without_schedules();
        let _crash = tokio::time::timeout(until_crash, worker.run_until(std::future::pending())).await;
    }
    let arguments = arguments(&test_site);
    let worker = site.worker(&arguments).without_schedules();
    let settled = async {
        test_site.wait_for_count("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'", 0).await;
        test_site.wait_for_count(UNUSED_BLOBS, 0).await;
    };
    worker.run_until(settled).await.unwrap();
    for (code, _, content) in &alive {
        let paste = site.database.find(code).await.unwrap().expect("an acknowledged paste exists");
        assert_eq!(paste.status, Status::Processed);
        match site.read(&paste.blob).await.expect("its object exists") {
            ContentBytes::Whole(bytes) => assert_eq!(bytes, contents[*content].as_bytes()),
            ContentBytes::Stream(_) => panic!("a small content is not streamed"),
        }
    }
    let used: std::collections::BTreeSet<usize> = alive.iter().map(|(_, _, content)| *content).collect();
    assert_eq!(test_site.sql("SELECT count(*) FROM blobs").await, used.len() as i64);
    assert_eq!(test_site.sql("SELECT count(*) FROM contents").await, 0);
    assert_eq!(test_site.objects().await, used.len());
}

async fn add(site: &Site, contents: &[String], content: usize) -> (Code, OwnerHash, usize) {
    let (code, owner, blob) = (Code::random().unwrap(), OwnerHash::new("owner"), Uuid::now_v7());
    let upload = site.redrive.enqueue(Upload { blob }).prepare().await.unwrap();
    let new = NewPaste {
        code: code.clone(),
        expiry_days: 1,
        owner,
        content: Content::new(contents[content].clone()).unwrap(),
        blob,
        upload,
    };
    assert!(matches!(site.database.create(new).await.unwrap(), CreateResult::Done { .. }));
    (code, owner, content)
}

async fn remove(site: &Site, (code, owner, _): (Code, OwnerHash, usize)) {
    let paste = site.database.find(&code).await.unwrap().expect("an acknowledged paste exists");
    let removal = site.removal(paste.blob.id).await.unwrap();
    assert!(site.database.delete(&code, owner, removal).await.unwrap());
}

fn arguments(test_site: &TestSite) -> Arguments {
    Arguments::parse_from([
        "paste",
        "--database",
        &test_site.database,
        "--objects",
        "file:unused",
        "--lease",
        "0.5",
    ])
}

impl TestSite {
    /// Opens the site in this process.
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
