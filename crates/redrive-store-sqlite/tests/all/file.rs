//! Files on disk: locks, schemas, damage, and full disks.

use std::path::Path;
use std::time::Duration;

use redrive_core::store::{ClaimRequest, EnqueueResult, Filter, PageRequest, SettleResult, Settlement};
use redrive_core::{
    JobId, Kind, NewJob, PolicyName, PolicyRef, Reason, State, Store, StoreError, Verdict, WorkerId,
};
use redrive_store_sqlite::{Options, SqliteStore};
use rusqlite::Connection;
use uuid::Uuid;

fn job(number: u128) -> NewJob {
    let policy = PolicyRef::first(PolicyName::new("default").expect("legal"));
    NewJob::new(JobId(Uuid::from_u128(number)), Kind::new("k").expect("legal"), policy, vec![7; 64])
}

fn claim(limit: usize) -> ClaimRequest {
    let worker = WorkerId::new("w").expect("legal");
    ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: Duration::from_secs(30) }
}

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, Options::default()).expect("the store opens")
}

fn open_error(path: &Path) -> String {
    SqliteStore::open(path, Options::default()).expect_err("the store does not open").to_string()
}

#[tokio::test]
async fn acknowledged_writes_survive_closing_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    store.enqueue((1..=5).map(job).collect()).await.expect("enqueued");
    let claimed = store.claim(claim(2)).await.expect("claimed");
    drop(store);
    let store = open(&path);
    let stats = store.stats().await.expect("stats");
    assert_eq!((stats.in_state(State::Pending), stats.in_state(State::Running)), (3, 2));
    // A lease survives a restart: the store finds the row of the lease in the file.
    let done = Settlement::new(claimed.jobs[0].lease(), Verdict::Complete(None));
    assert_eq!(store.settle(vec![done]).await.expect("settled"), [SettleResult::Applied(State::Succeeded)]);
}

#[tokio::test]
async fn a_file_that_another_process_has_open_is_rejected_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    let message = open_error(&path);
    assert!(
        message.contains("is open in another process") && message.contains("stop that process"),
        "{message}"
    );
    drop(store);
    open(&path);
}

/// The file of the first version of redrive. Its jobs, attempts and records still exist after the migration.
#[tokio::test]
async fn an_older_schema_is_migrated_with_its_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch(include_str!("../../migrations/0001_jobs.sql")).expect("the first schema");
    conn.execute_batch(
        "CREATE TABLE redrive_schema (version INTEGER NOT NULL) STRICT;
         INSERT INTO redrive_schema VALUES (1);
         INSERT INTO redrive_lanes VALUES (1, 'default', 'work', 5);
         INSERT INTO redrive_counts VALUES (1, 5, 1);
         INSERT INTO redrive_jobs (id, lane, state, next_run_at, created_at, began_at, finished_at, tenant, policy,
           key, fingerprint, reason, last_error, payload)
         VALUES (x'00000000000000000000000000000007', 1, 5, 10, 10, 10, 20, 'acme', 'default@1', 'k', zeroblob(32),
           'NOT_RETRYABLE', 'boom', x'0102');
         INSERT INTO redrive_attempts VALUES (x'00000000000000000000000000000007', 1, 1, 1, 10, 5, 'failed', 'boom', NULL,
           'w', 5, NULL, NULL);
         INSERT INTO redrive_records VALUES ('setting', 'x', 3, x'7b7d');",
    )
    .expect("content");
    drop(conn);
    let store = open(&path);
    let id = JobId(Uuid::from_u128(7));
    let job = store.get(vec![id]).await.expect("get").remove(0).expect("the job");
    assert_eq!((job.state, job.payload.as_slice()), (State::Dead, &[1, 2][..]));
    assert_eq!((job.last_error.as_deref(), job.target, job.lease), (Some("boom"), None, None));
    assert_eq!(store.attempts(id, PageRequest::first(10)).await.expect("attempts").items.len(), 1);
    // The first version stored reasons in upper case.
    assert_eq!(job.reason, Some(Reason::NotRetryable));
    let filter = Filter { reason: job.reason, ..Filter::default() };
    let found = store.list(filter, PageRequest::first(10)).await.expect("list");
    assert_eq!(found.items.len(), 1);
    assert_eq!(
        redrive_core::RecordStore::read(&store, "setting", "x")
            .await
            .expect("read")
            .expect("the record")
            .version,
        3
    );
    assert_eq!(store.redrive(vec![id]).await.expect("redrive"), [redrive_core::store::RedriveResult::Done]);
    assert_eq!(store.claim(claim(1)).await.expect("claim").jobs.len(), 1);
}

#[tokio::test]
async fn a_newer_schema_is_rejected_and_left_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    drop(open(&path));
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch("INSERT INTO redrive_schema VALUES (99)").expect("written");
    drop(conn);
    let message = open_error(&path);
    assert!(message.contains("schema 99") && message.contains("upgrade redrive"), "{message}");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_and_a_folder_that_cannot_be_written_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letter.db");
    std::fs::write(&path, "Dear Sir or Madam, ".repeat(100)).expect("written");
    let message = open_error(&path);
    assert!(message.contains("damaged") && message.contains("restore a backup"), "{message}");
    // Not even root may create a file in the second folder.
    for path in [folder.path().join("nowhere/redrive.db"), "/proc/redrive.db".into()] {
        let message = open_error(&path);
        assert!(message.contains("redrive.db-lock") && message.contains("choose a folder"), "{message}");
    }
}

