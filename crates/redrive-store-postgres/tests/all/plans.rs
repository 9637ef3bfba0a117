//! Checks query plans, whatever the contents of the tables: for example, no claim sorts or scans a backlog.

use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::sql;

const LIMIT: i64 = 100;

/// Rows in several lanes: due, in the future, running, succeeded.
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
    PostgresStore::migrate(&server.address()).await.expect("the tables are created");
    let (client, connection) =
        tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client.batch_execute(BACKLOG).await.expect("rows");
    (server, client)
}

/// Runs a statement and returns its plan.
async fn plan(client: &Client, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Value {
    let sql = format!("EXPLAIN (ANALYZE, FORMAT JSON) {sql}");
    let rows = client.query_typed(&sql, parameters).await.expect("a plan");
    let plan: Value = rows[0].get(0);
    plan[0]["Plan"].clone()
}

/// Every node of a plan.
fn nodes(plan: &Value) -> Vec<&Value> {
    let inner = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(inner).collect()
}

fn touches_jobs(node: &Value) -> bool {
    node["Relation Name"] == "jobs"
}

/// Whether a node reads a table that grows with the number of jobs.
fn touches_many(node: &Value) -> bool {
    ["jobs", "steps", "signals", "uniques"].iter().any(|name| node["Relation Name"] == *name)
}

/// The rows that a node read, including those that it discarded.
fn examined(node: &Value) -> f64 {
    let count = |name: &str| node[name].as_f64().unwrap_or(0.0);
    (count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Index Recheck"))
        * count("Actual Loops")
}

/// Also rejects bitmap scans, which must be complete before the first row.
fn check_no_bitmap(plan: &Value, most: f64) {
    for node in nodes(plan) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        assert!(!(kind.contains("Bitmap") && touches_jobs(node)), "a bitmap:\n{plan:#}");
    }
    check_rows_read(plan, most);
}

fn check_rows_read(plan: &Value, most: f64) {
    for node in nodes(plan) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        assert!(!(kind == "Seq Scan" && touches_many(node)), "a sequential scan:\n{plan:#}");
        // A bitmap scan also counts dead entries, of which each row has some here.
        let most = if kind == "Bitmap Index Scan" { 10.0 * most } else { most };
        if touches_many(node) || kind == "Bitmap Index Scan" {
            assert!(examined(node) <= most, "{kind} read {} rows:\n{plan:#}", examined(node));
        }
    }
}

async fn claim(client: &Client, statement: &str, queues: &[&str], kinds: &[&str]) -> Value {
    let sql = sql::LIFECYCLE.statement(statement);
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
async fn a_claim_uses_its_index_without_a_sort_or_a_scan() {
    let (_server, client) = backlog().await;
    // Without statistics, as after a sudden load, and with statistics.
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        let plan = claim(&client, "claim_whole_lanes", &["a"], &["x"]).await;
        check_no_bitmap(&plan, LIMIT as f64 + 2.0);
        for node in nodes(&plan) {
            let sorts = node["Node Type"].as_str().is_some_and(|kind| kind.contains("Sort"));
            assert!(!(sorts && nodes(node).into_iter().any(touches_jobs)), "a sort of jobs:\n{plan:#}");
        }
    }
}

#[tokio::test]
async fn a_claim_from_many_lanes_reads_a_bounded_number_of_rows_per_lane() {
    let (_server, client) = backlog().await;
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        // Eight lanes, each with enough due jobs for the whole claim.
        check_no_bitmap(&claim(&client, "claim_by_due_time", &[], &[]).await, 8.0 * (LIMIT as f64 + 2.0));
    }
}

