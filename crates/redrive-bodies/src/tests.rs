//! Tests with bodies in a folder and in memory: complete, damaged, shared by tasks, and unused.

mod locations;
mod replacement;

use std::fs;
use std::time::Duration;

use futures_util::stream;
use http_body_util::BodyExt;
use redrive_core::store::EnqueueResult;
use redrive_core::{JobId, Kind, NewJob, PolicyName, PolicyRef, Store, Unique, UniqueKey, UniqueRule};
use redrive_testkit::{ManualClock, ModelStore};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use redrive_core::Timestamp;
use ring::digest::SHA256;

use super::attach::BodyState;
use super::download::with_exact_length;
use super::*;

const DAY: Duration = ORPHAN_AGE;

/// Bodies with the store of their records, a clock, and the folder if they are in files.
struct BodyFixture {
    bodies: Bodies,
    store: ModelStore,
    clock: ManualClock,
    folder: Option<tempfile::TempDir>,
}

impl BodyFixture {
    fn new(folder: Option<tempfile::TempDir>) -> Self {
        let address =
            folder.as_ref().map_or("memory:".into(), |folder| format!("file:{}", folder.path().display()));
        let clock = ManualClock::new();
        let store = ModelStore::new(clock.clone());
        Self { bodies: Bodies::open(&address).unwrap(), store, clock, folder }
    }

    fn in_folder() -> Self {
        Self::new(Some(tempfile::tempdir().unwrap()))
    }

    /// One fixture in memory, and one in a folder.
    fn both() -> [Self; 2] {
        [Self::new(None), Self::in_folder()]
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn put(&self, tenant: &Tenant, chunks: Vec<Bytes>) -> Result<BodyRef, PutError> {
        let chunks = chunks.into_iter().map(Ok::<_, std::io::Error>);
        self.bodies.put(&self.store, tenant, stream::iter(chunks), self.now()).await
    }

    async fn put_text(&self, text: &'static str) -> BodyRef {
        self.put(&me(), vec![Bytes::from_static(text.as_bytes())]).await.unwrap()
    }

    async fn attach(&self, body: &BodyRef, task: u128) -> Result<(), AttachError> {
        attach(&self.store, body, &me(), job(task), self.now()).await
    }

    /// Enqueues a task that uses a body.
    async fn enqueue(&self, task: u128, body: &BodyRef) {
        let kind = Kind::new("delivery").unwrap();
        let new = NewJob { tenant: me(), ..NewJob::new(job(task), kind, policy(), payload_with(body)) };
        assert!(matches!(self.store.enqueue(vec![new]).await.unwrap()[..], [EnqueueResult::Created(_)]));
    }

    async fn collect(&self) -> usize {
        self.bodies.collect(&self.store, self.now(), DAY, 2).await.unwrap()
    }

    async fn records(&self) -> usize {
        self.store.scan(KIND, None, 1_000).await.unwrap().len()
    }

    fn body_records(&self) -> Records<'_, BodyRecord> {
        Records::new(&self.store)
    }

    /// The files of all bodies.
    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.folder.as_ref().unwrap().path()).unwrap();
        folders
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name() != MARKER_FILE)
            .flat_map(|folder| fs::read_dir(folder.path()).unwrap())
            .map(|file| file.unwrap().path())
            .collect()
    }
}

/// A payload that names a body.
fn payload_with(body: &BodyRef) -> Vec<u8> {
    format!("redrive-body:{body}").into_bytes()
}

fn me() -> Tenant {
    Tenant::new("me").unwrap()
}

fn job(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}

fn policy() -> PolicyRef {
    PolicyRef::first(PolicyName::new("p").unwrap())
}