#[tokio::test]
async fn a_damaged_row_is_claimed_as_unreadable_and_the_others_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    store.enqueue((1..=3).map(job).collect()).await.expect("enqueued");
    drop(store);
    let conn = Connection::open(&path).expect("opens");
    conn.execute("UPDATE redrive_jobs SET policy = 'nonsense' WHERE seq = 2", ()).expect("damaged");
    drop(conn);
    let store = open(&path);
    let damaged = JobId(Uuid::from_u128(2));
    let error = store.get(vec![damaged]).await.expect_err("a damaged row cannot be read").to_string();
    assert!(error.contains(&damaged.to_string()) && error.contains("policy"), "{error}");
    let listed = store.list(Default::default(), PageRequest::first(10)).await.expect("listed");
    assert_eq!(listed.items.len(), 2);
    let claimed = store.claim(claim(10)).await.expect("claimed");
    assert_eq!((claimed.jobs.len(), claimed.unreadable.len()), (2, 1));
    let row = &claimed.unreadable[0];
    assert!(row.lease.id == damaged && row.attempt == 1 && row.problem.contains("policy"), "{row:?}");
    let verdict = Verdict::DeadLetter(redrive_core::Reason::NotRetryable);
    let dead = Settlement { error: Some(row.problem.clone()), ..Settlement::new(row.lease, verdict) };
    assert_eq!(store.settle(vec![dead]).await.expect("settled"), [SettleResult::Applied(State::Dead)]);
}

#[tokio::test]
async fn pages_continue_after_a_damaged_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    let rows = redrive_testkit::enqueue_rows_to_damage(&store).await;
    drop(store);
    let conn = Connection::open(&path).expect("opens");
    for id in rows {
        let sql = "UPDATE redrive_jobs SET policy = 'nonsense' WHERE id = ?1";
        assert_eq!(conn.execute(sql, [id.0.as_bytes()]).expect("damaged"), 1);
    }
    drop(conn);
    redrive_testkit::check_damaged_rows(&open(&path)).await;
}

#[tokio::test]
async fn a_damaged_attempt_log_is_reported_as_corrupt() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    let id = JobId(Uuid::from_u128(1));
    drop(store);
    let conn = Connection::open(&path).expect("opens");
    let sql =
        "INSERT INTO redrive_attempts (job, epoch, run, attempt, started_at, duration_ms, outcome, led_to)
               VALUES (?1, 1, 1, 1, 0, 0, 'failed', 77)";
    conn.execute(sql, [id.0.as_bytes()]).expect("damaged");
    drop(conn);
    let error = open(&path).attempts(id, PageRequest::first(10)).await.expect_err("77 is not a state");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
}

#[tokio::test]
async fn a_full_store_rejects_jobs_loses_none_and_accepts_more_after_a_discard() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::default().with_db_bytes_max(1024 * 1024);
    let store = SqliteStore::open(folder.path().join("redrive.db"), options).expect("opens");
    let big = |number| NewJob { payload: vec![1; 10_000], ..job(number) };
    let mut accepted = Vec::new();
    let error = loop {
        let next = accepted.len() as u128 + 1;
        match store.enqueue(vec![big(next)]).await {
            Ok(answers) => accepted.extend(answers.into_iter().map(EnqueueResult::id)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    assert!(error.to_string().contains("free disk space"), "{error}");
    let kept = store.get(accepted.clone()).await.expect("readable");
    assert!(accepted.len() > 50 && kept.iter().all(Option::is_some), "{} accepted", accepted.len());
    let freed = store.claim(claim(10)).await.expect("claims need no space").jobs;
    let verdict = Verdict::DeadLetter(redrive_core::Reason::NotRetryable);
    let dead = freed.iter().map(|job| Settlement::new(job.lease(), verdict.clone()));
    store.settle(dead.collect()).await.expect("settled");
    store.discard(freed.iter().map(|job| job.id).collect()).await.expect("discarded");
    store.enqueue(vec![big(1_000_000)]).await.expect("there is space again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_does_not_affect_the_others_of_its_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::default().with_db_bytes_max(1024 * 1024);
    let store = SqliteStore::open(folder.path().join("redrive.db"), options).expect("opens");
    let huge = |number: u128| {
        (0..40).map(|n| NewJob { payload: vec![1; 60_000], ..job(number * 100 + n) }).collect()
    };
    let mut calls = tokio::task::JoinSet::new();
    for number in 1..=200u128 {
        let store = store.clone();
        let jobs: Vec<NewJob> = if number % 10 == 0 { huge(number) } else { vec![job(number)] };
        calls.spawn(async move { (number, store.enqueue(jobs).await) });
    }
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call.expect("no panic");
        match answer {
            Ok(answers) => assert_eq!(answers, [EnqueueResult::Created(JobId(Uuid::from_u128(number)))]),
            Err(error) => {
                assert!(number % 10 == 0 && matches!(error, StoreError::Full(_)), "{number}: {error:?}")
            }
        }
    }
    assert_eq!(store.stats().await.expect("stats").in_state(State::Pending), 180);
}