#[tokio::test]
async fn reclaim_settle_and_extend_use_their_indexes() {
    let (server, client) = backlog().await;
    drop(PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens"));
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        let now: Option<i64> = None;
        let kinds: Vec<&str> = vec![];
        let held = "SELECT id, epoch FROM redrive.jobs WHERE state = 2 ORDER BY lease_until, id LIMIT 100";
        let held = client.query(held, &[]).await.expect("running rows");
        let ids: Vec<Uuid> = held.iter().map(|row| row.get(0)).collect();
        let epochs: Vec<i64> = held.iter().map(|row| row.get(1)).collect();
        // Once without expired leases, and once with expired leases only, those of the caller first.
        for now in [None, Some(i64::from(u32::MAX) * 1_000)] {
            let reclaim: [(&(dyn ToSql + Sync), Type); 7] = [
                (&now, Type::INT8),
                (&kinds, Type::TEXT_ARRAY),
                (&LIMIT, Type::INT8),
                (&i64::MIN, Type::INT8),
                (&30_000_i64, Type::INT8),
                (&ids, Type::UUID_ARRAY),
                (&epochs, Type::INT8_ARRAY),
            ];
            let reclaim = plan(&client, &sql::LIFECYCLE.statement("reclaim"), &reclaim).await;
            check_no_bitmap(&reclaim, LIMIT as f64 + held.len() as f64);
        }
        let extend: [(&(dyn ToSql + Sync), Type); 4] = [
            (&now, Type::INT8),
            (&ids, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&30_000_i64, Type::INT8),
        ];
        check_no_bitmap(&plan(&client, &sql::LIFECYCLE.statement("extend"), &extend).await, LIMIT as f64);
        let settle = &sql::LIFECYCLE.statement("settle_success");
        check_no_bitmap(&plan(&client, settle, &extend[..3]).await, LIMIT as f64);
    }
}

/// The number of children per parent, and the number of parents.
const CHILDREN: i64 = 10_000;
const PARENTS: i64 = 20;

/// Parents that wait for children, most of which have ended, with steps and signals. Every change leaves dead index entries, because vacuum
/// is blocked.
const FAMILIES: &str = "
    INSERT INTO redrive.jobs (id, lane, state, next_run_at, created_at, began_at, epoch, tenant, policy, payload,
      awaits, awaits_branch, awaits_failures)
    SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 1, 3, 0, 0, 0, 1, '', 'default@1', 'x', 1, 0, 4294967295
    FROM generate_series(1, 20) AS n;
    INSERT INTO redrive.jobs (id, lane, next_run_at, created_at, began_at, tenant, policy, payload, parent, branch, attempt)
    SELECT gen_random_uuid(), 1, 0, 0, 0, '', 'default@1', 'x', parents.id, 0, n
    FROM redrive.jobs AS parents, generate_series(1, 10000) AS n WHERE parents.awaits = 1;
    UPDATE redrive.jobs SET state = 2, lease_until = 0, epoch = 1 WHERE parent IS NOT NULL;
    UPDATE redrive.jobs SET state = CASE WHEN attempt % 16 = 0 THEN 5 ELSE 4 END, finished_at = 0
    WHERE parent IS NOT NULL AND attempt < 10000;
    INSERT INTO redrive.steps SELECT id, place, 0, 'step', 'x' FROM redrive.jobs, generate_series(0, 1) AS place WHERE state = 2;
    INSERT INTO redrive.signals (job, id, name, value, taken)
    SELECT id, gen_random_uuid(), 'go', 'x'::bytea, true FROM redrive.jobs, generate_series(1, 2000) WHERE awaits = 1
    UNION ALL SELECT id, gen_random_uuid(), 'go', 'x'::bytea, true FROM redrive.jobs WHERE parent IS NOT NULL;
    INSERT INTO redrive.uniques (tenant, kind, key, job)
    SELECT '', 'x', id::text, id FROM redrive.jobs WHERE parent IS NOT NULL";

async fn families() -> (Postgres, Client, Client) {
    let (server, client) = backlog().await;
    let (other, connection) =
        tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    // An old snapshot, like that of a backup, blocks vacuum from here on.
    other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.expect("begun");
    client.batch_execute(FAMILIES).await.expect("rows");
    (server, client, other)
}

