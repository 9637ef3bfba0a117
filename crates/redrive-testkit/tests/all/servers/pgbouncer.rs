//! PgBouncer: it answers, pools by transaction, and leaves nothing behind.

use std::net::SocketAddr;

use redrive_testkit::servers::{PgBouncer, Postgres};

use super::client::Client;

#[test]
fn clients_share_one_connection_by_transaction() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start_with(&postgres, &[("default_pool_size", "1")]);
    let address = address(&bouncer);
    let [mut one, mut other] = [(); 2].map(|()| Client::connect(address).unwrap());
    let process = "SELECT pg_backend_pid()";
    assert_eq!(
        one.run(process).unwrap(),
        other.run(process).unwrap(),
        "the clients have different connections"
    );
    one.run("BEGIN; CREATE TABLE kept (word text); INSERT INTO kept VALUES ('here'); COMMIT").unwrap();
    assert_eq!(other.run("SELECT word FROM kept").unwrap(), ["here"]);
    assert_eq!(postgres.run("SELECT word FROM kept"), "here");
    drop(bouncer);
    assert!(Client::connect(address).is_err(), "PgBouncer still listens");
}

#[test]
fn default_settings_accept_clients() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres);
    assert_eq!(Client::connect(address(&bouncer)).unwrap().run("SELECT 1").unwrap(), ["1"]);
    assert!(bouncer.log().contains("login attempt: db=redrive user=redrive"), "{}", bouncer.log());
}

fn address(bouncer: &PgBouncer) -> SocketAddr {
    let address = bouncer.address();
    let rest = address.strip_prefix("postgres://redrive@").unwrap();
    rest.strip_suffix("/redrive").unwrap().parse().unwrap()
}
