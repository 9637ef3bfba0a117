//! What pages show of what others have written: escaped, and without what is likely a secret.

use redrive_server::Access;
use redrive_server::keys::Scope;
use serde_json::json;

use crate::stage::{PAGES, Stage};

/// What someone would send to run a script in an operator's browser.
const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";

#[tokio::test]
async fn what_others_write_stays_text() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let target = "http://a.example/%3Cscript%3E?q='onload";
    let headers = json!({"x-note": "\"><script>alert(1)</script>"});
    let task = stage
        .task(
            json!({"targetUrl": target, "headers": headers, "body": HOSTILE, "idempotencyKey": HOSTILE}),
            None,
        )
        .await;
    let job = stage.job("render", &json!({"note": HOSTILE})).await;
    stage.kill(HOSTILE, HOSTILE).await;
    let mut browser = stage.browser();
    let (task, job) = (format!("/console/jobs/{task}"), format!("/console/jobs/{job}"));
    let filtered = "/console/jobs?text=%3Cscript%3Ealert(1)&subject=%22%3E%3Cscript%3E&kind=%3Cscript%3E";
    for path in PAGES.into_iter().chain([task.as_str(), job.as_str(), filtered]) {
        let page = browser.get(path).await;
        for raw in ["<script>alert", "<img src=x", "onerror=alert(1)>\""] {
            assert!(!page.has(raw), "{path} has {raw}");
        }
    }
    let page = browser.get(&task).await;
    assert!(page.has("&#60;script&#62;alert(1)"), "the error is shown all the same: {}", page.body);
    assert!(browser.get(&job).await.has("&#60;img src=x onerror=alert(1)&#62;"));
}

#[tokio::test]
async fn secrets_are_masked() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let headers = json!({"authorization": "Bearer hush-1", "x-api-key": "hush-2", "cookie": "hush-3", "x-trace": "seen-1"});
    let task = stage
        .task(json!({"targetUrl": "http://a.example/?token=hush-4&page=seen-2", "headers": headers, "body": "hush-5"}), None)
        .await;
    let job = stage.job("charge", &json!({"card": {"password": "hush-6"}, "euros": "seen-3"})).await;
    let mut browser = stage.browser();
    let (task, job) = (format!("/console/jobs/{task}"), format!("/console/jobs/{job}"));
    for path in ["/console/tasks", "/console/jobs", task.as_str(), job.as_str()] {
        let page = browser.get(path).await;
        assert!(page.status == 200 && !page.has("hush-"), "{path}: {}", page.body);
    }
    let page = browser.get(&task).await;
    assert!(page.has("seen-1") && page.has("seen-2") && page.has("••••••"), "{}", page.body);
    assert!(browser.get(&job).await.has("seen-3"));
}

#[tokio::test]
async fn what_is_wrong_or_missing_has_a_page_with_a_way_back() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    for (path, status, text) in [
        ("/console/nowhere", 404, "There is no such page"),
        ("/console/jobs/nobody", 404, "There is nothing here"),
        ("/console/jobs/00000000-0000-7000-8000-000000000000", 404, "There is nothing here"),
        ("/console/policies/design?policy=none", 404, "There is nothing here"),
        ("/console/operations/none", 404, "There is nothing here"),
        ("/console/jobs?cursor=forged", 422, "That cannot be done like this"),
        ("/console/jobs?state=odd", 422, "That cannot be done like this"),
        ("/console/bulk?verb=ODD", 404, "There is no such page"),
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, status, "{path}: {}", page.body);
        assert!(page.has(text) && page.has("href=\"/\""), "{path}: {}", page.body);
    }
    let none = browser.get("/nowhere").await;
    assert!(
        none.status == 404 && none.header("content-type") == "application/problem+json",
        "the API has its own words"
    );
}

#[tokio::test]
async fn a_task_shows_its_call_its_attempts_and_why_it_does_not_run() {
    let stage = Stage::new(Access::KeysOnly).await;
    let key = stage.key(None, Scope::Write).await;
    let id = stage.task(json!({"targetUrl": "http://a.example/hook", "method": "PUT"}), Some(&key)).await;
    stage.kill("status 503", "busy now").await;
    let mut browser = stage.signed_in(None, Scope::Write).await;
    let page = browser.get(&format!("/console/jobs/{id}")).await;
    for text in [
        "PUT http://a.example/hook",
        "hidden: this key may not see bodies",
        "status 503",
        "not retryable",
        "aria-label=\"Run 1: 1 attempt",
    ] {
        assert!(page.has(text), "{text}: {}", page.body);
    }
    assert!(
        page.has("<button class=\"main\">Redrive</button>") && !page.has(">Discard</button>"),
        "{}",
        page.body
    );
    let done = browser.submit(&format!("/console/jobs/{id}/redrive"), &page, &[]).await;
    let page = browser.get(done.header("location")).await;
    assert!(
        page.has("Driven again") && page.has("state pending") && page.has(">Run now</button>"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn dead_letters_are_grouped_with_an_example() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    for path in ["a", "b"] {
        stage.task(json!({"targetUrl": format!("http://a.example/{path}")}), None).await;
    }
    stage.job("render", &json!({})).await;
    stage.kill("status 503", "busy").await;
    let page = stage.browser().get("/console/dead").await;
    assert!(
        page.has("2: not retryable, http://a.example") && page.has("1: not retryable, render"),
        "{}",
        page.body
    );
    assert_eq!(page.body.matches("Example").count(), 2);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_said_in_words() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    stage.weather.set_down(true);
    for path in PAGES {
        let page = browser.get(path).await;
        // What is kept in memory may still be shown for a moment.
        assert!(page.status == 503 || page.status == 200, "{path}: {}", page.status);
        assert!(page.status == 200 || page.has("The store does not answer"), "{path}: {}", page.body);
    }
    let page = browser.get("/console/tasks").await;
    assert_eq!((page.status, page.header("retry-after")), (503, "1"));
    stage.weather.set_down(false);
    assert_eq!(browser.get("/console/tasks").await.status, 200);
}
