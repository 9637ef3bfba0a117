//! The doctor reports each problem of a real server, and nothing else.

use std::time::Duration;

use redrive_core::{Finding, Severity};
use redrive_store_postgres::{PostgresStore, Thresholds};
use redrive_testkit::servers::{PgBouncer, Postgres};
use tokio_postgres::{Client, NoTls};

/// A server with redrive's tables, and default settings except for these.
async fn server(settings: &[(&str, &str)]) -> Postgres {
    let server = Postgres::start_with(settings);
    PostgresStore::migrate(&server.address()).await.expect("the tables are created");
    server
}

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

async fn findings(address: &str) -> Vec<Finding> {
    findings_with(address, &Thresholds::default()).await
}

async fn findings_with(address: &str, thresholds: &Thresholds) -> Vec<Finding> {
    PostgresStore::doctor(address, thresholds).await.expect("the server is reached")
}

/// The warnings and critical findings, as `severity check: what`, without the age of the server's version.
fn problems(findings: &[Finding]) -> Vec<String> {
    let is_problem = |finding: &&Finding| finding.severity > Severity::Note && finding.check != "version";
    let shown = |finding: &Finding| {
        assert!(finding.remedy.is_some(), "the remedy is missing: {finding:?}");
        format!("{} {}: {}", finding.severity.name(), finding.check, finding.what)
    };
    findings.iter().filter(is_problem).map(shown).collect()
}

/// The only problem, which must have this severity and start with this text.
fn the_problem<'a>(findings: &'a [Finding], severity: Severity, check: &str, what: &str) -> &'a Finding {
    let problems = problems(findings);
    let expected = format!("{} {check}: {what}", severity.name());
    assert!(
        matches!(problems.as_slice(), [only] if only.starts_with(&expected)),
        "{expected}, but: {problems:#?}"
    );
    findings
        .iter()
        .find(|finding| finding.severity == severity && finding.check == check)
        .expect("seen above")
}

#[tokio::test]
async fn a_healthy_server_has_no_problems() {
    let server = server(&[]).await;
    let findings = findings(&server.address()).await;
    assert_eq!(problems(&findings), Vec::<String>::new());
    for check in
        ["schema", "durability", "vacuum", "bloat", "indexes", "clock", "connections", "wake-ups", "version"]
    {
        assert!(findings.iter().any(|finding| finding.check == check), "{check} was not checked");
    }
    // The check covers every table whose rows change often.
    let bloat = findings.iter().find(|finding| finding.check == "bloat").expect("seen above");
    let tables = "SELECT relname FROM pg_class WHERE relnamespace = 'redrive'::regnamespace AND relkind = 'r' \
        AND relname NOT IN ('lanes', 'records', 'schema')";
    for table in server.run(tables).lines() {
        assert!(bloat.evidence.contains(&format!("redrive.{table}: ")), "{table}: {bloat:?}");
    }
    let notes: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Note)
        .map(|finding| finding.what.as_str())
        .collect();
    assert!(notes.iter().all(|note| note.contains("checksums")), "{notes:?}");
}

#[tokio::test]
async fn missing_tables_are_reported_and_the_server_is_still_checked() {
    let server = Postgres::start();
    let findings = findings(&server.address()).await;
    the_problem(&findings, Severity::Warning, "schema", "the tables of redrive are missing");
    assert!(findings.iter().any(|finding| finding.check == "wake-ups" && finding.what == "wake-ups arrive"));
    let tables = server.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'redrive'");
    assert_eq!(tables, "0", "the doctor created tables");
}

#[tokio::test]
async fn tables_of_another_version_are_reported() {
    let server = server(&[]).await;
    server.run("INSERT INTO redrive.schema (version, compatible_since) VALUES (99, 98)");
    let findings = findings(&server.address()).await;
    let finding = the_problem(&findings, Severity::Critical, "schema", "the tables are too new");
    assert!(
        finding.evidence.contains("schema version 99")
            && finding.evidence.contains("redrive with schema version 98"),
        "{finding:?}"
    );
}

