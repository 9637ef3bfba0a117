//! A person at the console: a real browser goes through each page and each action, against a service with a target that
//! works and one that does not.

mod actions;
mod inspect;
mod scene;

use redrive_testkit::servers::{Browser, DESKTOP};

use inspect::{Inspect, inspect};
use scene::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn a_person_goes_through_each_page_and_each_action() {
    let scene = Scene::set().await;
    let browser = Browser::start(DESKTOP).await;
    let person = actions::Person { browser: &browser, scene: &scene };
    person.signs_in().await;
    each_page(&person).await;
    person.finds_tasks().await;
    person.acts_on_those_selected().await;
    person.acts_on_one_task().await;
    person.acts_on_jobs().await;
    person.sees_a_page_follow_what_happens().await;
    person.redrives_and_discards_many().await;
    person.designs_a_policy().await;
    person.pauses_queues_and_bounds_them().await;
    person.pauses_and_runs_schedules().await;
    person.goes_by_keyboard().await;
    person.works_without_scripts().await;
    person.makes_a_key_that_may_only_look().await;
    inspect::keep(&browser, "overview-later").await;
    let logged = browser.logged().await;
    assert!(logged.is_empty(), "the browser complains: {logged:?}");
    browser.close().await;
    scene.end().await;
}

/// Looks at every page in both themes and on a phone.
async fn each_page(person: &actions::Person<'_>) {
    let scene = person.scene;
    let pages = [
        ("overview", "/".to_owned()),
        ("tasks", "/console/tasks".to_owned()),
        ("tasks-dead", "/console/tasks?state=dead".to_owned()),
        ("jobs", "/console/jobs".to_owned()),
        ("task-dead", format!("/console/jobs/{}", scene.exhausted)),
        ("task-waiting", format!("/console/jobs/{}", scene.delayed)),
        ("job-with-children", format!("/console/jobs/{}", scene.publishing)),
        ("dead", "/console/dead".to_owned()),
        ("bulk", "/console/bulk?verb=DISCARD&state=dead&kind=delivery".to_owned()),
        ("operations", "/console/operations".to_owned()),
        ("policies", "/console/policies".to_owned()),
        ("designer", "/console/policies/design?policy=quick".to_owned()),
        ("origins", "/console/origins".to_owned()),
        ("origin", scene.origin_page()),
        ("queues", "/console/queues".to_owned()),
        ("schedules", "/console/schedules".to_owned()),
        ("nodes", "/console/nodes".to_owned()),
        ("keys", "/console/keys".to_owned()),
        ("help", "/console/help".to_owned()),
        ("nothing", "/console/jobs/00000000-0000-7000-8000-000000000000".to_owned()),
    ];
    for (name, path) in pages {
        let page = Inspect { name, url: scene.url(&path), loads: name != "nothing" };
        inspect(person.browser, &page).await;
    }
}
