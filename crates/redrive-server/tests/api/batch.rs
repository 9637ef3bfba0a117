//! Batches: many tasks in one request.

use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_result_in_order() {
    let stage = Stage::open().await;
    let good = json!({"target": "http://example.com/a", "idempotencyKey": "k"});
    let answer = stage
        .post(
            "/v1/tasks/batch",
            json!({"items": [
                good, {"target": "x"}, good, {"target": "http://example.com/b"}, 7,
                {"target": "http://example.com/c", "idempotencyKey": "k"}, {"target": "http://e.com/", "no": 1},
            ]}),
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 422, 200, 201, 422, 422, 422]);
    assert_eq!(items[0]["task"]["taskId"], items[2]["task"]["taskId"]);
    assert_eq!(items[1]["problem"]["field"], "target");
    assert_eq!(items[5]["problem"]["code"], "idempotency_key_reused");
    assert_eq!(items[6]["problem"]["field"], "no");
    assert_eq!(stage.get("/v1/tasks").await.body["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_batch_has_its_own_limits() {
    let stage = Stage::open().await;
    let one = json!({"target": "http://example.com/a"});
    for count in [0, 1001] {
        let refused = stage.post("/v1/tasks/batch", json!({"items": vec![one.clone(); count]})).await;
        assert_eq!(refused.problem(), (422, "invalid", Some("items")));
    }
    let full = stage.post("/v1/tasks/batch", json!({"items": vec![one; 1000]})).await;
    assert_eq!(full.body["items"].as_array().unwrap().len(), 1000);
    let large = json!({"target": "http://example.com/a", "body": "x".repeat(3 << 20)});
    let answer = stage.post("/v1/tasks/batch", json!({"items": [large]})).await;
    assert_eq!(
        answer.body["items"][0]["status"], 201,
        "the size limit of a single task does not apply to a batch"
    );
}
