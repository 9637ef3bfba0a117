//! Bodies in a folder and in memory, whole, damaged, contended and collected.

mod places;
mod replaced;

use std::fs;
use std::time::Duration;

use futures_util::stream;
use http_body_util::BodyExt;
use redrive_core::store::Enqueued;
use redrive_core::{JobId, Kind, NewJob, PolicyName, PolicyRef, Store, Unique, UniqueKey, UniqueRule};
use redrive_testkit::{ManualClock, ModelStore};

use super::*;
use crate::encoding::hex;

const DAY: Duration = ORPHAN_AGE;

/// Bodies, the records beside them, and the folder if there is one.
struct World {
    bodies: Bodies,
    store: ModelStore,
    clock: ManualClock,
    folder: Option<tempfile::TempDir>,
}

impl World {
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

    async fn claim(&self, body: &BodyRef, task: u128) -> Result<(), ClaimError> {
        claim_for(&self.store, body, &me(), job(task), self.now()).await
    }

    /// Enqueues a task that uses a body.
    async fn enqueue(&self, task: u128, body: &BodyRef) {
        let kind = Kind::new("delivery").unwrap();
        let new = NewJob { tenant: me(), ..NewJob::new(job(task), kind, policy(), names(body)) };
        assert!(matches!(self.store.enqueue(vec![new]).await.unwrap()[..], [Enqueued::Created(_)]));
    }

    async fn collect(&self) -> usize {
        self.bodies.collect(&self.store, self.now(), DAY, 2).await.unwrap()
    }

    async fn records(&self) -> usize {
        self.store.scan(KIND, None, 1_000).await.unwrap().len()
    }

