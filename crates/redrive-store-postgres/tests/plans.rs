//! Plans stay what they are meant to be, whatever lies in the table: no claim sorts or scans a backlog.

use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const WANTED: &str = include_str!("../sql/claim_wanted.sql");
const ONE: &str = include_str!("../sql/claim_one.sql");
const MANY: &str = include_str!("../sql/claim_many.sql");
const CLAIM: &str = include_str!("../sql/claim.sql");

const LIMIT: i64 = 100;

/// Rows of every sort in several lanes: due, in the future, running, done.
const BACKLOG: &str = "
    INSERT INTO redrive.lanes (queue, kind, priority)
    SELECT q, k, p FROM unnest(ARRAY['a', 'b']) q, unnest(ARRAY['x', 'y']) k, unnest(ARRAY[5, 6]) p;
    INSERT INTO redrive.jobs (id, lane, state, next_run_at, created_at, began_at, lease_until, finished_at, tenant, policy, payload)
    SELECT gen_random_uuid(), 1 + n % 8, state, now_ms + CASE state WHEN 3 THEN 3600000 + n ELSE -n END, 0, 0,
      CASE state WHEN 2 THEN now_ms + 30000 END, CASE state WHEN 4 THEN now_ms - n END, '', 'default@1', 'x'
    FROM (
      SELECT n, (ARRAY[0, 1, 2, 3, 4, 4])[1 + n % 6]::smallint AS state, (extract(epoch FROM now()) * 1000)::bigint AS now_ms
      FROM generate_series(1, 240000) AS n
    ) AS rows;
    UPDATE redrive.jobs SET state = 0 WHERE state = 3";

async fn backlog() -> (Postgres, Client) {
    let server = Postgres::start_with(&[("fsync", "off"), ("autovacuum", "off")]);
    PostgresStore::migrate(&server.address()).await.expect("the tables are made");
    let (client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.expect("it answers");
    tokio::spawn(connection);
    client.batch_execute(BACKLOG).await.expect("rows");
    (server, client)
}

/// The plan of a statement as it ran.
async fn plan(client: &Client, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Value {
    let sql = format!("EXPLAIN (ANALYZE, FORMAT JSON) {sql}");
    let rows = client.query_typed(&sql, parameters).await.expect("a plan");
    let plan: Value = rows[0].get(0);
    plan[0]["Plan"].clone()
}

/// Every node of a plan.
fn nodes(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(below).collect()
}

fn touches_jobs(node: &Value) -> bool {
    node["Relation Name"] == "jobs"
}

/// Rows that a node looked at, those that it threw away included.
fn looked_at(node: &Value) -> f64 {
    let count = |name: &str| node[name].as_f64().unwrap_or(0.0);
    (count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Index Recheck"))
        * count("Actual Loops")
}

fn check_reads(plan: &Value, most: f64) {
    for node in nodes(plan) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        assert!(!(kind == "Seq Scan" && touches_jobs(node)), "a sequential scan:\n{plan:#}");
        assert!(!(kind.contains("Bitmap") && touches_jobs(node)), "a bitmap:\n{plan:#}");
        if touches_jobs(node) {
            assert!(looked_at(node) <= most, "{kind} looked at {}:\n{plan:#}", looked_at(node));
        }
    }
}

async fn claim(client: &Client, choice: &str, queues: &[&str], kinds: &[&str]) -> Value {
    let sql = format!("{WANTED}{ONE_OR_MANY}{CLAIM}", ONE_OR_MANY = choice);
    let now: Option<i64> = None;
    let (lanes, at, ids): (Vec<i32>, Vec<i64>, Vec<Uuid>) = Default::default();
    let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
        (&now, Type::INT8),
        (&queues, Type::TEXT_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
        (&LIMIT, Type::INT8),
        (&lanes, Type::INT4_ARRAY),
        (&at, Type::INT8_ARRAY),
        (&ids, Type::UUID_ARRAY),
        (&"w", Type::TEXT),
        (&30_000_i64, Type::INT8),
    ];
    plan(client, &sql, &parameters).await
}

#[tokio::test]
async fn claims_walk_their_index_and_neither_sort_nor_scan() {
    let (_server, client) = backlog().await;
    // Without statistics, as after a sudden load, and with them.
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        let plan = claim(&client, ONE, &["a"], &["x"]).await;
        check_reads(&plan, LIMIT as f64 + 2.0);
        for node in nodes(&plan) {
            let sorts = node["Node Type"].as_str().is_some_and(|kind| kind.contains("Sort"));
            assert!(!(sorts && nodes(node).into_iter().any(touches_jobs)), "a sort of jobs:\n{plan:#}");
        }
    }
}

#[tokio::test]
async fn claims_from_many_lanes_look_at_no_more_than_each_may_give() {
    let (_server, client) = backlog().await;
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        // Eight lanes, each of which could give all.
        check_reads(&claim(&client, MANY, &[], &[]).await, 8.0 * (LIMIT as f64 + 2.0));
    }
}

#[tokio::test]
async fn reclaim_settle_and_extend_go_by_their_indexes() {
    let (server, client) = backlog().await;
    drop(PostgresStore::open(&server.address(), Options::default()).await.expect("it opens"));
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        let now: Option<i64> = None;
        let kinds: Vec<&str> = vec![];
        let reclaim: [(&(dyn ToSql + Sync), Type); 6] = [
            (&now, Type::INT8),
            (&kinds, Type::TEXT_ARRAY),
            (&LIMIT, Type::INT8),
            (&i64::MIN, Type::INT8),
            (&"w", Type::TEXT),
            (&30_000_i64, Type::INT8),
        ];
        check_reads(&plan(&client, include_str!("../sql/reclaim.sql"), &reclaim).await, LIMIT as f64);
        let held = "SELECT id, epoch FROM redrive.jobs WHERE state = 2 LIMIT 100";
        let held = client.query(held, &[]).await.expect("running rows");
        let ids: Vec<Uuid> = held.iter().map(|row| row.get(0)).collect();
        let epochs: Vec<i64> = held.iter().map(|row| row.get(1)).collect();
        let extend: [(&(dyn ToSql + Sync), Type); 4] = [
            (&now, Type::INT8),
            (&ids, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&30_000_i64, Type::INT8),
        ];
        check_reads(&plan(&client, include_str!("../sql/extend.sql"), &extend).await, LIMIT as f64);
        let settle = include_str!("../sql/settle_plain.sql");
        check_reads(&plan(&client, settle, &extend[..3]).await, LIMIT as f64);
    }
}
