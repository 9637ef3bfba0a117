//! Checks query plans, whatever the contents of the tables: for example, no claim sorts or scans a backlog.

mod stored_plans;
mod waits_and_reads;

use std::fmt::Display;

use redrive_sql::Statement;
use redrive_store_postgres::PostgresStore;
use redrive_testkit::servers::Postgres;
use serde_json::Value;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use uuid::Uuid;

use crate::sql;

const LIMIT: usize = 100;

/// Rows in eight lanes: due, retrying, in the future, running and ended, some of them with partition keys.
const BACKLOG: &str = r"
    INSERT INTO redrive.lanes (queue, kind, priority)
    SELECT q, k, p FROM unnest(ARRAY['a', 'b']) q, unnest(ARRAY['x', 'y']) k, unnest(ARRAY[5, 6]) p;
    CREATE TEMP TABLE backlog AS
    SELECT
      n, gen_random_uuid() AS id, 1 + n % 8 AS lane, state, now_ms, now_ms + CASE state WHEN 3 THEN 3600000 + n ELSE -n END AS due,
      CASE WHEN n % 40 < 6 THEN E'a\x1f' || n % 5000 END AS partition
    FROM (
      SELECT n, (ARRAY[0, 1, 2, 3, 4, 4])[1 + n % 6]::smallint AS state, (extract(epoch FROM now()) * 1000)::bigint AS now_ms
      FROM generate_series(1, 240000) AS n
    ) AS rows;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, key, payload, partition, strict)
    SELECT
      id, lane, due, 0, '', 'default@1', CASE WHEN n % 10 = 0 THEN 'key-' || n END, 'x', partition,
      partition IS NOT NULL AND n % 2 = 0
    FROM backlog;
    INSERT INTO redrive.progress (id, epoch, began_at, next_run_at, attempt)
    SELECT id, 65537, due, due, 1 FROM backlog WHERE state = 1;
    INSERT INTO redrive.ready (lane, due, id, state, progress, partition, strict)
    SELECT lane, due, id, state % 3, state = 1, partition, partition IS NOT NULL AND n % 2 = 0 FROM backlog WHERE state IN (0, 1, 3);
    INSERT INTO redrive.claims (claim, lease_until, started_at, worker, ids)
    SELECT 2 + n / 600, min(now_ms) + 30000 + n / 600, 0, 'w', array_agg(id ORDER BY id) FROM backlog WHERE state = 2 GROUP BY n / 600;
    SELECT setval('redrive.claim_numbers', 100000);
    INSERT INTO redrive.slots (partition, id) SELECT partition, id FROM backlog WHERE state = 2 AND partition IS NOT NULL;
    INSERT INTO redrive.ordered (partition, id)
    SELECT partition, id FROM backlog WHERE state < 4 AND partition IS NOT NULL AND n % 2 = 0;
    INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state, output)
    SELECT id, 65537, now_ms - n, 1, CASE WHEN n % 40 = 4 THEN 5 ELSE 4 END, 'x' FROM backlog WHERE state = 4;
    INSERT INTO redrive.attempts (job, epoch, run, attempt, started_at, duration_ms, outcome, led_to)
    SELECT id, 65537, 1, 1, 0, 1, 'done', 4 FROM backlog WHERE state IN (1, 4);
    INSERT INTO redrive.starts (scope, at, jobs) SELECT 'b', now_ms - n * 1000, 1 FROM backlog WHERE n < 20000";

