//! Many tasks in one request.

use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn each_call_of_a_batch_has_its_own_answer_in_order() {
    let stage = Stage::open().await;
    let good = json!({"targetUrl": "http://example.com/a", "idempotencyKey": "k"});
    let answer = stage
        .post(
            "/retry-tasks/batch",
            json!({"items": [
                good, {"targetUrl": "x"}, good, {"targetUrl": "http://example.com/b"}, 7,
                {"targetUrl": "http://example.com/c", "idempotencyKey": "k"}, {"targetUrl": "http://e.com/", "no": 1},
            ]}),
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 422, 200, 201, 422, 422, 422]);
    assert_eq!(items[0]["task"]["taskId"], items[2]["task"]["taskId"]);
    assert_eq!(items[1]["problem"]["field"], "targetUrl");
    assert_eq!(items[5]["problem"]["code"], "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(items[6]["problem"]["field"], "no");
    assert_eq!(stage.get("/retry-tasks").await.body["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_batch_has_bounds_of_its_own() {
    let stage = Stage::open().await;
    let one = json!({"targetUrl": "http://example.com/a"});
    for count in [0, 1001] {
        let refused = stage.post("/retry-tasks/batch", json!({"items": vec![one.clone(); count]})).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some("items")));
    }
    let full = stage.post("/retry-tasks/batch", json!({"items": vec![one; 1000]})).await;
    assert_eq!(full.body["items"].as_array().unwrap().len(), 1000);
    let large = json!({"targetUrl": "http://example.com/a", "body": "x".repeat(3 << 20)});
    let answer = stage.post("/retry-tasks/batch", json!({"items": [large]})).await;
    assert_eq!(answer.body["items"][0]["status"], 201, "more than one task may send, in a batch");
}
