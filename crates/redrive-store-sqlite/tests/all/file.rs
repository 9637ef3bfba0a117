//! What belongs to a file on a disk: locks, schemas, damage, lack of room, and plans that stay fast.

use std::path::Path;
use std::time::Duration;

use redrive_core::store::{ClaimRequest, Enqueued, PageRequest, Settled, Settlement};
use redrive_core::{
    JobId, Kind, NewJob, PolicyName, PolicyRef, Start, State, Store, StoreError, Verdict, WorkerId,
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

fn refusal(path: &Path) -> String {
    SqliteStore::open(path, Options::default()).expect_err("refused").to_string()
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_closing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    store.enqueue((1..=5).map(job).collect()).await.expect("enqueued");
    let claimed = store.claim(claim(2)).await.expect("claimed");
    drop(store);
    let store = open(&path);
    let stats = store.stats().await.expect("stats");
    assert_eq!((stats.in_state(State::Pending), stats.in_state(State::Running)), (3, 2));
    // A lease outlives the process that took it: the place of its row is found again in the file.
    let done = Settlement::new(claimed.jobs[0].lease(), Verdict::Complete(None));
    assert_eq!(store.settle(vec![done]).await.expect("settled"), [Settled::Applied(State::Succeeded)]);
}

#[tokio::test]
async fn a_file_that_is_open_elsewhere_is_refused_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    let message = refusal(&path);
    assert!(message.contains("is open in another process") && message.contains("stop that one"), "{message}");
    drop(store);
    open(&path);
}

/// A file as the first version of redrive left it: its jobs, its log and its records are all there afterwards.
#[tokio::test]
async fn an_older_schema_is_brought_up_to_date_with_its_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch(include_str!("../migrations/0001_jobs.sql")).expect("the first schema");
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
    assert_eq!((job.last_error.as_deref(), job.subject, job.lease), (Some("boom"), None, None));
    assert_eq!(store.attempts(id, PageRequest::first(10)).await.expect("attempts").items.len(), 1);
    assert_eq!(
        redrive_core::Records::read(&store, "setting", "x").await.expect("read").expect("the record").version,
        3
    );
    assert_eq!(store.redrive(vec![id]).await.expect("redrive"), [redrive_core::store::Redriven::Done]);
    assert_eq!(store.claim(claim(1)).await.expect("claim").jobs.len(), 1);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    drop(open(&path));
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch("INSERT INTO redrive_schema VALUES (99)").expect("written");
    drop(conn);
    let message = refusal(&path);
    assert!(message.contains("schema 99") && message.contains("upgrade redrive"), "{message}");
}

#[tokio::test]
async fn a_file_that_is_no_database_and_a_folder_without_room_for_one_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letter.db");
    std::fs::write(&path, "Dear Sir or Madam, ".repeat(100)).expect("written");
    let message = refusal(&path);
    assert!(message.contains("damaged") && message.contains("restore a backup"), "{message}");
    // The second is a folder in which not even root may create a file.
    for path in [folder.path().join("nowhere/redrive.db"), "/proc/redrive.db".into()] {
        let message = refusal(&path);
        assert!(message.contains("redrive.db-lock") && message.contains("choose a folder"), "{message}");
    }
}

#[tokio::test]
async fn a_damaged_row_is_handed_out_as_such_and_the_others_go_on() {
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
    let error = store.get(vec![damaged]).await.expect_err("it cannot be read").to_string();
    assert!(error.contains(&damaged.to_string()) && error.contains("policy"), "{error}");
    let listed = store.list(Default::default(), PageRequest::first(10)).await.expect("listed");
    assert_eq!(listed.items.len(), 2);
    let claimed = store.claim(claim(10)).await.expect("claimed");
    assert_eq!((claimed.jobs.len(), claimed.unreadable.len()), (2, 1));
    let row = &claimed.unreadable[0];
    assert!(row.lease.id == damaged && row.attempt == 1 && row.problem.contains("policy"), "{row:?}");
    let verdict = Verdict::DeadLetter(redrive_core::Reason::NotRetryable);
    let park = Settlement { error: Some(row.problem.clone()), ..Settlement::new(row.lease, verdict) };
    assert_eq!(store.settle(vec![park]).await.expect("settled"), [Settled::Applied(State::Dead)]);
}