async fn read(body: StoredBody) -> Vec<u8> {
    body.into_body().collect().await.unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn a_body_is_read_as_it_was_stored() {
    for fixture in BodyFixture::both() {
        round_trip(&fixture).await;
    }
}

async fn round_trip(fixture: &BodyFixture) {
    for chunks in
        [vec![], vec![0], vec![1], vec![70_000], vec![3, 0, 5], vec![1 << 20, 1 << 20], vec![3 << 20; 5]]
    {
        let chunks: Vec<Bytes> = chunks.iter().map(|size| Bytes::from(vec![7; *size])).collect();
        let whole = chunks.concat();
        let body = fixture.put(&me(), chunks).await.unwrap();
        assert_eq!(body.length(), whole.len() as u64);
        assert_eq!(hex::encode(body.sha256()), hex::encode(ring::digest::digest(&SHA256, &whole).as_ref()));
        assert!(fixture.bodies.exists(&body, &me()).await.unwrap());
        assert_eq!(read(fixture.bodies.get(&fixture.store, &body, &me()).await.unwrap()).await, whole);
        assert_eq!(fixture.bodies.get_bytes(&fixture.store, &body, &me()).await.unwrap(), whole);
        let mut seen = vec![];
        let add_chunk = |chunk: &[u8]| seen.extend_from_slice(chunk);
        let verified =
            fixture.bodies.get_verified_with(&fixture.store, &body, &me(), add_chunk).await.unwrap();
        assert_eq!((verified.length(), seen.len()), (body.length(), whole.len()));
        assert_eq!(read(verified).await, whole);
        fixture.bodies.delete(&fixture.store, &body, &me()).await.unwrap();
        fixture.bodies.delete(&fixture.store, &body, &me()).await.unwrap();
        assert!(!fixture.bodies.exists(&body, &me()).await.unwrap());
        assert_eq!(fixture.records().await, 0);
    }
}

#[tokio::test]
async fn an_oversized_or_interrupted_upload_leaves_nothing() {
    for fixture in BodyFixture::both() {
        let mebibyte = Bytes::from(vec![7; 1 << 20]);
        let full = fixture.put(&me(), vec![mebibyte.clone(); 64]).await.unwrap();
        assert_eq!(full.length(), BODY_BYTES_MAX);
        fixture.bodies.delete(&fixture.store, &full, &me()).await.unwrap();
        let mut over = vec![mebibyte.clone(); 64];
        over.push(Bytes::from_static(b"x"));
        assert!(matches!(fixture.put(&me(), over).await, Err(PutError::TooLarge)));
        for good in [0, 1, 12] {
            let chunks = std::iter::repeat_n(Ok(mebibyte.clone()), good).chain([Err("gone")]);
            let broken = fixture.bodies.put(&fixture.store, &me(), stream::iter(chunks), fixture.now()).await;
            assert!(matches!(broken, Err(PutError::Interrupted(_))), "{broken:?}");
        }
        assert_eq!(fixture.records().await, 0);
        if fixture.folder.is_some() {
            assert_eq!(fixture.files(), Vec::<PathBuf>::new());
        }
    }
}

#[tokio::test]
async fn a_tenant_cannot_read_the_body_of_another() {
    for fixture in BodyFixture::both() {
        let names =
            ["me", "", "Me", "..", "../me", "me/", "/etc", ".", "a\\b", "%2e%2e", "日本", "con", "a b"];
        for owner in names {
            let owner = Tenant::new(owner).unwrap();
            let body = fixture.put(&owner, vec![Bytes::from_static(b"mine")]).await.unwrap();
            assert_eq!(
                read(fixture.bodies.get_verified(&fixture.store, &body, &owner).await.unwrap()).await,
                b"mine"
            );
            for other in names.iter().map(|name| Tenant::new(*name).unwrap()).filter(|other| *other != owner)
            {
                assert!(matches!(
                    fixture.bodies.get_verified(&fixture.store, &body, &other).await,
                    Err(GetError::Lost(_))
                ));
                assert!(matches!(
                    fixture.bodies.get(&fixture.store, &body, &other).await,
                    Err(GetError::Lost(_))
                ));
                assert!(!fixture.bodies.exists(&body, &other).await.unwrap());
                let attached = attach(&fixture.store, &body, &other, job(1), fixture.now()).await;
                assert!(matches!(attached, Err(AttachError::Gone)));
            }
        }
        if let Some(folder) = &fixture.folder {
            let folder_names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(
                folder_names.into_iter().all(|name| name.len() == 64 || name == MARKER_FILE),
                "every tenant has a folder of its own"
            );
            assert_eq!(fixture.files().len(), names.len());
        }
    }
}

#[tokio::test]
async fn a_damaged_or_missing_body_is_lost() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let file = fixture.files().remove(0);
    for damaged in ["hallo", "hell", "hello!", ""] {
        fs::write(&file, damaged).unwrap();
        let verified = fixture.bodies.get_verified(&fixture.store, &body, &me()).await;
        assert!(matches!(verified, Err(GetError::Lost(_))), "{damaged}: {verified:?}");
        let whole = fixture.bodies.get_bytes(&fixture.store, &body, &me()).await;
        assert!(matches!(whole, Err(GetError::Lost(_))), "{damaged}: {whole:?}");
        let unchecked = fixture.bodies.get(&fixture.store, &body, &me()).await;
        assert_eq!(
            unchecked.is_ok(),
            damaged.len() == 5,
            "{damaged}: its length is known before the first byte"
        );
    }
    fs::write(&file, "hello").unwrap();
    assert!(fixture.bodies.get_verified(&fixture.store, &body, &me()).await.is_ok());
    fs::remove_file(&file).unwrap();
    assert!(matches!(
        fixture.bodies.get_verified(&fixture.store, &body, &me()).await,
        Err(GetError::Lost(_))
    ));
}

