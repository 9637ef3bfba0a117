//! Registering, editing and removing policies.

use serde_json::{Value, json};

use crate::stage::Stage;

#[tokio::test]
async fn a_policy_is_registered_once_and_edited_by_versions() {
    let stage = Stage::open().await;
    let policy = json!({"policyId": "orders", "maxAttempts": 3});
    let created = stage.post("/retry-policies", policy.clone()).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/retry-policies/orders")));
    assert_eq!(created.body["version"], 1);
    assert_eq!(created.body["backoffType"], "EXPONENTIAL");
    assert_eq!(stage.post("/retry-policies", policy).await.status, 200);
    let other = stage.post("/retry-policies", json!({"policyId": "orders", "maxAttempts": 4})).await;
    assert_eq!(other.problem(), (409, "POLICY_CONFLICT", None));
    let edited = stage.put("/retry-policies/orders", json!({"maxAttempts": 4})).await;
    assert_eq!((edited.status, &edited.body["version"]), (200, &json!(2)));
    assert_eq!(stage.get("/retry-policies/orders").await.body["maxAttempts"], 4);
    let renamed = stage.put("/retry-policies/orders", json!({"policyId": "x"})).await;
    assert_eq!(renamed.problem(), (422, "INVALID", Some("policyId")));
    assert_eq!(stage.get("/retry-policies/none").await.problem(), (404, "NOT_FOUND", None));
}

#[tokio::test]
async fn what_is_shown_can_be_registered_again() {
    let stage = Stage::open().await;
    for (number, policy) in [
        json!({"backoffType": "SCHEDULE", "delaysMs": [1, 900000], "totalBudgetMs": null}),
        json!({"multiplier": 1.1, "jitterType": "PROPORTIONAL", "jitterFraction": 0.3}),
        json!({"backoffType": "FIXED", "initialDelayMs": 7, "visibilityTimeoutMs": 1500, "signingSecret": "s"}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut named = policy.clone();
        named["policyId"] = Value::String(format!("p{number}"));
        assert_eq!(stage.post("/retry-policies", named).await.status, 201);
        let shown = stage.get(&format!("/retry-policies/p{number}")).await.body;
        assert_eq!(stage.post("/retry-policies", shown.clone()).await.status, 200, "{shown}");
    }
}

#[tokio::test]
async fn policies_are_listed_in_pages() {
    let stage = Stage::open().await;
    for id in ["a", "b"] {
        stage.post("/retry-policies", json!({"policyId": id})).await;
    }
    let mut seen = Vec::new();
    let mut path = "/retry-policies?limit=1".to_owned();
    loop {
        let page = stage.get(&path).await.body;
        seen.push(page["items"][0]["policyId"].as_str().unwrap().to_owned());
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/retry-policies?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "default"]);
}

#[tokio::test]
async fn a_policy_that_live_tasks_use_stays() {
    let stage = Stage::open().await;
    stage.post("/retry-policies", json!({"policyId": "orders"})).await;
    let task = json!({"targetUrl": "http://example.com/", "policyId": "orders"});
    assert_eq!(stage.post("/retry-tasks", task.clone()).await.status, 201);
    let used = stage.delete("/retry-policies/orders").await;
    assert_eq!(used.problem(), (409, "POLICY_IN_USE", None));
    stage.complete().await;
    assert_eq!(stage.delete("/retry-policies/orders").await.status, 204);
    assert_eq!(stage.delete("/retry-policies/orders").await.status, 404);
    assert_eq!(stage.post("/retry-tasks", task).await.problem(), (422, "UNKNOWN_POLICY", Some("policyId")));
    assert_eq!(stage.delete("/retry-policies/default").await.problem(), (409, "POLICY_IN_USE", None));
}

#[tokio::test]
async fn a_preview_shows_bounds_mean_and_totals() {
    let stage = Stage::open().await;
    let policy = json!({"maxAttempts": 3, "initialDelayMs": 100, "jitterType": "EQUAL"});
    let preview = stage.post("/retry-policies/preview", policy).await;
    assert_eq!(preview.status, 200);
    let first = &preview.body["retries"][0];
    assert_eq!(
        (&first["attemptNumber"], &first["earliestMs"], &first["meanMs"], &first["latestMs"]),
        (&json!(2), &json!(50), &json!(75), &json!(100))
    );
    assert_eq!(preview.body["total"], json!({"earliestMs": 150, "meanMs": 225, "latestMs": 300}));
}
