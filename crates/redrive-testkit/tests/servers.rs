//! The private servers for tests: they answer, survive, fail on demand, and are gone afterwards.

use redrive_testkit::servers::Postgres;

#[test]
fn postgres_keeps_a_row_through_a_kill() {
    let mut postgres = Postgres::start();
    assert_eq!(postgres.run("SHOW fsync"), "on");
    postgres.run("CREATE TABLE kept (word text); INSERT INTO kept VALUES ('here')");
    postgres.kill();
    postgres.restart();
    assert_eq!(postgres.run("SELECT word FROM kept"), "here");
    assert!(postgres.log().contains("automatic recovery in progress"), "{}", postgres.log());
}
