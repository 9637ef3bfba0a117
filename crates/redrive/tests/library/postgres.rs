//! Several nodes on one Postgres server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{Context, Error, Filter, JobId, NewJob, PageRequest, Policy, Priority, Redrive, Schedule};
use redrive_testkit::servers::Postgres;
use tokio::time::sleep;
use tokio_postgres::NoTls;

use crate::fixture::{Add, job, output, work};

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_in_a_transaction_runs_the_enqueue_middleware() {
    let server = Postgres::start();
    let redrive = Redrive::open(&server.address()).await.unwrap();
    let guarded = redrive.clone().with_enqueue_middleware(|job: NewJob| {
        if job.queue.as_str() == "closed" {
            return Err(Error::refused("closed for today"));
        }
        Ok(NewJob { priority: Priority::MAX, ..job })
    });
    let (mut client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut transaction = client.transaction().await.unwrap();
    let id = guarded.enqueue(Add { a: 1, b: 1 }).enqueue_in(&mut transaction).await.unwrap().id();
    let refused = guarded.enqueue(Add { a: 1, b: 1 }).queue("closed").enqueue_in(&mut transaction).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(redrive.get(id).await.unwrap().is_none(), "the job does not exist before the commit");
    transaction.commit().await.unwrap();
    assert_eq!(job(&redrive, id).await.priority, Priority::MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_schedules_and_their_changes() {
    let server = Postgres::start();
    let nodes =
        [Redrive::open(&server.address()).await.unwrap(), Redrive::open(&server.address()).await.unwrap()];
    let runs = Arc::new(Mutex::new(BTreeMap::<i64, u32>::new()));
    let work = |node: &Redrive, time: Duration| {
        let runs = runs.clone();
        let worker = node.worker().on(move |add: Add, cx: Context| {
            *runs.lock().unwrap().entry(cx.occurrence().unwrap().as_ms()).or_default() += 1;
            async move { Ok(add.a) }
        });
        worker.run_until(sleep(time))
    };
    let operator = Redrive::open(&server.address()).await.unwrap();
    let edits = async {
        sleep(Duration::from_millis(1_500)).await;
        let steps = Schedule::every(Duration::from_millis(200)).unwrap();
        operator.schedule("steps", steps, Add { a: 1, b: 1 }).await.unwrap();
        sleep(Duration::from_millis(2_500)).await;
    };
    let time = Duration::from_millis(4_000);
    let (one, two, ()) = tokio::join!(work(&nodes[0], time), work(&nodes[1], time), edits);
    let (one, two) = (one.unwrap(), two.unwrap());
    let runs = runs.lock().unwrap().clone();
    assert!(runs.len() >= 4, "the change took effect within about a second: {runs:?}");
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    let page = operator.list(Filter::default(), PageRequest::first(1000)).await.unwrap();
    assert!(page.items.len() as u64 >= one.succeeded + two.succeeded);
    let occurrences: Vec<i64> = runs.keys().copied().collect();
    assert!(occurrences.windows(2).all(|pair| pair[1] - pair[0] == 200), "{occurrences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_makes_at_most_two_statements_a_second() {
    let server = Postgres::start_with(&[("log_statement", "all")]);
    let redrive = Redrive::open(&server.address()).await.unwrap();
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    redrive.schedule("nightly", nightly, Add { a: 1, b: 1 }).await.unwrap();
    let watched = Duration::from_secs(10);
    let idle = async {
        sleep(Duration::from_secs(2)).await;
        let before = server.log().len();
        sleep(watched).await;
        server.log().split_off(before)
    };
    let log = Mutex::new(String::new());
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a) });
    worker.run_until(async { *log.lock().unwrap() = idle.await }).await.unwrap();
    let log = log.into_inner().unwrap();
    let statements =
        log.lines().filter(|line| line.contains("execute ") || line.contains("statement: ")).count();
    assert!(statements > 0, "no statement was counted: the log has another format");
    assert!(statements <= 2 * 10, "{statements} statements in {watched:?}:\n{log}");
}

/// Calls `redrive.enqueue` on a connection of its own, and returns the job.
async fn enqueue_by_sql(server: &Postgres) -> JobId {
    let (client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = r#"SELECT redrive.enqueue('add', '{"a":1,"b":2}')"#;
    JobId(client.query_one(sql, &[]).await.unwrap().get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_enqueues_into_a_database_that_was_only_migrated_and_a_worker_runs_it() {
    let server = Postgres::start();
    redrive::migrate(&server.address()).await.unwrap();
    let id = enqueue_by_sql(&server).await;
    let redrive = Redrive::open(&server.address()).await.unwrap();
    let enqueued = job(&redrive, id).await;
    let policy = redrive_core::catalog::content(&**redrive.backend(), &enqueued.policy).await.unwrap();
    assert_eq!((enqueued.policy.to_string().as_str(), policy), ("default@1", Some(Policy::default())));
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    work(&redrive, worker, &[id]).await;
    assert_eq!(output(&redrive, id).await, "3");
    assert_eq!(
        server.run("SELECT id FROM redrive.records WHERE kind = 'policy'"),
        "default@1",
        "a worker that starts later registers no other version"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_uses_an_existing_default_policy_and_does_not_restore_a_removed_one() {
    let server = Postgres::start();
    let redrive = Redrive::open(&server.address()).await.unwrap();
    let name = "default".parse().unwrap();
    let own = Policy::default().with_max_attempts(3).unwrap();
    let registered = redrive_core::catalog::put(&**redrive.backend(), &name, &own).await.unwrap();
    let id = enqueue_by_sql(&server).await;
    assert_eq!(job(&redrive, id).await.policy, registered);
    let policies = || server.run("SELECT count(*) FROM redrive.records WHERE kind = 'policy'");
    let before = policies();
    let removed =
        "UPDATE redrive.records SET value = NULL, version = version + 1 WHERE kind = 'policy.current'";
    server.run(removed);
    let (client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let error = client.batch_execute("SELECT redrive.enqueue('add')").await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("no policy named"), "{error}");
    assert_eq!(policies(), before);
}