/// Parents that wait for children, most of which have ended, with steps and signals, and jobs that wait for a slot. Every change
/// leaves dead index entries, because vacuum is blocked. The ids of the children grow, as in reality.
const FAMILIES: &str = r"
    CREATE TEMP TABLE parents AS
    SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid AS id FROM generate_series(1, 20) AS n;
    CREATE TEMP TABLE family AS
    SELECT parents.id AS parent, n, (lpad(to_hex(n), 8, '0') || substr(gen_random_uuid()::text, 9))::uuid AS id
    FROM parents, generate_series(1, 10000) AS n;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload)
    SELECT id, 1, 0, 0, '', 'default@1', 'x' FROM parents;
    INSERT INTO redrive.progress (id, epoch, began_at, next_run_at, started_at, attempt, has_children)
    SELECT id, 65537, 0, 0, 0, 1, true FROM parents;
    INSERT INTO redrive.waiting (id, due, lane, awaits, awaits_branch, awaits_failures) SELECT id, 0, 1, 1, 0, 3 FROM parents;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch)
    SELECT id, 1, 0, 0, '', 'default@1', 'x', parent, 0 FROM family;
    INSERT INTO redrive.children (parent, id, branch) SELECT parent, id, 0 FROM family;
    INSERT INTO redrive.claims (claim, lease_until, started_at, worker, ids)
    SELECT 90000, 0, 0, 'w', array_agg(id ORDER BY id) FROM family WHERE n = 10000;
    DELETE FROM redrive.children USING family WHERE children.id = family.id AND n < 10000 AND n % 16 > 0;
    UPDATE redrive.children SET stage = 2 FROM family WHERE children.id = family.id AND n < 10000;
    INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state)
    SELECT id, 65537, 0, 1, CASE WHEN n % 16 = 0 THEN 5 ELSE 4 END FROM family WHERE n < 10000;
    INSERT INTO redrive.waiting (id, due, lane, awaits, strict, partition)
    SELECT gen_random_uuid(), n, 1 + n % 8, 3, n % 2 = 0, E'a\x1f' || n % 100 FROM generate_series(1, 50000) AS n;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, partition, strict)
    SELECT id, lane, due, 0, '', 'default@1', 'x', partition, strict FROM redrive.waiting WHERE awaits = 3;
    INSERT INTO redrive.steps SELECT id, place, 0, 'step', 'x' FROM backlog, generate_series(0, 1) AS place WHERE state = 2;
    INSERT INTO redrive.signals (job, id, name, value, taken)
    SELECT id, gen_random_uuid(), 'go', 'x'::bytea, true FROM parents, generate_series(1, 2000)
    UNION ALL SELECT id, gen_random_uuid(), 'go', 'x'::bytea, true FROM family;
    INSERT INTO redrive.uniques (tenant, kind, key, job) SELECT '', 'x', id::text, id FROM family;
    -- A parent with many live children, some of which run.
    CREATE TEMP TABLE siblings AS SELECT n, gen_random_uuid() AS id FROM generate_series(1, 50000) AS n;
    INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch)
    SELECT id, 1, 0, 0, '', 'default@1', 'x', '00000000-0000-7000-9000-000000000000', 0 FROM siblings;
    INSERT INTO redrive.children (parent, id, branch) SELECT '00000000-0000-7000-9000-000000000000', id, 0 FROM siblings;
    INSERT INTO redrive.claims (claim, lease_until, started_at, worker, ids)
    SELECT 90001, 0, 0, 'w', array_agg(id ORDER BY id) FROM siblings WHERE n <= 100";

/// The tables that grow with the number of jobs.
const LARGE_TABLES: [&str; 13] = [
    "jobs", "ready", "progress", "waiting", "ended", "children", "slots", "ordered", "attempts", "steps",
    "signals", "uniques", "starts",
];

/// The number of parents, and of children that each has.
const PARENTS: usize = 20;
const CHILDREN: usize = 10_000;
/// The number of failed children that each has.
const FAILURES: usize = CHILDREN / 16;

/// Without statistics, as after a sudden load, and with statistics.
const STATISTICS: [&str; 2] = ["SELECT 1", "ANALYZE"];

/// The types or arguments of a prepared statement. One without arguments has no parentheses.
fn parenthesized(list: &str) -> String {
    if list.is_empty() { String::new() } else { format!("({list})") }
}

/// A server with many jobs, and sessions that keep it as it is.
struct Fixture {
    _server: Postgres,
    client: Client,
    _old_snapshot: Client,
}