async fn ids(client: &Client, condition: &str) -> Vec<Uuid> {
    let sql = format!("SELECT id FROM redrive.jobs WHERE {condition}");
    client.query(sql.as_str(), &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn resume_and_sweep_read_one_live_child_and_the_counted_failures() {
    let (_server, client, _old) = families().await;
    let resume = &sql::STEPS.statement("resume");
    let sweep = &sql::STEPS.statement("sweep");
    let now: Option<i64> = None;
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs, redrive.signals"] {
        client.batch_execute(prepare).await.expect("prepared");
        // Waits for children of which three may fail, with and without children that must end first; for a signal, all of which were
        // taken; and for both.
        let both = r#"awaits = 4, awaits_name = '[{"signal":"go"},{"branch":0,"failures":3}]'"#;
        for (change, cancel_requested, rows_per_parent) in [
            ("awaits = 1, awaits_failures = 3", false, 5.0),
            ("awaits = 1, awaits_failures = 3", true, 5.0),
            ("awaits = 0, awaits_name = 'go'", false, 1.0),
            (both, true, 5.0),
        ] {
            let requested = format!(
                "UPDATE redrive.jobs SET cancel_requested = {cancel_requested} WHERE parent IS NOT NULL AND state = 2"
            );
            client.batch_execute(&requested).await.expect("rows");
            let waiting =
                format!("UPDATE redrive.jobs SET state = 3, {change} WHERE epoch = 1 AND parent IS NULL");
            client.batch_execute(&waiting).await.expect("rows");
            let parents = ids(&client, "awaits IS NOT NULL").await;
            assert_eq!(parents.len() as i64, PARENTS);
            let most = rows_per_parent * PARENTS as f64;
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&now, Type::INT8), (&parents, Type::UUID_ARRAY)];
            check_rows_read(&plan(&client, resume, &parameters).await, most);
            client.batch_execute(&waiting).await.expect("rows");
            let after: Option<Uuid> = None;
            let parameters: [(&(dyn ToSql + Sync), Type); 3] =
                [(&now, Type::INT8), (&after, Type::UUID), (&LIMIT, Type::INT8)];
            check_rows_read(&plan(&client, sweep, &parameters).await, most);
        }
    }
}

#[tokio::test]
async fn a_resume_reads_few_pages_despite_dead_index_entries() {
    let (_server, client, _old) = families().await;
    client.batch_execute("ANALYZE redrive.jobs").await.expect("prepared");
    let resume = &sql::STEPS.statement("resume");
    let parents = ids(&client, "awaits IS NOT NULL LIMIT 1").await;
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}", resume.text());
    let now: Option<i64> = None;
    let rows = client.query_typed(&sql, &[(&now, Type::INT8), (&parents, Type::UUID_ARRAY)]).await;
    let plan: Value = rows.expect("a plan")[0].get(0);
    let failures = CHILDREN as f64 / 16.0;
    let pages = plan[0]["Plan"]["Shared Hit Blocks"].as_f64().unwrap_or(f64::MAX)
        + plan[0]["Plan"]["Shared Read Blocks"].as_f64().unwrap_or(f64::MAX);
    assert!(pages < 2.0 * failures, "{pages} pages:\n{plan:#}");
}

