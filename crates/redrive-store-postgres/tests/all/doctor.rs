//! The doctor finds what was done to a real server, and nothing else.

use std::time::Duration;

use redrive_core::{Finding, Gravity};
use redrive_store_postgres::{PostgresStore, Thresholds};
use redrive_testkit::servers::{PgBouncer, Postgres};
use tokio_postgres::{Client, NoTls};

/// A server with redrive's tables, as Postgres comes unless told otherwise.
async fn server(settings: &[(&str, &str)]) -> Postgres {
    let server = Postgres::start_with(settings);
    PostgresStore::migrate(&server.address()).await.expect("the tables are made");
    server
}

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.expect("it answers");
    tokio::spawn(connection);
    client
}

async fn findings(address: &str) -> Vec<Finding> {
    findings_with(address, &Thresholds::default()).await
}

async fn findings_with(address: &str, thresholds: &Thresholds) -> Vec<Finding> {
    PostgresStore::doctor(address, thresholds).await.expect("the server is reached")
}

/// What matters, as `gravity check: what`. That the version here has grown old is the calendar's doing.
fn ills(findings: &[Finding]) -> Vec<String> {
    let ill = |finding: &&Finding| finding.gravity > Gravity::Note && finding.check != "version";
    let shown = |finding: &Finding| {
        assert!(finding.remedy.is_some(), "what to do is missing: {finding:?}");
        format!("{} {}: {}", finding.gravity.name(), finding.check, finding.what)
    };
    findings.iter().filter(ill).map(shown).collect()
}

/// The only thing that is wrong; it is of this gravity, and starts like this.
fn the_ill<'a>(findings: &'a [Finding], gravity: Gravity, check: &str, what: &str) -> &'a Finding {
    let ills = ills(findings);
    let expected = format!("{} {check}: {what}", gravity.name());
    assert!(matches!(ills.as_slice(), [only] if only.starts_with(&expected)), "{expected}, but: {ills:#?}");
    findings.iter().find(|finding| finding.gravity == gravity && finding.check == check).expect("seen above")
}

#[tokio::test]
async fn a_healthy_server_has_nothing_grave_and_no_warning() {
    let server = server(&[]).await;
    let findings = findings(&server.address()).await;
    assert_eq!(ills(&findings), Vec::<String>::new());
    for check in
        ["schema", "durability", "vacuum", "bloat", "indexes", "clock", "connections", "wake-ups", "version"]
    {
        assert!(findings.iter().any(|finding| finding.check == check), "{check} was not looked at");
    }
    let notes: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.gravity == Gravity::Note)
        .map(|finding| finding.what.as_str())
        .collect();
    assert!(notes.iter().all(|note| note.contains("checksums")), "{notes:?}");
}

#[tokio::test]
async fn a_database_without_tables_is_said_to_lack_them_and_the_server_is_looked_at() {
    let server = Postgres::start();
    let findings = findings(&server.address()).await;
    the_ill(&findings, Gravity::Warning, "schema", "the tables of redrive are missing");
    assert!(findings.iter().any(|finding| finding.check == "wake-ups" && finding.what == "wake-ups arrive"));
    let tables = server.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'redrive'");
    assert_eq!(tables, "0", "a look makes no tables");
}

#[tokio::test]
async fn tables_of_another_version_are_told() {
    let server = server(&[]).await;
    server.run("INSERT INTO redrive.schema (version, compatible_since) VALUES (99, 98)");
    let findings = findings(&server.address()).await;
    let finding = the_ill(&findings, Gravity::Grave, "schema", "the tables are too new");
    assert!(finding.evidence.contains("schema 99") && finding.evidence.contains("knows 98"), "{finding:?}");
}

#[tokio::test]
async fn settings_that_weaken_durability_are_told_with_where_they_come_from() {
    let server = server(&[("fsync", "off"), ("full_page_writes", "off")]).await;
    server.run("ALTER ROLE redrive SET synchronous_commit = off");
    let findings = findings(&server.address()).await;
    let durability: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.check == "durability" && finding.gravity > Gravity::Note)
        .collect();
    let shown = durability.iter().map(|finding| (finding.gravity, finding.evidence.as_str()));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            (Gravity::Grave, "fsync = off, from: configuration file"),
            (Gravity::Grave, "full_page_writes = off, from: configuration file"),
            (Gravity::Warning, "synchronous_commit = off, from: user"),
        ]
    );
    assert_eq!(ills(&findings).len(), 3);
}