impl Fixture {
    async fn open(contents: &[&str]) -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("autovacuum", "off")]);
        PostgresStore::migrate(&server.address()).await.expect("the tables are created");
        let (client, old_snapshot) = (connect(&server).await, connect(&server).await);
        // An old snapshot, like that of a backup, blocks vacuum from here on.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        old_snapshot.batch_execute(begin).await.expect("begun");
        for sql in contents {
            client.batch_execute(sql).await.expect("rows");
        }
        Self { _server: server, client, _old_snapshot: old_snapshot }
    }

    async fn prepare(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect(sql);
    }

    /// The ids that a query returns.
    async fn ids(&self, sql: &str) -> Vec<Uuid> {
        self.client.query(sql, &[]).await.expect(sql).iter().map(|row| row.get(0)).collect()
    }

    /// Runs a statement with these arguments and returns its plan. Nothing that the statement changes is kept.
    async fn plan(&self, statement: &Statement, arguments: &[String]) -> Plan {
        self.plan_after("SELECT 1", statement.text(), arguments).await
    }

    /// The same after another statement.
    async fn plan_after(&self, before: &str, text: &str, arguments: &[String]) -> Plan {
        let arguments = parenthesized(&arguments.join(", "));
        // The first execution has a plan of its own for these arguments, like a statement that the store sends.
        let sql = format!(
            "BEGIN; {before}; PREPARE planned AS {text};\nEXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned {arguments}; \
             ROLLBACK; DEALLOCATE planned"
        );
        self.explained(text, &sql).await
    }

    /// The only plan that `sql` returns.
    async fn explained(&self, text: &str, sql: &str) -> Plan {
        let messages = self.client.simple_query(sql).await.unwrap_or_else(|error| panic!("{error:?}: {sql}"));
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let json: String =
            rows.filter(|text| text.starts_with(['[', ' ', ']'])).collect::<Vec<_>>().join("\n");
        let plan: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        Plan { statement: text.lines().next().unwrap_or_default().to_owned(), root: plan[0]["Plan"].clone() }
    }
}

async fn connect(server: &Postgres) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// The plan of a statement that ran.
struct Plan {
    statement: String,
    root: Value,
}

impl Plan {
    /// Fails if a node scans a large table, or reads more than `most` rows of one.
    fn reads_at_most(&self, most: usize) -> &Self {
        for node in nodes(&self.root) {
            let kind = kind(node);
            assert!(!(kind == "Seq Scan" && is_large(node)), "a sequential scan: {self}");
            // A bitmap scan also counts dead entries, of which each row has some here.
            let most = if kind == "Bitmap Index Scan" { 10 * most } else { most };
            if is_large(node) || kind == "Bitmap Index Scan" && !is_small_index(node) {
                assert!(examined(node) <= most as f64, "{kind} read {} rows: {self}", examined(node));
            }
        }
        self
    }

    /// Also rejects bitmap scans of these tables, which must be complete before the first row, and sorts of their rows.
    fn reads_in_order(&self, tables: &[&str]) -> &Self {
        let touches = |node: &Value| tables.iter().any(|table| node["Relation Name"] == *table);
        for node in nodes(&self.root) {
            assert!(!(kind(node).contains("Bitmap") && touches(node)), "a bitmap: {self}");
            let sorts = kind(node).contains("Sort");
            assert!(!(sorts && nodes(node).into_iter().any(touches)), "a sort of {tables:?}: {self}");
        }
        self
    }