#[tokio::test]
async fn remember_signal_and_prune_use_their_indexes() {
    let (_server, client, _old) = families().await;
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs, redrive.steps, redrive.signals, redrive.uniques"] {
        client.batch_execute(prepare).await.expect("prepared");
        let held = "SELECT id, epoch FROM redrive.jobs WHERE state = 2 ORDER BY id LIMIT 100";
        let held = client.query(held, &[]).await.expect("running rows");
        let jobs: Vec<Uuid> = held.iter().map(|row| row.get(0)).collect();
        let epochs: Vec<i64> = held.iter().map(|row| row.get(1)).collect();
        let count = jobs.len();
        let (places, kinds): (Vec<i64>, Vec<i16>) = (vec![1; count], vec![0; count]);
        let (names, values) = (vec!["step"; count], vec![&b"x"[..]; count]);
        let remember: [(&(dyn ToSql + Sync), Type); 6] = [
            (&jobs, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&places, Type::INT8_ARRAY),
            (&kinds, Type::INT2_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&values, Type::BYTEA_ARRAY),
        ];
        check_rows_read(&plan(&client, &sql::STEPS.statement("remember"), &remember).await, LIMIT as f64);
        let before = [(&jobs as _, Type::UUID_ARRAY), (&places as _, Type::INT8_ARRAY)];
        check_rows_read(&plan(&client, &sql::STEPS.statement("find_steps"), &before).await, LIMIT as f64);
        let parent = ids(&client, "awaits IS NOT NULL LIMIT 1").await[0];
        let signal = "SELECT id FROM redrive.signals WHERE job = $1 LIMIT 1";
        let signal: Uuid = client.query(signal, &[&parent]).await.expect("a signal")[0].get(0);
        let take: [(&(dyn ToSql + Sync), Type); 6] = [
            (&parent, Type::UUID),
            (&7_i64, Type::INT8),
            (&4_i16, Type::INT2),
            (&"step", Type::TEXT),
            (&&b"x"[..], Type::BYTEA),
            (&signal, Type::UUID),
        ];
        check_rows_read(&plan(&client, &sql::STEPS.statement("remember_signal"), &take).await, 1.0);
        let pending: [(&(dyn ToSql + Sync), Type); 3] =
            [(&parent, Type::UUID), (&vec!["go"], Type::TEXT_ARRAY), (&LIMIT, Type::INT8)];
        check_rows_read(&plan(&client, &sql::STEPS.statement("pending_signals"), &pending).await, 1.0);
        let skipped: [(&(dyn ToSql + Sync), Type); 3] =
            [(&jobs[0], Type::UUID), (&epochs[0], Type::INT8), (&vec![signal], Type::UUID_ARRAY)];
        check_rows_read(&plan(&client, &sql::STEPS.statement("skip_signals"), &skipped).await, 1.0);
        let (horizon, latest): (i64, Option<i64>) = (0, None);
        let lock: [(&(dyn ToSql + Sync), Type); 6] = [
            (&latest, Type::INT8),
            (&horizon, Type::INT8),
            (&latest, Type::INT8),
            (&jobs, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&vec![true; count], Type::BOOL_ARRAY),
        ];
        check_rows_read(&plan(&client, &sql::STEPS.statement("lock_leases"), &lock).await, LIMIT as f64);
        let now: Option<i64> = None;
        let prune: [(&(dyn ToSql + Sync), Type); 4] = [
            (&now, Type::INT8),
            (&vec![4_i16], Type::INT2_ARRAY),
            (&vec![0_i64], Type::INT8_ARRAY),
            (&LIMIT, Type::INT8),
        ];
        let passed_over = (PARENTS * CHILDREN) as f64;
        check_rows_read(&plan(&client, &sql::RETENTION.statement("prune"), &prune).await, passed_over);
    }
}

/// Each parent has one live child among thousands that have ended.
#[tokio::test]
async fn a_cancel_reads_only_its_jobs_and_their_live_children() {
    let (_server, client, _old) = families().await;
    let cancel = &sql::OPERATE.statement("cancel");
    let descendants = &sql::OPERATE.statement("cancel_descendants");
    let branches = &sql::OPERATE.statement("cancel_branches");
    let parents = ids(&client, "awaits IS NOT NULL").await;
    let (now, limit): (Option<i64>, i64) = (None, 1_000);
    for (tree, prepare) in [(1_i64, "SELECT 1"), (2, "ANALYZE redrive.jobs, redrive.closing")] {
        client.batch_execute(prepare).await.expect("prepared");
        let (some, others) = if tree == 1 { parents.split_at(5) } else { parents[10..].split_at(5) };
        let (some, others) = (some.to_vec(), others[..5].to_vec());
        let call: [(&(dyn ToSql + Sync), Type); 2] = [(&now, Type::INT8), (&tree, Type::INT8)];
        let most = some.len() as f64;
        let parameters = [&call[..], &[(&some, Type::UUID_ARRAY)]].concat();
        check_rows_read(&plan(&client, cancel, &parameters).await, most);
        let parameters = [&call[..], &[(&limit, Type::INT8)]].concat();
        let descendants_plan = plan(&client, descendants, &parameters).await;
        // A bitmap scan reads the dead entries of all ended children.
        let with_dead = 2.0 * CHILDREN as f64 + 10.0;
        check_rows_read(&descendants_plan, with_dead);
        let children = "SELECT count(*) FROM redrive.jobs WHERE parent = ANY ($1) AND cancel_requested";
        let requested: i64 = client.query(children, &[&some]).await.expect("counted")[0].get(0);
        assert_eq!(requested, 5, "{descendants_plan:#}");
        let fan_outs: [(&(dyn ToSql + Sync), Type); 3] =
            [(&others, Type::UUID_ARRAY), (&vec![0; others.len()], Type::INT4_ARRAY), (&limit, Type::INT8)];
        check_rows_read(&plan(&client, branches, &[&call[..], &fan_outs].concat()).await, with_dead);
    }
}