#[tokio::test]
async fn an_attached_body_is_kept_for_its_task() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.bodies.put_bytes(&fixture.store, &me(), "hello", fixture.now()).await.unwrap();
    fixture.attach(&body, 1).await.unwrap();
    fixture.enqueue(1, &body).await;
    fixture.clock.advance(2 * DAY);
    assert_eq!(fixture.collect().await, 0);
    assert_eq!(fixture.bodies.get_bytes(&fixture.store, &body, &me()).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_large_body_that_changes_after_its_verification_is_not_sent() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put(&me(), vec![Bytes::from(vec![7; 2 << 20])]).await.unwrap();
    let file = fixture.files().remove(0);
    let replace = |text: &'static [u8]| {
        let mut times = 0;
        let file = file.clone();
        move |_: &[u8]| {
            times += 1;
            if times == 1 {
                let other = file.with_extension("other");
                fs::write(&other, text).unwrap();
                fs::rename(&other, &file).unwrap();
            }
        }
    };
    let verified =
        fixture.bodies.get_verified_with(&fixture.store, &body, &me(), replace(&[8; 2 << 20])).await;
    assert!(matches!(verified, Err(GetError::Lost(_))), "{verified:?}");
}

#[tokio::test]
async fn a_stream_has_exactly_the_announced_length() {
    for (length, is_valid) in [(4, false), (5, true), (6, false)] {
        let chunks = [Ok(Bytes::from_static(b"hel")), Ok(Bytes::from_static(b"lo"))];
        let read = with_exact_length(length, stream::iter(chunks).boxed()).try_collect::<Vec<_>>().await;
        assert_eq!(read.is_ok(), is_valid, "{length} bytes");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_another_file_is_not_followed() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "12345").unwrap();
    let file = fixture.files().remove(0);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&secret, &file).unwrap();
    assert!(matches!(
        fixture.bodies.get_verified(&fixture.store, &body, &me()).await,
        Err(GetError::Lost(_))
    ));
    fixture.bodies.delete(&fixture.store, &body, &me()).await.unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"12345", "the link is deleted, not the file that it points to");
}

#[cfg(unix)]
#[tokio::test]
async fn a_body_is_unavailable_and_not_lost_if_the_object_store_fails() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let file = fixture.files().remove(0);
    fs::remove_file(&file).unwrap();
    // A loop of links fails for everyone, even for root.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let verified = fixture.bodies.get_verified(&fixture.store, &body, &me()).await;
    assert!(matches!(verified, Err(GetError::Unavailable(_))), "{verified:?}");
}

#[tokio::test]
async fn a_reference_must_match_what_was_stored() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    let other = BodyRef::new(body.id(), body.length(), [0; 32]);
    assert!(matches!(fixture.attach(&other, 1).await, Err(AttachError::Gone)));
    let other = BodyRef::new(body.id(), body.length() + 1, *body.sha256());
    assert!(matches!(fixture.attach(&other, 1).await, Err(AttachError::Gone)));
    fixture.attach(&body, 1).await.unwrap();
}

#[tokio::test]
async fn a_body_can_have_a_thousand_tasks() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    for task in 0..TASKS_PER_BODY_MAX as u128 {
        fixture.attach(&body, task).await.unwrap();
    }
    assert!(matches!(fixture.attach(&body, 5_000).await, Err(AttachError::TooManyTasks)));
    fixture.attach(&body, 7).await.expect("a repeat is harmless");
}

#[tokio::test]
async fn tasks_that_are_attached_at_once_are_all_recorded() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    let attaches = (0..20).map(|task| fixture.attach(&body, task));
    assert!(futures_util::future::join_all(attaches).await.iter().all(Result::is_ok));
    let record = fixture.body_records().all("").await.unwrap().remove(0);
    assert_eq!(record.value.tasks.len(), 20);
}

