//! Schedules of the library, seen and steered over HTTP.

use std::time::Duration;

use redrive::{Missed, Redrive, Schedule, Task};
use redrive_server::keys::Scope;
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
async fn schedules_are_shown_paused_resumed_and_run_out_of_turn() {
    let stage = Stage::open().await;
    let library = Redrive::on(stage.store.clone());
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    library
        .schedule("nightly", nightly, Report { days: 1 })
        .queue("reports")
        .missed(Missed::All)
        .await
        .unwrap();
    let hourly = Schedule::every(Duration::from_secs(3_600)).unwrap();
    library.schedule("hourly", hourly, Report { days: 0 }).tenant("acme").await.unwrap();

    let shown = stage.get("/schedules").await.body;
    let [hourly, nightly] = &shown["items"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!(
        (&hourly["name"], &hourly["tenant"], &hourly["timing"]),
        (&json!("hourly"), &json!("acme"), &json!("every 3600s"))
    );
    let upcoming: Vec<i64> =
        hourly["upcoming"].as_array().unwrap().iter().map(|at| at.as_i64().unwrap()).collect();
    assert_eq!(upcoming.len(), 5);
    assert!(upcoming.windows(2).all(|pair| pair[1] - pair[0] == 3_600_000) && upcoming[0] % 3_600_000 == 0);
    assert!(hourly["settledUntil"].as_i64().unwrap() < upcoming[0]);
    let expected = json!({"name": "nightly", "kind": "report", "queue": "reports", "missed": "all", "paused": false,
        "timing": "0 3 * * * Europe/Berlin"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(nightly[field], *value, "{field}");
    }

    for (verb, paused) in [("pause", true), ("pause", true), ("resume", false)] {
        assert_eq!(stage.post(&format!("/schedules/nightly/{verb}"), json!({})).await.status, 204);
        assert_eq!(stage.get("/schedules").await.body["items"][1]["paused"], paused);
    }
    let run = stage.post("/schedules/nightly/run-now", json!({})).await.body;
    let job = stage.get(&format!("/jobs/{}", run["jobId"].as_str().unwrap())).await.body;
    assert_eq!(
        (&job["kind"], &job["queue"], &job["payload"]["json"]),
        (&json!("report"), &json!("reports"), &json!({"days": 1}))
    );
    for verb in ["pause", "resume", "run-now"] {
        let nothing = stage.post(&format!("/schedules/other/{verb}"), json!({})).await;
        assert_eq!(nothing.problem(), (404, "NOT_FOUND", None), "{verb}");
    }

    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Admin).await);
    let theirs = stage.send("GET", "/schedules", None, &[("authorization", &key)]).await.body;
    assert_eq!(theirs["items"].as_array().unwrap().len(), 1);
    assert_eq!(theirs["items"][0]["name"], "hourly");
}