#[tokio::test]
async fn settings_that_weaken_durability_are_reported_with_their_source() {
    let server = server(&[("fsync", "off"), ("full_page_writes", "off")]).await;
    server.run("ALTER ROLE redrive SET synchronous_commit = off");
    let findings = findings(&server.address()).await;
    let durability: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.check == "durability" && finding.severity > Severity::Note)
        .collect();
    let shown = durability.iter().map(|finding| (finding.severity, finding.evidence.as_str()));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            (Severity::Critical, "fsync = off, from: configuration file"),
            (Severity::Critical, "full_page_writes = off, from: configuration file"),
            (Severity::Warning, "synchronous_commit = off, from: user"),
        ]
    );
    assert_eq!(problems(&findings).len(), 3);
}

#[tokio::test]
async fn commits_that_do_not_wait_for_a_synchronous_standby_are_reported() {
    let server = server(&[]).await;
    server.run("ALTER DATABASE redrive SET synchronous_commit = local");
    assert_eq!(
        problems(&findings(&server.address()).await),
        Vec::<String>::new(),
        "without a standby, local is the same as on"
    );
    // ALTER SYSTEM cannot run in a transaction with other statements.
    server.run("ALTER SYSTEM SET synchronous_standby_names = 'other'");
    server.run("SELECT pg_reload_conf()");
    let findings = findings(&server.address()).await;
    let finding = the_problem(
        &findings,
        Severity::Warning,
        "durability",
        "acknowledged jobs may be lost on a failover",
    );
    assert_eq!(finding.evidence, "synchronous_commit = local, from: database");
}

#[tokio::test]
async fn a_read_only_server_is_reported() {
    let server = server(&[]).await;
    server.run("ALTER DATABASE redrive SET default_transaction_read_only = on");
    let findings = findings(&server.address()).await;
    the_problem(&findings, Severity::Critical, "writes", "the server does not accept writes");
}