    /// Fails if all scans of a table together read more than `most` pages.
    fn reads_pages_at_most(&self, table: &str, most: usize) -> &Self {
        let scans = nodes(&self.root)
            .into_iter()
            .filter(|node| node["Relation Name"] == *table && kind(node) != "ModifyTable");
        let pages: f64 = scans
            .map(|node| {
                let count = |name: &str| node[name].as_f64().unwrap_or(0.0);
                count("Shared Hit Blocks") + count("Shared Read Blocks")
            })
            .sum();
        assert!(pages <= most as f64, "{pages} pages of {table}: {self}");
        self
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{:#}", self.statement, self.root)
    }
}

/// Every node of a plan.
fn nodes(plan: &Value) -> Vec<&Value> {
    let inner = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(inner).collect()
}

fn kind(node: &Value) -> &str {
    node["Node Type"].as_str().unwrap_or_default()
}

fn is_large(node: &Value) -> bool {
    LARGE_TABLES.iter().any(|name| node["Relation Name"] == *name)
}

/// Whether an index belongs to a table that stays small.
fn is_small_index(node: &Value) -> bool {
    let name = node["Index Name"].as_str().unwrap_or_default();
    ["claims_", "lanes_", "records_", "counts_", "closing_"].iter().any(|small| name.starts_with(small))
}

/// The rows that a node read, including those that it discarded.
fn examined(node: &Value) -> f64 {
    let count = |name: &str| node[name].as_f64().unwrap_or(0.0);
    (count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Index Recheck"))
        * count("Actual Loops")
}

fn text(value: impl Display) -> String {
    value.to_string()
}

fn null() -> String {
    "NULL".to_owned()
}

/// An array of this type. The elements need no quotes inside the literal.
fn array<T: Display>(items: impl IntoIterator<Item = T>, kind: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("'{{{}}}'::{kind}[]", items.join(","))
}

fn uuids(ids: &[Uuid]) -> String {
    array(ids, "uuid")
}

/// The same element many times.
fn repeat(item: impl Display + Clone, count: usize, kind: &str) -> String {
    array(std::iter::repeat_n(item, count), kind)
}

/// The jobs of a claim, and their epochs.
struct Held {
    ids: Vec<Uuid>,
    epoch: i64,
}

impl Held {
    async fn read(fixture: &Fixture, claim: i64) -> Self {
        let ids = fixture.ids(&format!("SELECT unnest(ids) FROM redrive.claims WHERE claim = {claim}")).await;
        Self { ids, epoch: claim << 16 | 1 }
    }

    fn epochs(&self) -> String {
        repeat(self.epoch, self.ids.len(), "bigint")
    }

    fn claim(&self) -> i64 {
        self.epoch >> 16
    }

    /// The arguments of the statement `settle`.
    fn settle(&self, state: i16) -> Vec<String> {
        let count = self.ids.len();
        let nulls = |kind| repeat("NULL", count, kind);
        let awaits = if state == 3 { repeat(0, count, "smallint") } else { nulls("smallint") };
        let mut arguments = vec![null(), text(0), null(), uuids(&self.ids), self.epochs()];
        arguments.extend([
            repeat(state, count, "smallint"),
            repeat(state, count, "smallint"),
            nulls("bigint"),
        ]);
        arguments.extend([repeat(0, count, "integer"), repeat(0, count, "bigint"), nulls("text")]);
        arguments.extend([nulls("integer"), nulls("text"), nulls("bytea"), awaits]);
        arguments.extend([nulls("text"), nulls("integer"), nulls("bigint")]);
        // No attempts and no follow-ups.
        arguments.extend(std::iter::repeat_n("'{}'".to_owned(), 27));
        arguments.extend([text(7), text(true), array([self.claim()], "bigint")]);
        arguments
    }
}

fn claim_arguments(queues: &str, kinds: &str) -> Vec<String> {
    let mut arguments = vec![null(), format!("'{queues}'"), format!("'{kinds}'"), text(LIMIT)];
    arguments.extend(["'{}'", "'{}'", "'{}'", "'w'", "30000", "true"].map(text));
    arguments
}

/// The arguments of the statement `count_usage`: the running jobs and recent starts of two queues and of these partitions.
fn usage_arguments(partitions: &str, all_entries: bool) -> Vec<String> {
    let mut arguments = vec![null(), text("'{a,b}'"), text("'{a,b}'"), text("'{NULL,60000}'")];
    arguments.extend([partitions.to_owned(), repeat("NULL", LIMIT, "bigint")]);
    arguments.extend([repeat(2, LIMIT, "bigint"), repeat("t", LIMIT, "boolean"), repeat(1, LIMIT, "bigint")]);
    arguments.push(text(all_entries));
    arguments
}

#[tokio::test]
async fn claims_settlements_and_heartbeats_use_their_indexes() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let lifecycle = |name| sql::LIFECYCLE.statement(name);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let claim = fixture.plan(&lifecycle("claim_whole_lanes"), &claim_arguments("{a}", "{x}")).await;
        claim.reads_at_most(2 * LIMIT + 2).reads_in_order(&["ready", "jobs", "progress"]);
        // Eight lanes, each with enough due jobs for the whole claim.
        let claim = fixture.plan(&lifecycle("claim_by_due_time"), &claim_arguments("{}", "{}")).await;
        claim.reads_at_most(8 * (LIMIT + 2));

        let held = Held::read(&fixture, 5).await;
        let (ids, epochs, count) = (uuids(&held.ids), held.epochs(), held.ids.len());
        assert_eq!(count, LIMIT);
        let ones = || repeat(1, count, "integer");
        let success = [
            null(),
            ids.clone(),
            epochs.clone(),
            ones(),
            ones(),
            repeat("NULL", count, "text"),
            text("'{5}'"),
        ];
        fixture.plan(&sql::SETTLE.statement("settle_success"), &success).await.reads_at_most(LIMIT);
        // Retrying, waiting for a signal, succeeded, dead.
        for state in [1, 3, 4, 5] {
            fixture.plan(&sql::SETTLE.statement("settle"), &held.settle(state)).await.reads_at_most(LIMIT);
        }
        let extend = [null(), text("'{5,6,7,8}'"), text(30_000)];
        fixture.plan(&sql::SETTLE.statement("extend"), &extend).await.reads_at_most(LIMIT);
        let some = uuids(&held.ids[..50]);
        let extend = [null(), some, repeat(held.epoch, 50, "bigint"), text(30_000)];
        fixture.plan(&sql::SETTLE.statement("extend_some"), &extend).await.reads_at_most(LIMIT);
        let expired = [text(i64::MAX), text(64), text(0), text("'{}'")];
        fixture.plan(&sql::SETTLE.statement("lock_expired"), &expired).await.reads_at_most(64);
        for kinds in ["'{}'", "'{x}'"] {
            // Two claims, one of which the caller holds.
            let (claims, parts) = (text("'{5,6}'"), text("'{0,0}'"));
            let taken =
                [null(), text(kinds), text(LIMIT), text(30_000), claims, parts, ids.clone(), epochs.clone()];
            fixture.plan(&sql::SETTLE.statement("reclaim"), &taken).await.reads_at_most(2 * LIMIT);
        }
    }
}

