//! The reference model passes the suites that every store passes.

use redrive_testkit::{ModelStore, check_against_model, exercise};

#[tokio::test]
async fn the_model_conforms() {
    exercise(|clock| async { ModelStore::new(clock) }).await;
}

#[tokio::test]
async fn a_store_with_claim_numbers_in_its_epochs_conforms() {
    exercise(|clock| async { ModelStore::with_claim_numbers(clock) }).await;
}

#[test]
fn a_store_with_claim_numbers_in_its_epochs_agrees_with_the_model() {
    check_against_model(256, |clock| async { ModelStore::with_claim_numbers(clock) });
}

#[test]
fn the_model_agrees_with_itself() {
    check_against_model(256, |clock| async { ModelStore::new(clock) });
}
