//! The conformance suite holds for the reference model itself.

use redrive_testkit::{ModelStore, exercise};

#[tokio::test]
async fn the_model_conforms() {
    exercise(|clock| async { ModelStore::new(clock) }).await;
}