#[tokio::test]
async fn commits_that_do_not_wait_for_the_standby_matter_where_there_is_one() {
    let server = server(&[]).await;
    server.run("ALTER DATABASE redrive SET synchronous_commit = local");
    assert_eq!(ills(&findings(&server.address()).await), Vec::<String>::new(), "it is the same as on");
    // Each in a statement of its own: they cannot be in one transaction.
    server.run("ALTER SYSTEM SET synchronous_standby_names = 'other'");
    server.run("SELECT pg_reload_conf()");
    let findings = findings(&server.address()).await;
    let finding =
        the_ill(&findings, Gravity::Warning, "durability", "acknowledged jobs may be lost on a failover");
    assert_eq!(finding.evidence, "synchronous_commit = local, from: database");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_told() {
    let server = server(&[]).await;
    server.run("ALTER DATABASE redrive SET default_transaction_read_only = on");
    let findings = findings(&server.address()).await;
    the_ill(&findings, Gravity::Grave, "writes", "the server takes no writes");
}

#[tokio::test]
async fn a_transaction_that_holds_back_vacuum_is_named() {
    let server = server(&[]).await;
    let holder = connect(&format!("{}?application_name=reports", server.address())).await;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'monthly report'")
        .await
        .expect("it runs");
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("it runs").get(0);
    assert_eq!(ills(&findings(&server.address()).await), Vec::<String>::new(), "it has only begun");

    let soon = Thresholds { held_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_ill(&found, Gravity::Warning, "vacuum", "a transaction holds back vacuum");
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

    let grave = Thresholds { held_grave: Duration::ZERO, ..Thresholds::default() };
    the_ill(&findings_with(&server.address(), &grave).await, Gravity::Grave, "vacuum", "a transaction");

    // One that has neither written nor a snapshot holds back nothing.
    holder.batch_execute("COMMIT; BEGIN; SELECT 1").await.expect("it runs");
    assert_eq!(ills(&findings_with(&server.address(), &grave).await), Vec::<String>::new());
}

#[tokio::test]
async fn a_prepared_transaction_and_a_slot_that_hold_back_vacuum_are_named() {
    let server = server(&[("max_prepared_transactions", "2"), ("wal_level", "logical")]).await;
    let client = connect(&server.address()).await;
    let prepare = "BEGIN; INSERT INTO redrive.counts VALUES (0, 0, 0); PREPARE TRANSACTION 'it''s mine'";
    client.batch_execute(prepare).await.expect("it is prepared");
    let soon = Thresholds { held_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_ill(&found, Gravity::Warning, "vacuum", "a prepared transaction holds back vacuum");
    assert!(finding.evidence.starts_with("prepared as \"it's mine\", for "), "{finding:?}");
    let remedy = finding.remedy.clone().expect("seen above");
    let undo = remedy.split(" or ").nth(1).and_then(|rest| rest.split(';').next()).expect("a statement");
    client.batch_execute(undo).await.expect("what it says to do works");

    client
        .batch_execute("SELECT pg_create_logical_replication_slot('forgotten', 'test_decoding')")
        .await
        .expect("a slot is made");
    server.run("INSERT INTO redrive.counts VALUES (0, 0, 0)");
    let soon = Thresholds { behind_warning: 1, ..Thresholds::default() };
    let found = findings_with(&server.address(), &soon).await;
    let finding = the_ill(&found, Gravity::Warning, "vacuum", "a replication slot holds back vacuum");
    assert!(finding.evidence.starts_with("slot forgotten, read by nobody, "), "{finding:?}");
    assert_eq!(ills(&findings(&server.address()).await), Vec::<String>::new(), "it is only just behind");
}

#[tokio::test]
async fn dead_rows_and_what_lets_them_pile_up_are_told() {
    let server = server(&[]).await;
    server.run("ALTER TABLE redrive.jobs SET (autovacuum_enabled = false)");
    let found = findings(&server.address()).await;
    let finding = the_ill(&found, Gravity::Grave, "bloat", "autovacuum is off for redrive.jobs");
    assert!(finding.evidence.starts_with("redrive.jobs: 0 live rows, 0 dead"), "{finding:?}");
    let cure = finding.remedy.clone().expect("seen above");

    let job =
        "INSERT INTO redrive.jobs (id, next_run_at, created_at, began_at, lane, tenant, policy, payload)
               SELECT gen_random_uuid(), 0, 0, 0, 0, '', 'default@1', '' FROM generate_series(1, 400)";
    server.run(job);
    server.run("UPDATE redrive.jobs SET attempt = 1 WHERE lane = 0");
    // The server counts when a session has nothing else to do, or ends.
    let few = Thresholds { dead_rows_min: 300, index_bytes_min: 1, ..Thresholds::default() };
    let found = findings_with(&server.address(), &few).await;
    let bloated = found.iter().find(|finding| finding.what.starts_with("redrive.jobs is bloated"));
    let bloated = bloated.unwrap_or_else(|| panic!("{found:#?}"));
    assert_eq!(bloated.gravity, Gravity::Warning);
    assert!(bloated.evidence.contains("400 live rows, 400 dead"), "{bloated:?}");

    server.run(&cure);
    server.run("VACUUM redrive.jobs");
    assert_eq!(ills(&findings_with(&server.address(), &few).await), Vec::<String>::new());
    server.run("DELETE FROM redrive.jobs");
    let found =
        findings_with(&server.address(), &Thresholds { index_bytes_min: 1, ..Thresholds::default() }).await;
    let large = |finding: &&Finding| finding.what.starts_with("the index redrive.jobs_pkey is large");
    let large = found.iter().find(large).unwrap_or_else(|| panic!("{found:#?}"));
    assert!(large.gravity == Gravity::Note && large.evidence.ends_with("for 0 rows"), "{large:?}");
}

#[tokio::test]
async fn autovacuum_that_is_off_is_grave() {
    let server = server(&[("autovacuum", "off")]).await;
    let findings = findings(&server.address()).await;
    let finding = the_ill(&findings, Gravity::Grave, "bloat", "autovacuum is off: ");
    assert_eq!(finding.evidence, "autovacuum = off, from: configuration file");
}

#[tokio::test]
async fn an_index_that_is_missing_or_other_is_told_with_the_line_that_makes_it() {
    let server = server(&[]).await;
    for (harm, gravity, what) in [
        ("DROP INDEX redrive.jobs_due", Gravity::Grave, "the index redrive.jobs_due is missing"),
        ("DROP INDEX redrive.jobs_dead", Gravity::Warning, "the index redrive.jobs_dead is missing"),
        (
            "ALTER TABLE redrive.attempts DROP CONSTRAINT attempts_pkey",
            Gravity::Grave,
            "the index redrive.attempts_pkey is missing",
        ),
        (
            "DROP INDEX redrive.jobs_leases; CREATE INDEX jobs_leases ON redrive.jobs (lease_until)",
            Gravity::Grave,
            "the index redrive.jobs_leases is not as redrive made it",
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive.jobs_keys'::regclass",
            Gravity::Grave,
            "the index redrive.jobs_keys is unfinished",
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive.jobs_pkey'::regclass",
            Gravity::Grave,
            "the index redrive.jobs_pkey is unfinished",
        ),
        (
            "ALTER TABLE redrive.records DROP CONSTRAINT records_pkey, ADD CONSTRAINT records_pkey PRIMARY KEY (id, kind)",
            Gravity::Grave,
            "the index redrive.records_pkey is not as",
        ),
        (
            "ALTER TABLE redrive.lanes DROP CONSTRAINT lanes_queue_kind_priority_key;
             CREATE UNIQUE INDEX lanes_queue_kind_priority_key ON redrive.lanes (queue, kind)",
            Gravity::Grave,
            "the index redrive.lanes_queue_kind_priority_key is not as",
        ),
    ] {
        server.run(harm);
        let found = findings(&server.address()).await;
        let cure = the_ill(&found, gravity, "indexes", what).remedy.clone().expect("seen above");
        assert!(cure.contains("INDEX CONCURRENTLY"), "{cure}");
        cure.split("; ").for_each(|statement| drop(server.run(statement)));
        assert_eq!(ills(&findings(&server.address()).await), Vec::<String>::new(), "after {cure}");
    }
}

#[tokio::test]
async fn the_list_of_indexes_is_that_of_fresh_tables() {
    let server = server(&[]).await;
    let fresh = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'redrive'";
    let findings = findings(&server.address()).await;
    let indexes = findings.iter().find(|finding| finding.check == "indexes").expect("they were looked at");
    assert_eq!(indexes.gravity, Gravity::Fine, "{indexes:?}");
    // Each that is listed is there as it is listed, and there are no others.
    let count = server.run(fresh);
    assert!(indexes.evidence.starts_with(&format!("{count} of them, ")), "{count}: {indexes:?}");
}

#[tokio::test]
async fn too_few_connections_are_told() {
    let server = server(&[("max_connections", "15"), ("superuser_reserved_connections", "3")]).await;
    let address = server.address();
    assert_eq!(ills(&findings(&address).await), Vec::<String>::new());
    let greedy = findings(&format!("{address}?connections=11")).await;
    let finding = the_ill(&greedy, Gravity::Grave, "connections", "not even one node");
    assert!(
        finding.evidence.contains("max_connections is 15, 3 of them reserved; 0 are taken"),
        "{finding:?}"
    );
    assert!(finding.evidence.contains("up to 13 (11 for calls, 2 beside): 0 nodes fit"), "{finding:?}");

    server.run("ALTER ROLE redrive CONNECTION LIMIT 9");
    let limited = findings(&address).await;
    let finding = the_ill(&limited, Gravity::Grave, "connections", "not even one node");
    assert!(finding.evidence.starts_with("the CONNECTION LIMIT of this role is 9; "), "{finding:?}");
    server.run("ALTER ROLE redrive CONNECTION LIMIT -1");

    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(connect(&format!("{address}?application_name=redrive")).await);
    }
    let crowded = findings(&address).await;
    let finding = the_ill(&crowded, Gravity::Warning, "connections", "connections are nearly used up");
    assert!(finding.evidence.contains("5 are taken, 5 by redrive;"), "{finding:?}");
    for _ in 5..15 {
        others.push(connect(&address).await);
    }
    let full = findings(&address).await;
    let finding = the_ill(&full, Gravity::Grave, "connections", "the server has no connection left");
    assert!(finding.evidence.contains("too many clients"), "{finding:?}");
}

#[tokio::test]
async fn a_pooler_that_loses_wake_ups_is_told_and_the_ways_round_it_work() {
    let server = server(&[]).await;
    let pooler = PgBouncer::start(&server);
    let found = findings(&pooler.address()).await;
    let finding = the_ill(&found, Gravity::Warning, "wake-ups", "wake-ups do not arrive");
    assert!(finding.evidence.contains("through a pooler that shares"), "{finding:?}");

    let direct = findings(&format!("{}?listen=127.0.0.1:{}", pooler.address(), server.port())).await;
    assert_eq!(ills(&direct), Vec::<String>::new());
    let wakes = direct.iter().find(|finding| finding.check == "wake-ups").expect("it was looked at");
    assert!(wakes.evidence.contains("came back after") && wakes.evidence.contains("pooler"), "{wakes:?}");

    let off = findings(&format!("{}?listen=off", pooler.address())).await;
    assert_eq!(ills(&off), Vec::<String>::new());
    assert!(off.iter().any(|finding| finding.what.starts_with("wake-ups are switched off")), "{off:#?}");

    let nowhere = findings(&format!("{}?listen=127.0.0.1:1", server.address())).await;
    the_ill(&nowhere, Gravity::Grave, "wake-ups", "nobody can listen for wake-ups");
}

#[tokio::test]
async fn a_queue_of_notifications_that_fills_is_told() {
    let server = server(&[]).await;
    let deaf = connect(&server.address()).await;
    deaf.batch_execute("LISTEN redrive").await.expect("it listens");
    deaf.batch_execute("BEGIN").await.expect("it hears nothing more");
    server
        .run("SELECT count(pg_notify('redrive', repeat('x', 7000) || i)) FROM generate_series(1, 500) AS i");
    let low = Thresholds { notifications_warning: 1e-4, ..Thresholds::default() };
    let found = findings_with(&server.address(), &low).await;
    the_ill(&found, Gravity::Warning, "wake-ups", "the queue of notifications fills");
    drop(deaf);
}

#[tokio::test]
async fn a_role_that_may_see_little_gets_notes_and_no_failure() {
    let server = server(&[]).await;
    server.run("CREATE ROLE watcher LOGIN");
    let holder = connect(&server.address()).await;
    holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.expect("it runs");
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("it runs").get(0);
    let address = server.address().replace("redrive@", "watcher@");
    let soon = Thresholds { held_warning: Duration::ZERO, ..Thresholds::default() };
    let found = findings_with(&address, &soon).await;
    assert_eq!(ills(&found), Vec::<String>::new());
    let note = |what: &str| {
        let note =
            found.iter().find(|finding| finding.gravity == Gravity::Note && finding.what.contains(what));
        note.unwrap_or_else(|| panic!("{what}: {found:#?}"))
    };
    note("this role may not write jobs");
    note("this role may not see which schema");
    let hidden = note("how long other users' transactions");
    assert!(hidden.evidence.contains(&format!("pid {pid}")), "{hidden:?}");
    assert!(!found.iter().any(|finding| finding.what.contains("could not be looked at")), "{found:#?}");

    server.run("GRANT pg_read_all_stats TO watcher");
    the_ill(
        &findings_with(&address, &soon).await,
        Gravity::Warning,
        "vacuum",
        "a transaction holds back vacuum",
    );
}

#[tokio::test]
async fn the_clocks_of_one_machine_agree() {
    let server = server(&[]).await;
    let clock = |findings: Vec<Finding>| findings.into_iter().find(|finding| finding.check == "clock");
    let finding = clock(findings(&server.address()).await).expect("it was looked at");
    assert_eq!(finding.gravity, Gravity::Fine, "{finding:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    let looked = PostgresStore::doctor("postgres://nobody@127.0.0.1:1/x", &Thresholds::default()).await;
    assert!(looked.is_err_and(|error| error.may_pass()));
}