#[tokio::test]
async fn a_transaction_that_blocks_vacuum_is_named() {
    let server = server(&[]).await;
    let holder = connect(&format!("{}?application_name=reports", server.address())).await;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'monthly report'")
        .await
        .expect("the statement runs");
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("the statement runs").get(0);
    assert_eq!(
        problems(&findings(&server.address()).await),
        Vec::<String>::new(),
        "the transaction has only begun"
    );

    let soon = Thresholds { vacuum_blocked_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_problem(&found, Severity::Warning, "vacuum", "a transaction blocks vacuum");
    let evidence = &finding.evidence;
    for part in
        [&format!("pid {pid}, for "), "user redrive", "application reports", "idle in transaction", "query: "]
    {
        assert!(evidence.contains(part), "{part}: {evidence}");
    }
    assert!(
        finding
            .remedy
            .as_ref()
            .is_some_and(|remedy| remedy.contains(&format!("pg_terminate_backend({pid})")))
    );

    let critical = Thresholds { vacuum_blocked_critical: Duration::ZERO, ..Thresholds::default() };
    the_problem(
        &findings_with(&server.address(), &critical).await,
        Severity::Critical,
        "vacuum",
        "a transaction",
    );

    // A transaction without a write and without a snapshot does not block vacuum.
    holder.batch_execute("COMMIT; BEGIN; SELECT 1").await.expect("the statement runs");
    assert_eq!(problems(&findings_with(&server.address(), &critical).await), Vec::<String>::new());
}

#[tokio::test]
async fn a_prepared_transaction_and_a_slot_that_block_vacuum_are_named() {
    let server = server(&[("max_prepared_transactions", "2"), ("wal_level", "logical")]).await;
    let client = connect(&server.address()).await;
    let prepare = "BEGIN; INSERT INTO redrive.counts VALUES (0, 0, 0); PREPARE TRANSACTION 'it''s mine'";
    client.batch_execute(prepare).await.expect("the transaction is prepared");
    let soon = Thresholds { vacuum_blocked_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_problem(&found, Severity::Warning, "vacuum", "a prepared transaction blocks vacuum");
    assert!(finding.evidence.starts_with("prepared as \"it's mine\", for "), "{finding:?}");
    let remedy = finding.remedy.clone().expect("seen above");
    let undo = remedy.split(" or ").nth(1).and_then(|rest| rest.split(';').next()).expect("a statement");
    client.batch_execute(undo).await.expect("the remedy works");

    client
        .batch_execute("SELECT pg_create_logical_replication_slot('forgotten', 'test_decoding')")
        .await
        .expect("the slot is created");
    server.run("INSERT INTO redrive.counts VALUES (0, 0, 0)");
    let soon = Thresholds { replication_lag_warning: 1, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_problem(&found, Severity::Warning, "vacuum", "a replication slot blocks vacuum");
    assert!(finding.evidence.starts_with("slot forgotten, read by nobody, "), "{finding:?}");
    assert_eq!(
        problems(&findings(&server.address()).await),
        Vec::<String>::new(),
        "the slot is only a few transactions behind"
    );
}

#[tokio::test]
async fn dead_rows_and_their_cause_are_reported() {
    let server = server(&[]).await;
    server.run("ALTER TABLE redrive.jobs SET (autovacuum_enabled = false)");
    let found = findings(&server.address()).await;
    let finding = the_problem(&found, Severity::Critical, "bloat", "autovacuum is off for redrive.jobs");
    assert!(finding.evidence.starts_with("redrive.jobs: 0 live rows, 0 dead"), "{finding:?}");
    let remedy = finding.remedy.clone().expect("seen above");

    let job = "INSERT INTO redrive.jobs (id, due, created_at, lane, tenant, policy, payload)
               SELECT gen_random_uuid(), 0, 0, 0, '', 'default@1', '' FROM generate_series(1, 400)";
    server.run(job);
    server.run("UPDATE redrive.jobs SET due = 1 WHERE lane = 0");
    // The server updates its statistics when a session is idle or ends.
    let few = Thresholds { dead_rows_min: 300, index_bytes_min: 1, ..Thresholds::default() };
    let found = findings_with(&server.address(), &few).await;
    let bloated = found.iter().find(|finding| finding.what.starts_with("redrive.jobs is bloated"));
    let bloated = bloated.unwrap_or_else(|| panic!("{found:#?}"));
    assert_eq!(bloated.severity, Severity::Warning);
    assert!(bloated.evidence.contains("400 live rows, 400 dead"), "{bloated:?}");

    server.run(&remedy);
    server.run("VACUUM redrive.jobs");
    assert_eq!(problems(&findings_with(&server.address(), &few).await), Vec::<String>::new());
    server.run("DELETE FROM redrive.jobs");
    let found =
        findings_with(&server.address(), &Thresholds { index_bytes_min: 1, ..Thresholds::default() }).await;
    let large = |finding: &&Finding| finding.what.starts_with("the index redrive.jobs_pkey is large");
    let large = found.iter().find(large).unwrap_or_else(|| panic!("{found:#?}"));
    assert!(large.severity == Severity::Note && large.evidence.ends_with("for 0 rows"), "{large:?}");
}

#[tokio::test]
async fn disabled_autovacuum_is_critical() {
    let server = server(&[("autovacuum", "off")]).await;
    let findings = findings(&server.address()).await;
    let finding = the_problem(&findings, Severity::Critical, "bloat", "autovacuum is off: ");
    assert_eq!(finding.evidence, "autovacuum = off, from: configuration file");
}

#[tokio::test]
async fn a_missing_or_different_index_is_reported_with_the_statement_that_creates_it() {
    let server = server(&[]).await;
    for (harm, severity, what) in [
        (
            "ALTER TABLE redrive.ready DROP CONSTRAINT ready_pkey",
            Severity::Critical,
            "the index redrive.ready_pkey is missing",
        ),
        (
            "DROP INDEX redrive.waiting_for_slots",
            Severity::Critical,
            "the index redrive.waiting_for_slots is missing",
        ),
        ("DROP INDEX redrive.ended_dead", Severity::Warning, "the index redrive.ended_dead is missing"),
        (
            "ALTER TABLE redrive.attempts DROP CONSTRAINT attempts_pkey",
            Severity::Critical,
            "the index redrive.attempts_pkey is missing",
        ),
        (
            "DROP INDEX redrive.ended_finished; CREATE INDEX ended_finished ON redrive.ended (state, finished_at)",
            Severity::Warning,
            "the index redrive.ended_finished differs from the one that redrive creates",
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive.jobs_keys'::regclass",
            Severity::Critical,
            "the index redrive.jobs_keys is unfinished",
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive.jobs_pkey'::regclass",
            Severity::Critical,
            "the index redrive.jobs_pkey is unfinished",
        ),
        (
            "ALTER TABLE redrive.records DROP CONSTRAINT records_pkey, ADD CONSTRAINT records_pkey PRIMARY KEY (id, kind)",
            Severity::Critical,
            "the index redrive.records_pkey differs",
        ),
        (
            "ALTER TABLE redrive.lanes DROP CONSTRAINT lanes_queue_kind_priority_key;
             CREATE UNIQUE INDEX lanes_queue_kind_priority_key ON redrive.lanes (queue, kind)",
            Severity::Critical,
            "the index redrive.lanes_queue_kind_priority_key differs",
        ),
    ] {
        server.run(harm);
        let found = findings(&server.address()).await;
        let remedy = the_problem(&found, severity, "indexes", what).remedy.clone().expect("seen above");
        assert!(remedy.contains("INDEX CONCURRENTLY"), "{remedy}");
        remedy.split("; ").for_each(|statement| drop(server.run(statement)));
        assert_eq!(problems(&findings(&server.address()).await), Vec::<String>::new(), "after {remedy}");
    }
}

#[tokio::test]
async fn the_expected_indexes_are_those_of_new_tables() {
    let server = server(&[]).await;
    let fresh = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'redrive'";
    let findings = findings(&server.address()).await;
    let indexes =
        findings.iter().find(|finding| finding.check == "indexes").expect("the indexes were checked");
    assert_eq!(indexes.severity, Severity::Ok, "{indexes:?}");
    // Every listed index exists as listed, and there are no others.
    let count = server.run(fresh);
    assert!(indexes.evidence.starts_with(&format!("{count} indexes, ")), "{count}: {indexes:?}");
}

#[tokio::test]
async fn too_few_connections_are_reported() {
    let server = server(&[("max_connections", "15"), ("superuser_reserved_connections", "3")]).await;
    let address = server.address();
    assert_eq!(problems(&findings(&address).await), Vec::<String>::new());
    let greedy = findings(&format!("{address}?connections=11")).await;
    let finding = the_problem(&greedy, Severity::Critical, "connections", "not even one node");
    assert!(
        finding.evidence.contains("max_connections is 15, 3 of them reserved; 0 are in use"),
        "{finding:?}"
    );
    assert!(finding.evidence.contains("up to 13 (11 for calls, 2 others): 0 nodes fit"), "{finding:?}");

    server.run("ALTER ROLE redrive CONNECTION LIMIT 9");
    let limited = findings(&address).await;
    let finding = the_problem(&limited, Severity::Critical, "connections", "not even one node");
    assert!(finding.evidence.starts_with("the CONNECTION LIMIT of this role is 9; "), "{finding:?}");
    server.run("ALTER ROLE redrive CONNECTION LIMIT -1");

    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(connect(&format!("{address}?application_name=redrive")).await);
    }
    let crowded = findings(&address).await;
    let finding = the_problem(&crowded, Severity::Warning, "connections", "connections are nearly used up");
    assert!(finding.evidence.contains("5 are in use, 5 by redrive;"), "{finding:?}");
    for _ in 5..15 {
        others.push(connect(&address).await);
    }
    let full = findings(&address).await;
    let finding = the_problem(&full, Severity::Critical, "connections", "the server has no connection left");
    assert!(finding.evidence.contains("too many clients"), "{finding:?}");
}

#[tokio::test]
async fn a_pooler_that_loses_wake_ups_is_reported_and_the_remedies_work() {
    let server = server(&[]).await;
    let pooler = PgBouncer::start(&server);
    let found = findings(&pooler.address()).await;
    let finding = the_problem(&found, Severity::Warning, "wake-ups", "wake-ups do not arrive");
    assert!(finding.evidence.contains("through a pooler that shares"), "{finding:?}");

    let direct = findings(&format!("{}?listen=127.0.0.1:{}", pooler.address(), server.port())).await;
    assert_eq!(problems(&direct), Vec::<String>::new());
    let wakes = direct.iter().find(|finding| finding.check == "wake-ups").expect("the check was made");
    assert!(wakes.evidence.contains("came back after") && wakes.evidence.contains("pooler"), "{wakes:?}");

    let off = findings(&format!("{}?listen=off", pooler.address())).await;
    assert_eq!(problems(&off), Vec::<String>::new());
    assert!(off.iter().any(|finding| finding.what.starts_with("wake-ups are switched off")), "{off:#?}");

    let nowhere = findings(&format!("{}?listen=127.0.0.1:1", server.address())).await;
    the_problem(&nowhere, Severity::Critical, "wake-ups", "listening for wake-ups fails");
}

#[tokio::test]
async fn a_notification_queue_that_fills_up_is_reported() {
    let server = server(&[]).await;
    let listener = connect(&server.address()).await;
    listener.batch_execute("LISTEN redrive").await.expect("the session listens");
    listener.batch_execute("BEGIN").await.expect("the open transaction delays notifications");
    server
        .run("SELECT count(pg_notify('redrive', repeat('x', 7000) || i)) FROM generate_series(1, 500) AS i");
    let low = Thresholds { notification_queue_warning: 1e-4, ..Thresholds::default() };
    let found = findings_with(&server.address(), &low).await;
    the_problem(&found, Severity::Warning, "wake-ups", "the notification queue is filling up");
    drop(listener);
}

#[tokio::test]
async fn a_role_with_few_rights_gets_notes_and_no_failure() {
    let server = server(&[]).await;
    server.run("CREATE ROLE watcher LOGIN");
    let holder = connect(&server.address()).await;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .expect("the statement runs");
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("the statement runs").get(0);
    let address = server.address().replace("redrive@", "watcher@");
    let soon = Thresholds { vacuum_blocked_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&address, &soon).await;
    assert_eq!(problems(&found), Vec::<String>::new());
    let note = |what: &str| {
        let note =
            found.iter().find(|finding| finding.severity == Severity::Note && finding.what.contains(what));
        note.unwrap_or_else(|| panic!("{what}: {found:#?}"))
    };
    assert!(note("this role may not write jobs").evidence.contains("USAGE on the schema"), "{found:#?}");
    note("this role may not read the schema version");
    let hidden = note("how long other users' transactions");
    assert!(hidden.evidence.contains(&format!("pid {pid}")), "{hidden:?}");
    assert!(!found.iter().any(|finding| finding.what.contains("could not be made")), "{found:#?}");

    // Every table counts, not only the one of the jobs.
    server.run("GRANT USAGE ON SCHEMA redrive TO watcher");
    server.run("GRANT ALL ON ALL TABLES IN SCHEMA redrive TO watcher");
    server.run("REVOKE DELETE ON redrive.ready FROM watcher");
    let found = findings_with(&address, &soon).await;
    let note = found.iter().find(|finding| finding.what == "this role may not write jobs");
    let evidence = &note.unwrap_or_else(|| panic!("{found:#?}")).evidence;
    assert!(evidence.ends_with(": redrive.claim_numbers, redrive.ready"), "{evidence}");
    server.run("GRANT DELETE ON redrive.ready TO watcher");
    server.run("GRANT USAGE ON SEQUENCE redrive.claim_numbers TO watcher");
    let found = findings_with(&address, &soon).await;
    assert!(!found.iter().any(|finding| finding.what == "this role may not write jobs"), "{found:#?}");

    server.run("GRANT pg_read_all_stats TO watcher");
    the_problem(
        &findings_with(&address, &soon).await,
        Severity::Warning,
        "vacuum",
        "a transaction blocks vacuum",
    );
}

#[tokio::test]
async fn the_clocks_of_one_machine_agree() {
    let server = server(&[]).await;
    let clock = |findings: Vec<Finding>| findings.into_iter().find(|finding| finding.check == "clock");
    let finding = clock(findings(&server.address()).await).expect("the check was made");
    assert_eq!(finding.severity, Severity::Ok, "{finding:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_an_error() {
    let result = PostgresStore::doctor("postgres://nobody@127.0.0.1:1/x", &Thresholds::default()).await;
    assert!(result.is_err_and(|error| error.is_transient()));
}
