//! The reference model passes the suites that every store passes.

use redrive_testkit::{ModelStore, check_against_model, exercise};

#[tokio::test]
async fn the_model_conforms() {
    exercise(|clock| async { ModelStore::new(clock) }).await;
}

#[test]
fn the_model_agrees_with_itself() {
    check_against_model(256, |clock| async { ModelStore::new(clock) });
}