#[tokio::test]
async fn enqueues_use_their_indexes() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let lifecycle = |name| sql::LIFECYCLE.statement(name);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let new: Vec<Uuid> = (0..LIMIT).map(|_| Uuid::now_v7()).collect();
        let nulls = |kind| repeat("NULL", LIMIT, kind);
        let no = || repeat("f", LIMIT, "boolean");
        let mut columns =
            vec![uuids(&new), repeat(1, LIMIT, "integer"), nulls("bigint"), repeat(0, LIMIT, "bigint")];
        columns.extend([
            nulls("bigint"),
            nulls("bigint"),
            repeat("\"\"", LIMIT, "text"),
            repeat("default@1", LIMIT, "text"),
        ]);
        columns.extend([
            nulls("text"),
            nulls("bytea"),
            nulls("text"),
            nulls("text"),
            repeat("x", LIMIT, "bytea"),
        ]);
        columns.extend([nulls("uuid"), nulls("integer"), nulls("text"), no(), no()]);
        let horizon = [null(), text(1_000), null()];
        let enqueue = [&horizon[..], &[text(LIMIT)], &columns].concat();
        fixture.plan(&lifecycle("enqueue"), &enqueue).await.reads_at_most(LIMIT);
        let keys = (0..LIMIT).map(|number| format!("key-{}", 10 * number));
        let existing = [uuids(&new), repeat("\"\"", LIMIT, "text"), array(keys, "text")];
        fixture.plan(&lifecycle("find_existing"), &existing).await.reads_at_most(LIMIT);
        let holders = fixture.ids("SELECT job FROM redrive.uniques LIMIT 100").await;
        // While the holder lives, and replace.
        for rule in [0, 2] {
            let unique = [
                repeat("x", LIMIT, "text"),
                array(&holders, "text"),
                repeat(rule, LIMIT, "smallint"),
                nulls("bigint"),
            ];
            let unique = [&horizon[..], &columns, &unique].concat();
            fixture.plan(&lifecycle("enqueue_unique"), &unique).await.reads_at_most(LIMIT);
        }
    }
}

