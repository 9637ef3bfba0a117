//! The content of pages: text from outside is escaped, and likely secrets are masked.

use redrive_server::Access;
use redrive_wire::Scope;
use serde_json::json;

use crate::fixture::{Fixture, PAGES};

/// A text that runs a script in the browser of an operator if it is not escaped.
const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";

#[tokio::test]
async fn text_from_outside_is_escaped() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let target = "http://a.example/%3Cscript%3E?q='onload";
    let headers = json!({"x-note": "\"><script>alert(1)</script>"});
    let task = fixture
        .create_task(
            json!({"target": target, "headers": headers, "body": HOSTILE, "idempotencyKey": HOSTILE}),
            None,
        )
        .await;
    let job = fixture.enqueue_job("render", &json!({"note": HOSTILE})).await;
    fixture.fail_due_jobs(HOSTILE, HOSTILE).await;
    let mut browser = fixture.browser();
    let (task, job) = (format!("/console/jobs/{task}"), format!("/console/jobs/{job}"));
    let filtered = "/console/jobs?text=%3Cscript%3Ealert(1)&target=%22%3E%3Cscript%3E&kind=%3Cscript%3E";
    for path in PAGES.into_iter().chain([task.as_str(), job.as_str(), filtered]) {
        let page = browser.get(path).await;
        for raw in ["<script>alert", "<img src=x", "onerror=alert(1)>\""] {
            assert!(!page.has(raw), "{path} has {raw}");
        }
    }
    let page = browser.get(&task).await;
    assert!(page.has("&#60;script&#62;alert(1)"), "the page does not show the error: {}", page.body);
    assert!(browser.get(&job).await.has("&#60;img src=x onerror=alert(1)&#62;"));
}

#[tokio::test]
async fn secrets_are_masked() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let headers = json!({"authorization": "Bearer hush-1", "x-api-key": "hush-2", "cookie": "hush-3", "x-trace": "seen-1"});
    let task = fixture.create_task(json!({"target": "http://a.example/?token=hush-4&page=seen-2", "headers": headers, "body": "hush-5"}), None)
        .await;
    let job =
        fixture.enqueue_job("charge", &json!({"card": {"password": "hush-6"}, "euros": "seen-3"})).await;
    let mut browser = fixture.browser();
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
async fn every_error_has_a_page_with_a_link_back() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    for (path, status, text) in [
        ("/console/nowhere", 404, "Page not found"),
        ("/console/jobs/nobody", 404, "Not found"),
        ("/console/jobs/00000000-0000-7000-8000-000000000000", 404, "Not found"),
        ("/console/policies/design?policy=none", 404, "Not found"),
        ("/console/operations/none", 404, "Not found"),
        ("/console/jobs?cursor=forged", 422, "Invalid input"),
        ("/console/jobs?state=odd", 422, "Invalid input"),
        ("/console/bulk?action=odd", 404, "Page not found"),
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, status, "{path}: {}", page.body);
        assert!(page.has(text) && page.has("href=\"/\""), "{path}: {}", page.body);
    }
    let none = browser.get("/nowhere").await;
    assert!(
        none.status == 404 && none.header("content-type") == "application/problem+json",
        "a path outside the console must have an answer of the API"
    );
}

#[tokio::test]
async fn a_task_shows_its_request_its_attempts_and_its_reason() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let key = fixture.create_key(None, Scope::Write).await;
    let id =
        fixture.create_task(json!({"target": "http://a.example/hook", "method": "PUT"}), Some(&key)).await;
    fixture.fail_due_jobs("status 503", "busy now").await;
    let mut browser = fixture.signed_in(None, Scope::Write).await;
    let page = browser.get(&format!("/console/jobs/{id}")).await;
    for text in [
        "PUT http://a.example/hook",
        "hidden: your API key may not read bodies",
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
        page.has("The job has a new run") && page.has("state pending") && page.has(">Run now</button>"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn dead_letters_are_grouped_with_an_example() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    for path in ["a", "b"] {
        fixture.create_task(json!({"target": format!("http://a.example/{path}")}), None).await;
    }
    fixture.enqueue_job("render", &json!({})).await;
    fixture.fail_due_jobs("status 503", "busy").await;
    let page = fixture.browser().get("/console/dead").await;
    assert!(
        page.has("2: not retryable, http://a.example") && page.has("1: not retryable, render"),
        "{}",
        page.body
    );
    assert_eq!(page.body.matches("Example").count(), 2);
}

#[tokio::test]
async fn a_store_that_does_not_answer_has_an_error_page() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    fixture.faults.set_down(true);
    for path in PAGES {
        let page = browser.get(path).await;
        // Values in a cache may still be shown for a moment.
        assert!(page.status == 503 || page.status == 200, "{path}: {}", page.status);
        assert!(page.status == 200 || page.has("The store does not answer"), "{path}: {}", page.body);
    }
    let page = browser.get("/console/tasks").await;
    assert_eq!((page.status, page.header("retry-after")), (503, "1"));
    fixture.faults.set_down(false);
    assert_eq!(browser.get("/console/tasks").await.status, 200);
}