#[tokio::test]
async fn orphans_are_collected_after_a_day_and_used_bodies_are_not() {
    for fixture in BodyFixture::both() {
        let (used, orphan, abandoned) = (
            fixture.put_text("used").await,
            fixture.put_text("orphan").await,
            fixture.put_text("abandoned").await,
        );
        fixture.attach(&used, 1).await.unwrap();
        fixture.enqueue(1, &used).await;
        fixture.attach(&abandoned, 2).await.unwrap();
        fixture.clock.advance(DAY - Duration::from_millis(1));
        assert_eq!(fixture.collect().await, 0, "the body is not old enough");
        let young = fixture.put_text("young").await;
        fixture.clock.advance(Duration::from_millis(1));
        assert_eq!(fixture.collect().await, 2);
        for (body, kept) in [(used, true), (orphan, false), (abandoned, false), (young, true)] {
            assert_eq!(fixture.bodies.exists(&body, &me()).await.unwrap(), kept);
            assert_eq!(fixture.attach(&body, 3).await.is_ok(), kept);
        }
        assert_eq!((fixture.collect().await, fixture.records().await), (0, 2));
    }
}

#[tokio::test]
async fn an_attach_keeps_an_old_body_until_its_task_is_enqueued() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    fixture.clock.advance(2 * DAY);
    fixture.attach(&body, 1).await.unwrap();
    assert_eq!(fixture.collect().await, 0, "the task is about to be enqueued");
    fixture.clock.advance(DAY);
    assert_eq!(fixture.collect().await, 1, "the task was never enqueued");
}

#[tokio::test]
async fn an_attach_during_the_collection_keeps_the_body() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    fixture.clock.advance(DAY);
    // The collector has read the record; then a task is attached to the body.
    let record = fixture.body_records().all("").await.unwrap().remove(0);
    fixture.attach(&body, 1).await.unwrap();
    assert_eq!(collect::mark_deleting(&fixture.store, record).await.unwrap(), None);
    fixture.enqueue(1, &body).await;
    assert!(fixture.bodies.get_verified(&fixture.store, &body, &me()).await.is_ok());
}

#[tokio::test]
async fn the_next_run_completes_a_collection_that_crashed() {
    for fixture in BodyFixture::both() {
        let (deleting, missing) = (fixture.put_text("deleting").await, fixture.put_text("missing").await);
        fixture.clock.advance(DAY);
        // A collector crashed after it marked this one.
        let record = fixture.body_records().get(&record_id(&me(), &deleting)).await.unwrap().unwrap();
        collect::mark_deleting(&fixture.store, record).await.unwrap().unwrap();
        assert!(matches!(fixture.attach(&deleting, 1).await, Err(AttachError::Gone)));
        // A collector crashed after it deleted this object.
        fixture.bodies.remove_object(&record_id(&me(), &missing)).await.unwrap();
        assert_eq!((fixture.collect().await, fixture.records().await), (2, 0));
        assert!(!fixture.bodies.exists(&deleting, &me()).await.unwrap());
    }
}

#[tokio::test]
async fn an_upload_that_crashed_is_collected() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let id = record_id(&me(), &body);
    let stored = fixture.body_records().get(&id).await.unwrap().unwrap().value;
    fixture.body_records().put(&id, &BodyRecord { state: BodyState::Uploading, ..stored }).await.unwrap();
    let file = fixture.files().remove(0);
    fs::rename(&file, format!("{}#1", file.display())).unwrap();
    assert!(
        matches!(fixture.attach(&body, 1).await, Err(AttachError::Gone)),
        "the upload was never completed"
    );
    fixture.clock.advance(DAY);
    assert_eq!((fixture.collect().await, fixture.files().len(), fixture.records().await), (1, 0, 0));
}

#[tokio::test]
async fn concurrent_collectors_are_harmless() {
    for fixture in BodyFixture::both() {
        for _ in 0..5 {
            fixture.put_text("orphan").await;
        }
        let used = fixture.put_text("used").await;
        fixture.attach(&used, 1).await.unwrap();
        fixture.enqueue(1, &used).await;
        fixture.clock.advance(DAY);
        let (one, two) = tokio::join!(fixture.collect(), fixture.collect());
        assert_eq!((one + two, fixture.records().await), (5, 1));
        assert!(fixture.bodies.exists(&used, &me()).await.unwrap());
    }
}