#[tokio::test]
async fn claims_under_limits_use_their_indexes() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let limits = |name| sql::LIMITS.statement(name);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let lanes = [text("'{1,2,3,4,5,6,7,8}'"), text("'{t,t,t,t,f,f,f,f}'")];
        let candidates = [&[null()], &lanes[..], &[text(LIMIT)]].concat();
        fixture.plan(&limits("claim_candidates"), &candidates).await.reads_at_most(8 * LIMIT);
        fixture.plan(&limits("next_due"), &lanes[..1]).await.reads_at_most(8);
        let sql = "SELECT id, ctid::text FROM redrive.ready WHERE partition IS NOT NULL AND due < 2000000000000 \
            ORDER BY lane, due, id LIMIT 100";
        let due = fixture.client.query(sql, &[]).await.expect("due jobs");
        let ids = array(due.iter().map(|row| row.get::<_, Uuid>(0)), "uuid");
        let positions = array(due.iter().map(|row| format!("\"{}\"", row.get::<_, String>(1))), "tid");
        let partitions = array((0..LIMIT).map(|key| format!("a\u{1f}{key}")), "text");
        for all_entries in [false, true] {
            let usage = usage_arguments(&partitions, all_entries);
            // The queue has a start every second, and its rate counts those of a minute.
            fixture.plan(&limits("count_usage"), &usage).await.reads_at_most(3 * LIMIT);
        }
        let (none, until) = (text("'{}'"), repeat(i64::MAX, LIMIT, "bigint"));
        // All are leased, all wait for a slot, all are delayed.
        for [waiting, delayed, until] in [
            [none.clone(), none.clone(), none.clone()],
            [ids.clone(), none.clone(), none.clone()],
            [none.clone(), ids.clone(), until],
        ] {
            let jobs = [text(2_000_000_000_000_i64), ids.clone(), positions.clone()];
            let decisions = [waiting, delayed, until, none.clone(), text("'w'"), text(30_000)];
            let apply = [jobs.as_slice(), &decisions].concat();
            fixture.plan(&limits("apply_claim"), &apply).await.reads_at_most(LIMIT);
        }
        fixture.plan(&limits("read_leased"), &[text("'{5}'"), text("'{}'")]).await.reads_at_most(LIMIT);
        fixture.plan(&limits("find_slot_waiters"), &[]).await.reads_at_most(1);
        let find = limits("find_partitions_to_serve");
        fixture.plan(&find, std::slice::from_ref(&partitions)).await.reads_at_most(2 * LIMIT);
        // Three waiting jobs of each of a hundred partitions, in each of four lanes.
        let read = [null(), partitions, repeat(2, LIMIT, "bigint"), repeat(3, LIMIT, "bigint")];
        fixture.plan(&limits("read_partitions"), &read).await.reads_at_most(4 * 3 * LIMIT);
        let waiting = fixture.ids("SELECT id FROM redrive.waiting WHERE awaits = 3 LIMIT 100").await;
        fixture.plan(&limits("give_slots"), &[uuids(&waiting)]).await.reads_at_most(LIMIT);
    }
}