    /// The only file, wherever it is.
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
fn names(body: &BodyRef) -> Vec<u8> {
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
async fn a_body_comes_back_as_it_was() {
    for world in World::both() {
        round_trip(&world).await;
    }
}

async fn round_trip(world: &World) {
    for chunks in
        [vec![], vec![0], vec![1], vec![70_000], vec![3, 0, 5], vec![1 << 20, 1 << 20], vec![3 << 20; 5]]
    {
        let chunks: Vec<Bytes> = chunks.iter().map(|size| Bytes::from(vec![7; *size])).collect();
        let whole = chunks.concat();
        let body = world.put(&me(), chunks).await.unwrap();
        assert_eq!(body.length(), whole.len() as u64);
        assert_eq!(hex(body.sha256()), hex(ring::digest::digest(&SHA256, &whole).as_ref()));
        assert!(world.bodies.exists(&body, &me()).await.unwrap());
        assert_eq!(read(world.bodies.get(&world.store, &body, &me()).await.unwrap()).await, whole);
        assert_eq!(world.bodies.whole(&world.store, &body, &me()).await.unwrap(), whole);
        let mut seen = vec![];
        let look = |chunk: &[u8]| seen.extend_from_slice(chunk);
        let verified = world.bodies.verified_with(&world.store, &body, &me(), look).await.unwrap();
        assert_eq!((verified.length(), seen.len()), (body.length(), whole.len()));
        assert_eq!(read(verified).await, whole);
        world.bodies.delete(&world.store, &body, &me()).await.unwrap();
        world.bodies.delete(&world.store, &body, &me()).await.unwrap();
        assert!(!world.bodies.exists(&body, &me()).await.unwrap());
        assert_eq!(world.records().await, 0);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_or_breaks_off_leaves_nothing() {
    for world in World::both() {
        let mebibyte = Bytes::from(vec![7; 1 << 20]);
        let full = world.put(&me(), vec![mebibyte.clone(); 64]).await.unwrap();
        assert_eq!(full.length(), BODY_BYTES_MAX);
        world.bodies.delete(&world.store, &full, &me()).await.unwrap();
        let mut over = vec![mebibyte.clone(); 64];
        over.push(Bytes::from_static(b"x"));
        assert!(matches!(world.put(&me(), over).await, Err(PutError::TooLarge)));
        for good in [0, 1, 12] {
            let chunks = std::iter::repeat_n(Ok(mebibyte.clone()), good).chain([Err("gone")]);
            let broken = world.bodies.put(&world.store, &me(), stream::iter(chunks), world.now()).await;
            assert!(matches!(broken, Err(PutError::Broken(_))), "{broken:?}");
        }
        assert_eq!(world.records().await, 0);
        if world.folder.is_some() {
            assert_eq!(world.files(), Vec::<PathBuf>::new());
        }
    }
}

#[tokio::test]
async fn another_tenant_finds_nothing() {
    for world in World::both() {
        let names =
            ["me", "", "Me", "..", "../me", "me/", "/etc", ".", "a\\b", "%2e%2e", "日本", "con", "a b"];
        for owner in names {
            let owner = Tenant::new(owner).unwrap();
            let body = world.put(&owner, vec![Bytes::from_static(b"mine")]).await.unwrap();
            assert_eq!(
                read(world.bodies.verified(&world.store, &body, &owner).await.unwrap()).await,
                b"mine"
            );
            for other in names.iter().map(|name| Tenant::new(*name).unwrap()).filter(|other| *other != owner)
            {
                assert!(matches!(
                    world.bodies.verified(&world.store, &body, &other).await,
                    Err(GetError::Lost(_))
                ));
                assert!(matches!(
                    world.bodies.get(&world.store, &body, &other).await,
                    Err(GetError::Lost(_))
                ));
                assert!(!world.bodies.exists(&body, &other).await.unwrap());
                let claimed = claim_for(&world.store, &body, &other, job(1), world.now()).await;
                assert!(matches!(claimed, Err(ClaimError::Gone)));
            }
        }
        if let Some(folder) = &world.folder {
            let names_kept = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(
                names_kept.into_iter().all(|name| name.len() == 64 || name == MARKER_FILE),
                "every tenant has a folder of its own"
            );
            assert_eq!(world.files().len(), names.len());
        }
    }
}

#[tokio::test]
async fn a_damaged_or_missing_body_is_lost() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let file = world.files().remove(0);
    for damaged in ["hallo", "hell", "hello!", ""] {
        fs::write(&file, damaged).unwrap();
        let verified = world.bodies.verified(&world.store, &body, &me()).await;
        assert!(matches!(verified, Err(GetError::Lost(_))), "{damaged}: {verified:?}");
        let whole = world.bodies.whole(&world.store, &body, &me()).await;
        assert!(matches!(whole, Err(GetError::Lost(_))), "{damaged}: {whole:?}");
        let unchecked = world.bodies.get(&world.store, &body, &me()).await;
        assert_eq!(
            unchecked.is_ok(),
            damaged.len() == 5,
            "{damaged}: its length is known before the first byte"
        );
    }
    fs::write(&file, "hello").unwrap();
    assert!(world.bodies.verified(&world.store, &body, &me()).await.is_ok());
    fs::remove_file(&file).unwrap();
    assert!(matches!(world.bodies.verified(&world.store, &body, &me()).await, Err(GetError::Lost(_))));
}

#[tokio::test]
async fn a_body_that_is_put_for_a_task_is_kept_for_it() {
    let world = World::in_folder();
    let body = world.bodies.put_bytes(&world.store, &me(), "hello", world.now()).await.unwrap();
    world.claim(&body, 1).await.unwrap();
    world.enqueue(1, &body).await;
    world.clock.advance(2 * DAY);
    assert_eq!(world.collect().await, 0);
    assert_eq!(world.bodies.whole(&world.store, &body, &me()).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_large_body_that_changes_between_the_passes_ends_with_an_error() {
    let world = World::in_folder();
    let body = world.put(&me(), vec![Bytes::from(vec![7; 2 << 20])]).await.unwrap();
    let file = world.files().remove(0);
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
    let verified = world.bodies.verified_with(&world.store, &body, &me(), replace(&[8; 2 << 20])).await;
    assert!(matches!(verified, Err(GetError::Lost(_))), "{verified:?}");
}

#[tokio::test]
async fn a_stream_gives_exactly_what_was_promised() {
    for (promised, fine) in [(4, false), (5, true), (6, false)] {
        let chunks = [Ok(Bytes::from_static(b"hel")), Ok(Bytes::from_static(b"lo"))];
        let given = exactly(promised, stream::iter(chunks).boxed()).try_collect::<Vec<_>>().await;
        assert_eq!(given.is_ok(), fine, "{promised} bytes");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_another_file_is_not_sent() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "12345").unwrap();
    let file = world.files().remove(0);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&secret, &file).unwrap();
    assert!(matches!(world.bodies.verified(&world.store, &body, &me()).await, Err(GetError::Lost(_))));
    world.bodies.delete(&world.store, &body, &me()).await.unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"12345", "the link goes, not what it points to");
}

#[cfg(unix)]
#[tokio::test]
async fn a_store_that_fails_is_unavailable_and_not_lost() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let file = world.files().remove(0);
    fs::remove_file(&file).unwrap();
    // A loop of links fails for everyone, even for root.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let verified = world.bodies.verified(&world.store, &body, &me()).await;
    assert!(matches!(verified, Err(GetError::Unavailable(_))), "{verified:?}");
}

#[tokio::test]
async fn a_reference_must_match_what_was_stored() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    let other = BodyRef::new(body.id(), body.length(), [0; 32]);
    assert!(matches!(world.claim(&other, 1).await, Err(ClaimError::Gone)));
    let other = BodyRef::new(body.id(), body.length() + 1, *body.sha256());
    assert!(matches!(world.claim(&other, 1).await, Err(ClaimError::Gone)));
    world.claim(&body, 1).await.unwrap();
}

#[tokio::test]
async fn a_body_takes_a_thousand_tasks() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    for task in 0..TASKS_MAX as u128 {
        world.claim(&body, task).await.unwrap();
    }
    assert!(matches!(world.claim(&body, 5_000).await, Err(ClaimError::TooManyTasks)));
    world.claim(&body, 7).await.expect("a repeat is harmless");
}