#[tokio::test]
async fn a_settlement_of_dead_jobs_uses_the_indexes() {
    let (_server, client, _old) = families().await;
    for prepare in ["SELECT 1", "ANALYZE redrive.jobs"] {
        client.batch_execute(prepare).await.expect("prepared");
        let held =
            "SELECT id, epoch FROM redrive.jobs WHERE state = 2 AND parent IS NULL ORDER BY id LIMIT 100";
        let held = client.query(held, &[]).await.expect("running rows");
        let ids: Vec<Uuid> = held.iter().map(|row| row.get(0)).collect();
        let epochs: Vec<i64> = held.iter().map(|row| row.get(1)).collect();
        let count = ids.len();
        let (states, none) = (vec![5_i16; count], vec![None::<i64>; count]);
        let (refunds, pauses) = (vec![0_i32; count], vec![0_i64; count]);
        let (texts, numbers) = (vec![None::<&str>; count], vec![None::<i32>; count]);
        let (bytes, codes) = (vec![None::<&[u8]>; count], vec![None::<i16>; count]);
        let (now, horizon, tree, together): (Option<i64>, i64, i64, bool) = (None, 0, 7, true);
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&now, Type::INT8),
            (&horizon, Type::INT8),
            (&now, Type::INT8),
            (&ids, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&states, Type::INT2_ARRAY),
            (&states, Type::INT2_ARRAY),
            (&none, Type::INT8_ARRAY),
            (&refunds, Type::INT4_ARRAY),
            (&pauses, Type::INT8_ARRAY),
            (&texts, Type::TEXT_ARRAY),
            (&numbers, Type::INT4_ARRAY),
            (&texts, Type::TEXT_ARRAY),
            (&bytes, Type::BYTEA_ARRAY),
            (&codes, Type::INT2_ARRAY),
            (&texts, Type::TEXT_ARRAY),
            (&numbers, Type::INT4_ARRAY),
            (&none, Type::INT8_ARRAY),
        ];
        // No attempts and no follow-ups.
        let (uuid, int8, int4) = (Type::UUID_ARRAY, Type::INT8_ARRAY, Type::INT4_ARRAY);
        let (text, bytea, bool) = (Type::TEXT_ARRAY, Type::BYTEA_ARRAY, Type::BOOL_ARRAY);
        let entries = [&uuid, &int8, &int4, &int4, &int8, &int8, &text, &text, &text];
        let leases = [&uuid, &int8];
        let jobs =
            [&uuid, &int4, &int8, &int8, &int8, &int8, &text, &text, &text, &bytea, &text, &text, &bytea];
        let families = [&uuid, &int4, &text, &bool, &bool];
        let empty = Empty;
        for kind in entries.into_iter().chain(leases).chain(jobs).chain(families) {
            parameters.push((&empty, kind.clone()));
        }
        parameters.extend([(&tree as _, Type::INT8), (&together as _, Type::BOOL)]);
        check_rows_read(&plan(&client, &sql::LIFECYCLE.statement("settle"), &parameters).await, LIMIT as f64);
    }
}

/// An empty array of any type.
#[derive(Debug)]
struct Empty;

impl ToSql for Empty {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Vec::<Option<bool>>::new().to_sql(kind, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

#[tokio::test]
async fn an_export_continues_by_the_index_of_ids() {
    let (_server, client) = backlog().await;
    for prepare in ["SELECT 1", "ANALYZE"] {
        client.batch_execute(prepare).await.expect("prepared");
        for after in [None, Some(Uuid::from_u128(u128::MAX / 2))] {
            let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&after, Type::UUID), (&LIMIT, Type::INT8)];
            let plan = plan(&client, &sql::TRANSFER.statement("export"), &parameters).await;
            // The other tables are empty, so the planner scans them.
            for node in nodes(&plan).into_iter().filter(|node| touches_jobs(node)) {
                let kind = node["Node Type"].as_str().unwrap_or_default();
                assert!(kind.starts_with("Index"), "{kind}:\n{plan:#}");
                assert!(examined(node) <= LIMIT as f64 + 2.0, "read {} rows:\n{plan:#}", examined(node));
            }
        }
    }
}