#[tokio::test]
async fn pages_go_on_behind_a_damaged_row() {
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
async fn a_damaged_log_says_so_instead_of_making_something_up() {
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
    let error = open(&path).attempts(id, PageRequest::first(10)).await.expect_err("77 is no state");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
}

#[tokio::test]
async fn a_full_store_says_so_loses_nothing_and_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::default().with_db_bytes_max(1024 * 1024);
    let store = SqliteStore::open(folder.path().join("redrive.db"), options).expect("opens");
    let big = |number| NewJob { payload: vec![1; 10_000], ..job(number) };
    let mut accepted = Vec::new();
    let error = loop {
        let next = accepted.len() as u128 + 1;
        match store.enqueue(vec![big(next)]).await {
            Ok(answers) => accepted.extend(answers.into_iter().map(Enqueued::id)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    assert!(error.to_string().contains("free disk space"), "{error}");
    let kept = store.get(accepted.clone()).await.expect("readable");
    assert!(accepted.len() > 50 && kept.iter().all(Option::is_some), "{} accepted", accepted.len());
    let freed = store.claim(claim(10)).await.expect("claims need no room").jobs;
    let verdict = Verdict::DeadLetter(redrive_core::Reason::NotRetryable);
    let park = freed.iter().map(|job| Settlement::new(job.lease(), verdict.clone()));
    store.settle(park.collect()).await.expect("settled");
    store.discard(freed.iter().map(|job| job.id).collect()).await.expect("discarded");
    store.enqueue(vec![big(1_000_000)]).await.expect("there is room again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_fails_takes_no_other_of_its_group_with_it() {
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
            Ok(answers) => assert_eq!(answers, [Enqueued::Created(JobId(Uuid::from_u128(number)))]),
            Err(error) => {
                assert!(number % 10 == 0 && matches!(error, StoreError::Full(_)), "{number}: {error:?}")
            }
        }
    }
    assert_eq!(store.stats().await.expect("stats").in_state(State::Pending), 180);
}

#[tokio::test]
async fn claims_walk_their_index_and_neither_sort_nor_scan() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redrive.db");
    let store = open(&path);
    let later = Start::After(Duration::from_secs(3600));
    for batch in 0..20 {
        let jobs = (0..1000).map(|n| NewJob { start: later, ..job(batch * 1000 + n) });
        store.enqueue(jobs.collect()).await.expect("enqueued");
    }
    drop(store);
    let conn = Connection::open(&path).expect("opens");
    for (sql, index) in [
        (include_str!("../sql/claim_due.sql"), "INDEX redrive_due (lane=? AND next_run_at<?)"),
        (include_str!("../sql/claim_next.sql"), "INDEX redrive_due (lane=?)"),
        (include_str!("../sql/reclaim_expired.sql"), "INDEX redrive_leases (lease_until<?)"),
        (
            include_str!("../sql/prune_expired.sql"),
            "INDEX redrive_finished (state=? AND finished_at>? AND finished_at<?)",
        ),
        (
            include_str!("../sql/resume_live.sql"),
            "COVERING INDEX redrive_children (parent=? AND branch=? AND state<?)",
        ),
        (include_str!("../sql/sweep.sql"), "INDEX redrive_awaiting (id>?)"),
        (include_str!("../sql/export.sql"), "INDEX redrive_ids (id>?)"),
        (include_str!("../sql/look.sql"), "COVERING INDEX redrive_ids (id<?)"),
        (include_str!("../sql/look_dead.sql"), "COVERING INDEX redrive_dead (id<?)"),
        (include_str!("../sql/look_rest.sql"), "COVERING INDEX redrive_ids (id<?)"),
        (include_str!("../sql/look_rest_dead.sql"), "COVERING INDEX redrive_dead (id<?)"),
    ] {
        // Only jobs that ended, or whose leases ran out, in the same millisecond are put in order by id.
        // The lists of wanted lanes and of held leases are looked up row by row.
        let small = [
            "USE TEMP B-TREE FOR LAST TERM OF ORDER BY\n",
            "LIST SUBQUERY 1\n",
            "LIST SUBQUERY 2\n",
            "SCAN json_each VIRTUAL TABLE INDEX 1:\n",
            "CREATE BLOOM FILTER\n",
            "CORRELATED SCALAR SUBQUERY 1\n",
            "SEARCH parent USING INDEX redrive_ids (id=?)\n",
        ];
        let plan = small.iter().fold(plan(&conn, sql), |plan, part| plan.replace(part, ""));
        assert_eq!(plan, format!("SEARCH redrive_jobs USING {index}\n"), "{sql}");
    }
    let due = plan(&conn, include_str!("../sql/claim_due.sql"));
    assert!(!due.contains("TEMP"), "thousands may be due in the same millisecond: {due}");
}

fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
    let mut rows = statement.raw_query();
    let mut plan = String::new();
    while let Some(row) = rows.next().expect("a row") {
        plan += &row.get::<_, String>(3).expect("text");
        plan.push('\n');
    }
    plan
}
