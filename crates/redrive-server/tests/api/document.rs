//! The OpenAPI document says what the routes do.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::stage::Stage;

#[tokio::test]
async fn every_operation_documents_its_problems() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{method} {path}: {id} is taken");
            let answers = operation["responses"].as_object().unwrap();
            assert!(answers.keys().any(|status| status.starts_with('2')), "{method} {path}");
            for (status, answer) in answers.iter().filter(|(status, _)| status.starts_with(['4', '5'])) {
                let schema = &answer["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem", "{method} {path} {status}");
            }
            if path.contains('{') {
                assert!(answers.contains_key("404"), "{method} {path}");
            }
            if operation["requestBody"].is_object() {
                for status in ["400", "408", "413", "415", "422", "429"] {
                    assert!(answers.contains_key(status), "{method} {path} {status}");
                }
            }
            let summary = operation["summary"].as_str().unwrap_or_default();
            assert!(!summary.is_empty(), "{method} {path} has no summary");
        }
    }
    assert!(ids.len() > 30, "{ids:?}");
    assert_eq!(broken_references(&document, &document), Vec::<String>::new());
}

/// References that lead nowhere.
fn broken_references(document: &Value, at: &Value) -> Vec<String> {
    match at {
        Value::Object(fields) => {
            let broken = fields
                .get("$ref")
                .and_then(Value::as_str)
                .filter(|reference| document.pointer(reference.trim_start_matches('#')).is_none());
            let inner = fields.values().flat_map(|value| broken_references(document, value));
            broken.map(str::to_owned).into_iter().chain(inner).collect()
        }
        Value::Array(items) => items.iter().flat_map(|item| broken_references(document, item)).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn the_docs_page_loads_nothing_from_other_sites() {
    let stage = Stage::open().await;
    let page = stage.get("/docs").await;
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let html = page.body.as_str().unwrap();
    assert!(!html.contains("http://") && !html.contains("https://"));
}

#[tokio::test]
async fn metrics_are_in_the_openmetrics_format() {
    let stage = Stage::open().await;
    stage.task().await;
    let metrics = stage.get("/metrics").await;
    assert!(metrics.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = metrics.body.as_str().unwrap();
    for line in [
        "retry_tasks{state=\"pending\"} 1",
        "retry_tasks_created_total 1",
        "retry_http_requests_total{method=\"POST\",route=\"/v1/tasks\",status=\"201\"} 1",
        "retry_store_batch_items_count{verb=\"enqueue\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_document_has_no_null_parameters_and_states_the_rules_for_secrets_and_targets() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_null = operation.get("parameters").is_some_and(|parameters| parameters.is_null());
            assert!(!is_null, "{method} {path} has null for its parameters");
        }
    }
    let schemas = &document["components"]["schemas"];
    for (schema, field) in
        [("SecretRequest", "secret"), ("TaskRequest", "bodyRef"), ("TaskRequest", "target")]
    {
        assert!(schemas[schema]["properties"][field]["pattern"].is_string(), "{schema}.{field}");
    }
    let long = format!("/v1/jobs?target={}", "x".repeat(2049));
    assert_eq!(stage.get(&long).await.problem(), (422, "invalid", Some("target")));
}
