//! The model agrees with itself when it is played as a store.

use redrive_testkit::{ModelStore, check_against_model};

#[test]
fn the_model_agrees_with_itself() {
    check_against_model(256, |clock| async { ModelStore::new(clock) });
}
