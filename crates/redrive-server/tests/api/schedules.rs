//! The routes of schedules, for schedules that the library created.

use std::time::Duration;

use redrive::{MissedRuns, Redrive, Schedule, Task};
use redrive_wire::Scope;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::stage::Stage;

#[derive(Serialize, Deserialize)]
struct Report {
    days: u32,
}

impl Task for Report {
    const KIND: &'static str = "report";
    type Output = ();
}

#[tokio::test]
async fn schedules_are_shown_paused_resumed_and_run_now() {
    let stage = Stage::open().await;
    let library = Redrive::on(stage.store.clone());
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    library
        .schedule("nightly", nightly, Report { days: 1 })
        .queue("reports")
        .missed(MissedRuns::All)
        .await
        .unwrap();
    let hourly = Schedule::every(Duration::from_secs(3_600)).unwrap();
    library.schedule("hourly", hourly, Report { days: 0 }).tenant("acme").await.unwrap();

    let shown = stage.get("/v1/schedules").await.body;
    let [hourly, nightly] = &shown["items"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!(
        (&hourly["name"], &hourly["tenant"], &hourly["timing"]),
        (&json!("hourly"), &json!("acme"), &json!("every 3600s"))
    );
    let upcoming: Vec<i64> =
        hourly["upcoming"].as_array().unwrap().iter().map(|at| at.as_i64().unwrap()).collect();
    assert_eq!(upcoming.len(), 5);
    assert!(upcoming.windows(2).all(|pair| pair[1] - pair[0] == 3_600_000) && upcoming[0] % 3_600_000 == 0);
    assert!(hourly["handledUntil"].as_i64().unwrap() < upcoming[0]);
    let expected = json!({"name": "nightly", "kind": "report", "queue": "reports", "missed": "all", "paused": false,
        "timing": "0 3 * * * Europe/Berlin"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(nightly[field], *value, "{field}");
    }

    for (verb, paused) in [("pause", true), ("pause", true), ("resume", false)] {
        assert_eq!(stage.post(&format!("/v1/schedules/nightly/{verb}"), json!({})).await.status, 204);
        assert_eq!(stage.get("/v1/schedules").await.body["items"][1]["paused"], paused);
    }
    check_versions(&stage).await;
    let run = stage.post("/v1/schedules/nightly/run-now", json!({})).await.body;
    let job = stage.get(&format!("/v1/jobs/{}", run["jobId"].as_str().unwrap())).await.body;
    assert_eq!(
        (&job["kind"], &job["queue"], &job["payload"]["json"]),
        (&json!("report"), &json!("reports"), &json!({"days": 1}))
    );
    for verb in ["pause", "resume", "run-now"] {
        let missing = stage.post(&format!("/v1/schedules/other/{verb}"), json!({})).await;
        assert_eq!(missing.problem(), (404, "not_found", None), "{verb}");
    }

    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Admin).await);
    let theirs = stage.send("GET", "/v1/schedules", None, &[("authorization", &key)]).await.body;
    assert_eq!(theirs["items"].as_array().unwrap().len(), 1);
    assert_eq!(theirs["items"][0]["name"], "hourly");
}

/// The ETag of a schedule names its settings: a change under an older ETag is refused.
async fn check_versions(stage: &Stage) {
    let path = "/v1/schedules/nightly";
    let shown = stage.get(path).await;
    assert_eq!((shown.status, &shown.body["name"]), (200, &json!("nightly")));
    let active = shown.header("etag").unwrap().to_owned();
    let post = async |verb: &str, etag: &str| {
        stage.send("POST", &format!("{path}/{verb}"), None, &[("if-match", etag)]).await
    };
    let paused = post("pause", &active).await;
    assert_eq!(paused.status, 204, "{}", paused.body);
    let after = paused.header("etag").unwrap().to_owned();
    assert_eq!(stage.get(path).await.header("etag"), Some(after.as_str()));
    assert_ne!(after, active);
    assert_eq!(post("resume", &active).await.problem(), (412, "precondition_failed", None));
    assert_eq!(stage.get(path).await.body["paused"], true, "nothing changed");
    assert_eq!(post("resume", &format!("\"0\", {after}")).await.status, 204);
    assert_eq!(stage.get(path).await.header("etag"), Some(active.as_str()), "the same settings again");
    assert_eq!(post("resume", "*").await.status, 204);
    assert_eq!(stage.get("/v1/schedules/other").await.problem(), (404, "not_found", None));
}