#[tokio::test]
async fn tasks_that_claim_at_once_are_all_kept() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    let claims = (0..20).map(|task| world.claim(&body, task));
    assert!(futures_util::future::join_all(claims).await.iter().all(Result::is_ok));
    let record = world.store.scan(KIND, None, 1).await.unwrap().remove(0);
    assert_eq!(Held::parse(&record).unwrap().tasks.len(), 20);
}

#[tokio::test]
async fn orphans_are_collected_after_a_day_and_used_bodies_are_not() {
    for world in World::both() {
        let (used, orphan, forsaken) =
            (world.put_text("used").await, world.put_text("orphan").await, world.put_text("forsaken").await);
        world.claim(&used, 1).await.unwrap();
        world.enqueue(1, &used).await;
        world.claim(&forsaken, 2).await.unwrap();
        world.clock.advance(DAY - Duration::from_millis(1));
        assert_eq!(world.collect().await, 0, "not old enough");
        let young = world.put_text("young").await;
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(world.collect().await, 2);
        for (body, kept) in [(used, true), (orphan, false), (forsaken, false), (young, true)] {
            assert_eq!(world.bodies.exists(&body, &me()).await.unwrap(), kept);
            assert_eq!(world.claim(&body, 3).await.is_ok(), kept);
        }
        assert_eq!((world.collect().await, world.records().await), (0, 2));
    }
}

#[tokio::test]
async fn a_claim_keeps_an_old_body_until_its_task_is_written() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    world.clock.advance(2 * DAY);
    world.claim(&body, 1).await.unwrap();
    assert_eq!(world.collect().await, 0, "the task is about to be written");
    world.clock.advance(DAY);
    assert_eq!(world.collect().await, 1, "it never was");
}

#[tokio::test]
async fn a_claim_during_the_collection_keeps_the_body_or_is_refused() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    world.clock.advance(DAY);
    // The collector has read the record; then a task claims the body.
    let record = world.store.scan(KIND, None, 1).await.unwrap().remove(0);
    let held = Held::parse(&record).unwrap();
    world.claim(&body, 1).await.unwrap();
    assert_eq!(collect::doom(&world.store, &record, held).await.unwrap(), None);
    world.enqueue(1, &body).await;
    assert!(world.bodies.verified(&world.store, &body, &me()).await.is_ok());
}

#[tokio::test]
async fn a_crash_between_the_steps_is_finished_later() {
    for world in World::both() {
        let (doomed, missing) = (world.put_text("doomed").await, world.put_text("missing").await);
        world.clock.advance(DAY);
        // Died after dooming it.
        let record = world.store.read(KIND, &record_id(&me(), &doomed)).await.unwrap().unwrap();
        let held = Held::parse(&record).unwrap();
        collect::doom(&world.store, &record, held).await.unwrap().unwrap();
        assert!(matches!(world.claim(&doomed, 1).await, Err(ClaimError::Gone)));
        // Died after deleting the object.
        world.bodies.remove_object(&record_id(&me(), &missing)).await.unwrap();
        assert_eq!((world.collect().await, world.records().await), (2, 0));
        assert!(!world.bodies.exists(&doomed, &me()).await.unwrap());
    }
}

#[tokio::test]
async fn what_a_dead_upload_left_is_collected() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let id = record_id(&me(), &body);
    let record = world.store.read(KIND, &id).await.unwrap().unwrap();
    let uploading = Held { state: BodyState::Uploading, ..Held::parse(&record).unwrap() };
    uploading.write(&world.store, id.clone(), Expect::Any).await.unwrap();
    let file = world.files().remove(0);
    fs::rename(&file, format!("{}#1", file.display())).unwrap();
    assert!(matches!(world.claim(&body, 1).await, Err(ClaimError::Gone)), "it never became whole");
    world.clock.advance(DAY);
    assert_eq!((world.collect().await, world.files().len(), world.records().await), (1, 0, 0));
}

#[tokio::test]
async fn two_collectors_at_once_are_harmless() {
    for world in World::both() {
        for _ in 0..5 {
            world.put_text("orphan").await;
        }
        let used = world.put_text("used").await;
        world.claim(&used, 1).await.unwrap();
        world.enqueue(1, &used).await;
        world.clock.advance(DAY);
        let (one, two) = tokio::join!(world.collect(), world.collect());
        assert_eq!((one + two, world.records().await), (5, 1));
        assert!(world.bodies.exists(&used, &me()).await.unwrap());
    }
}
