//! The programs of the guide run as printed, each in its own language, on a real server.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use redrive_core::{State, Store, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;

/// The marked blocks of the guide: their language and their text.
fn programs() -> Vec<(&'static str, &'static str)> {
    let marked = include_str!("../../../../docs/postgres.md").split("<!-- run -->\n```").skip(1);
    let block = |text: &'static str| {
        let (language, rest) = text.split_once('\n').expect("a block begins");
        (language, rest.split_once("\n```").expect("a block ends").0)
    };
    marked.map(block).collect()
}

fn run(server: &Postgres, language: &str, program: &str) {
    let program = program.replace("postgres://me@db.example/jobs", &server.address());
    // Where `cargo xtask setup` puts the drivers.
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a build folder").join("tools");
    let interpreter = match language {
        "sql" => return drop(server.run(&program)),
        "python" => tools.join("psycopg/bin/python"),
        "js" => "node".into(),
        other => panic!("{other} is not a language of the guide"),
    };
    let mut child = Command::new(&interpreter)
        .arg("-")
        .env("NODE_PATH", tools.join("pg/node_modules"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{interpreter:?} is missing ({error}): run `cargo xtask setup`"));
    child.stdin.take().expect("piped").write_all(program.as_bytes()).expect("written");
    assert!(child.wait().expect("the program ends").success(), "{program}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_the_guide_enqueue_in_their_transactions() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let store = PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens");
    catalog::default(&store).await.expect("the default policy");
    server.run("CREATE TABLE orders (id integer PRIMARY KEY)");
    let programs = programs();
    let languages: Vec<&str> = programs.iter().map(|(language, _)| *language).collect();
    assert_eq!(languages, ["sql", "python", "js"]);
    for (count, (language, program)) in (1..).zip(programs) {
        run(&server, language, program);
        let stats = store.stats().await.expect("stats");
        assert_eq!(stats.in_state(State::Pending), count, "{language}");
        assert_eq!(server.run("SELECT count(*) FROM orders"), count.to_string(), "{language}");
    }
}
