//! Tests of the console in a real browser: every page and every action.

mod actions;
mod fixture;
mod inspect;

use redrive_testkit::servers::{Browser, DESKTOP};

use fixture::ConsoleFixture;
use inspect::{InspectedPage, inspect};

#[tokio::test(flavor = "multi_thread")]
async fn every_page_and_every_action_works_in_a_browser() {
    let fixture = ConsoleFixture::start().await;
    let browser = Browser::start(DESKTOP).await;
    let user = actions::User { browser: &browser, fixture: &fixture };
    user.signs_in().await;
    inspect_every_page(&user).await;
    user.finds_tasks().await;
    user.acts_on_selected_tasks().await;
    user.acts_on_one_task().await;
    user.acts_on_jobs().await;
    user.sees_live_updates().await;
    user.starts_operations().await;
    user.designs_a_policy().await;
    user.pauses_and_limits_queues().await;
    user.pauses_and_runs_schedules().await;
    user.uses_the_keyboard().await;
    user.works_without_scripts().await;
    user.creates_and_revokes_a_read_only_key().await;
    inspect::save_screenshot(&browser, "overview-later").await;
    let logged = browser.take_log().await;
    assert!(logged.is_empty(), "the browser logged errors: {logged:?}");
    browser.close().await;
    fixture.end().await;
}

/// Inspects every page, in both colour schemes and on a phone.
async fn inspect_every_page(user: &actions::User<'_>) {
    let fixture = user.fixture;
    let pages = [
        ("overview", "/".to_owned()),
        ("tasks", "/console/tasks".to_owned()),
        ("tasks-dead", "/console/tasks?state=dead".to_owned()),
        ("jobs", "/console/jobs".to_owned()),
        ("task-dead", format!("/console/jobs/{}", fixture.dead_task)),
        ("task-waiting", format!("/console/jobs/{}", fixture.delayed_task)),
        ("job-with-children", format!("/console/jobs/{}", fixture.waiting_job)),
        ("dead", "/console/dead".to_owned()),
        ("bulk", "/console/bulk?action=discard&state=dead&kind=delivery".to_owned()),
        ("operations", "/console/operations".to_owned()),
        ("policies", "/console/policies".to_owned()),
        ("designer", "/console/policies/design?policy=quick".to_owned()),
        ("origins", "/console/origins".to_owned()),
        ("origin", fixture.origin_page()),
        ("queues", "/console/queues".to_owned()),
        ("schedules", "/console/schedules".to_owned()),
        ("nodes", "/console/nodes".to_owned()),
        ("keys", "/console/keys".to_owned()),
        ("help", "/console/help".to_owned()),
        ("not-found", "/console/jobs/00000000-0000-7000-8000-000000000000".to_owned()),
    ];
    for (name, path) in pages {
        let page = InspectedPage { name, url: fixture.url(&path), is_error: name == "not-found" };
        inspect(user.browser, &page).await;
    }
}
