//! The actions of a user of the console, and checks of their results.

use std::time::Duration;

use redrive_testkit::servers::{Browser, Element};
use serde_json::{Value, json};

use super::fixture::ConsoleFixture;
use super::inspect::{InspectedPage, TAB, inspect, save_screenshot, wait_for_script};
use crate::fixtures::eventually;

/// The longest wait for an element of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A user with a browser.
pub(super) struct User<'a> {
    pub(super) browser: &'a Browser,
    pub(super) fixture: &'a ConsoleFixture,
}

impl User<'_> {
    async fn open(&self, path: &str) {
        self.browser.open(&self.fixture.url(path)).await;
    }

    async fn see(&self, selector: &str) -> Element {
        self.browser.wait_for(selector, PAGE_TIMEOUT).await
    }

    async fn click(&self, selector: &str) {
        self.browser.click_on(selector, PAGE_TIMEOUT).await;
    }

    async fn read(&self, selector: &str) -> String {
        self.browser.text_of(selector, PAGE_TIMEOUT).await
    }

    /// Clicks on an element that asks for confirmation, and confirms.
    async fn confirm(&self, selector: &str) {
        self.click(selector).await;
        self.browser.accept_dialog().await;
    }

    async fn fill(&self, selector: &str, text: &str) {
        self.browser.fill(selector, text, PAGE_TIMEOUT).await;
    }

    async fn choose(&self, selector: &str, value: &str) {
        self.click(&format!("{selector} option[value='{value}']")).await;
    }

    /// Waits until the page shows this notice about the last action.
    async fn wait_for_notice(&self, text: &str) {
        let notice = "return document.querySelector('.notice[role=status]')?.textContent ?? ''";
        eventually(&format!("the notice contains {text:?}"), async || {
            self.browser.run(notice).await.as_str().filter(|notice| notice.contains(text)).map(drop)
        })
        .await;
    }

    /// The selector of the button in the form with this action.
    fn button(path: &str) -> String {
        format!("form[action='{path}'] button")
    }

    pub(super) async fn signs_in(&self) {
        self.open("/console/tasks?state=dead").await;
        let page = InspectedPage { name: "sign-in", url: self.browser.url().await, is_error: false };
        inspect(self.browser, &page).await;
        self.fill("[name=key]", "rdk_0123456789abcdef_wrong").await;
        self.click("main button").await;
        let rejected = self.read("#rejected").await;
        assert!(rejected.contains("unknown"), "{rejected}");
        // The browser logs the answer with status 401.
        self.browser.take_log().await;
        self.fill("[name=key]", &self.fixture.key).await;
        self.click("main button").await;
        self.see("#rows").await;
        assert!(
            self.browser.url().await.ends_with("/console/tasks?state=dead"),
            "the browser must return to the page"
        );
        let readable = self.browser.run("return document.cookie").await;
        assert_eq!(readable, json!(""), "a script can read the cookie");
    }

    pub(super) async fn finds_tasks(&self) {
        self.open("/console/tasks").await;
        self.see("#rows table").await;
        self.browser.press("/").await;
        let focused = self.browser.run("return document.activeElement.name").await;
        assert_eq!(focused, json!("text"), "the key / does not move the focus to the filter");
        self.browser.press("b").await;
        self.fill("[name=text]", "HOOK/1").await;
        self.choose("[name=state]", "dead").await;
        self.click("form.filter button").await;
        self.wait_for_rows(1).await;
        let found = self.read("#rows td a").await;
        assert!(found.ends_with("/hook/1"), "{found}");
        self.open("/console/tasks?reason=not_retryable").await;
        self.wait_for_rows(4).await;
        self.open("/console/jobs?kind=charge&queue=bank").await;
        self.wait_for_rows(1).await;
        self.open("/console/tasks?tenant=nobody").await;
        self.wait_for_rows(0).await;
    }

    /// Waits until the list has this number of rows.
    async fn wait_for_rows(&self, rows: u64) {
        let count =
            "return document.querySelector('#count') && document.querySelectorAll('#rows tbody tr').length";
        let what = format!("{} has {rows} rows", self.browser.url().await);
        eventually(&what, async || (self.browser.run(count).await == json!(rows)).then_some(())).await;
    }

    /// Waits until an element contains this text.
    async fn wait_for_text(&self, selector: &str, text: &str) {
        let what = format!("{selector} shows {text:?}");
        eventually(&what, async || self.read(selector).await.contains(text).then_some(())).await;
    }

    pub(super) async fn acts_on_selected_tasks(&self) {
        let ids = [
            self.fixture.create_delayed_task("/pick/1").await,
            self.fixture.create_delayed_task("/pick/2").await,
            self.fixture.create_delayed_task("/pick/3").await,
        ];
        let list = format!(
            "/console/tasks?target={}",
            self.fixture.working_target.url("/pick").replace(':', "%3A").replace('/', "%2F")
        );
        self.open(&list).await;
        let disabled = "return document.querySelector('button[value=cancel]').disabled";
        assert_eq!(
            self.browser.run(disabled).await,
            json!(true),
            "the button must be disabled while nothing is selected"
        );
        for verb in ["pause", "resume", "run-now"] {
            self.open(&list).await;
            self.click(&format!("input[value='{}']", ids[0])).await;
            self.click(&format!("button[value={verb}]")).await;
            self.wait_for_notice("1 job is").await;
        }
        self.fixture.wait_for_state(&ids[0], "succeeded").await;
        self.open(&list).await;
        self.click("input[data-all]").await;
        let chosen = self.read("[data-chosen]").await;
        assert_eq!(chosen, "3 selected");
        self.click("button[value=cancel]").await;
        self.browser.dismiss_dialog().await;
        assert_eq!(
            self.fixture.job(&ids[1]).await["state"],
            "pending",
            "a dismissed dialog must change nothing"
        );
        self.confirm("button[value=cancel]").await;
        self.wait_for_notice("2 jobs are cancelled; 1 job was not changed").await;
        for id in &ids[1..] {
            assert_eq!(self.fixture.job(id).await["state"], "cancelled");
        }
    }

    pub(super) async fn acts_on_one_task(&self) {
        let id = self.fixture.create_delayed_task("/one").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        for (verb, notice) in [("pause", "Paused"), ("resume", "Resumed"), ("run-now", "The job is due now")]
        {
            self.click(&Self::button(&format!("{path}/{verb}"))).await;
            self.wait_for_notice(notice).await;
        }
        self.fixture.wait_for_state(&id, "succeeded").await;
        let id = self.fixture.create_delayed_task("/two").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        self.confirm(&Self::button(&format!("{path}/cancel"))).await;
        self.wait_for_notice("Cancelled").await;
        let dead = format!("/console/jobs/{}", self.fixture.dead_task);
        self.open(&dead).await;
        let page = self.read("main").await;
        for text in ["attempts exhausted", "3 of 3", "503", "authorization", "••••••", "x-order"]
        {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("hush"), "the page shows a secret");
        self.click("details summary").await;
        let excerpt = self.read("details[open] pre").await;
        assert_eq!(excerpt, "<b>busy</b>, try later");
        self.click(&Self::button(&format!("{dead}/redrive"))).await;
        self.wait_for_notice("The job has a new run").await;
        self.fixture.wait_for_state(&self.fixture.dead_task, "dead").await;
        self.open(&dead).await;
        assert_eq!(self.browser.run("return document.querySelectorAll('.timeline').length").await, json!(2));
        save_screenshot(self.browser, "task-redriven").await;
        self.confirm(&Self::button(&format!("{dead}/discard"))).await;
        self.wait_for_notice("The job was discarded").await;
        assert_eq!(
            self.fixture.client.get(&format!("/v1/jobs/{}", self.fixture.dead_task)).await.status,
            404
        );
    }

    pub(super) async fn acts_on_jobs(&self) {
        let path = format!("/console/jobs/{}", self.fixture.waiting_job);
        self.open(&path).await;
        let tree = self.read(".tree").await;
        for text in ["render", "2 children", "resize"] {
            assert!(tree.contains(text), "{text}: {tree}");
        }
        self.click(".tree ul a").await;
        self.wait_for_text("main", "child of").await;
        self.open(&path).await;
        self.fill("[name=value]", "\"Ada\"").await;
        self.click(&Self::button(&format!("{path}/signal"))).await;
        self.wait_for_notice("The signal was sent").await;
        self.fixture.wait_for_state(&self.fixture.waiting_job, "succeeded").await;
        let charged = format!("/console/jobs/{}", self.fixture.dead_job);
        self.open(&charged).await;
        let page = self.read("main").await;
        assert!(page.contains("no such account") && !page.contains("hush"), "{page}");
        self.confirm(&Self::button(&format!("{charged}/redrive-afresh"))).await;
        self.wait_for_notice("The job has a new run").await;
        let is_redriven = async || (self.fixture.job(&self.fixture.dead_job).await["run"] == 2).then_some(());
        eventually("the job is redriven", is_redriven).await;
        self.fixture.wait_for_state(&self.fixture.dead_job, "dead").await;
    }

    pub(super) async fn sees_live_updates(&self) {
        let id = self.fixture.create_delayed_task("/follow").await;
        self.open(&format!("/console/jobs/{id}")).await;
        self.browser.run("window.same = true").await;
        self.see("h1 .pending").await;
        self.fixture.client.post(&format!("/v1/jobs/{id}/run-now"), &json!({})).await.json(200);
        self.see("h1 .succeeded").await;
        assert_eq!(self.browser.run("return window.same").await, json!(true), "the page was loaded again");
        self.click("#live").await;
        assert_eq!(self.read("#live").await, "Live: off");
        self.click("#live").await;
    }

    pub(super) async fn starts_operations(&self) {
        // From a group of dead letters, with a rate limit, and with a canary that fails.
        self.open("/console/dead").await;
        let group = "form:has(input[name=reason][value=not_retryable]):has(input[name=kind][value=delivery])";
        self.fill(&format!("{group} [name=rate]"), "100").await;
        self.fill(&format!("{group} [name=canary]"), "1").await;
        self.click(&format!("{group} button[value=redrive]")).await;
        assert_eq!(self.read("#matched").await, "4");
        self.click("main form button").await;
        let ended = "const s = document.querySelector('#operation-state')?.textContent; return s && s !== 'running' && s";
        let state = wait_for_script(self.browser, "the operation ends", ended).await;
        assert!(state.as_str().unwrap().contains("canary failed"), "{state}");
        save_screenshot(self.browser, "operation-light").await;
        // From a list, with a low rate, and then cancelled.
        self.open("/console/tasks?state=dead").await;
        self.click("a[href*='action=redrive']").await;
        self.fill("[name=rate]", "0.1").await;
        self.click("main form button").await;
        self.confirm("form[action$='/cancel'] button").await;
        self.wait_for_notice("The operation was cancelled").await;
        self.starts_cancel_and_run_now().await;
        self.open("/console/dead").await;
        self.click(&format!("{group} button[value=discard]")).await;
        self.click("[name=sure]").await;
        self.click("main form button").await;
        let state = wait_for_script(self.browser, "the operation ends", ended).await;
        assert_eq!(state, json!("done"));
        let left = self.fixture.client.list("/v1/jobs?state=dead&kind=delivery&reason=not_retryable").await;
        assert_eq!(left, Vec::<Value>::new());
        self.open("/console/operations").await;
        let list = self.read("#operations").await;
        assert!(list.contains("Discard") && list.contains("Redrive") && list.contains("Cancel"), "{list}");
        save_screenshot(self.browser, "operations-light").await;
    }

    async fn starts_cancel_and_run_now(&self) {
        let mut ids = Vec::new();
        for number in 0..6 {
            ids.push(self.fixture.create_delayed_task(&format!("/many/{number}")).await);
        }
        let bulk_page = |verb: &str, path: &str| {
            let target = self.fixture.working_target.url(path).replace(':', "%3A").replace('/', "%2F");
            format!("/console/bulk?action={verb}&state=pending&kind=delivery&target={target}")
        };
        self.open(&bulk_page("run_now", "/many/0")).await;
        self.click("main form button").await;
        self.see("#operation").await;
        self.fixture.wait_for_state(&ids[0], "succeeded").await;
        self.open(&bulk_page("cancel", "/many")).await;
        assert_eq!(self.read("#matched").await, "5");
        self.click("[name=sure]").await;
        self.click("main form button").await;
        for id in &ids[1..] {
            self.fixture.wait_for_state(id, "cancelled").await;
        }
    }

    pub(super) async fn designs_a_policy(&self) {
        self.open("/console/policies").await;
        self.click("a[href='/console/policies/design']").await;
        self.see("#waits svg").await;
        let before = self.browser.run("return document.querySelector('#waits svg').outerHTML").await;
        self.wait_for_text("#replay", "needed more than one attempt").await;
        self.browser.run("window.same = true").await;
        self.fill("[name=policyId]", "mail").await;
        self.fill("[name=maxAttempts]", "5").await;
        self.choose("[name=jitterType]", "proportional").await;
        self.fill("[name=jitterFraction]", "0.2").await;
        let redrawn = format!(
            "const s = document.querySelector('#waits svg'); return s && s.outerHTML !== {before} && s.getAttribute('aria-label').includes('attempt 5')"
        );
        wait_for_script(self.browser, "the chart follows the fields", &redrawn).await;
        assert_eq!(self.browser.run("return window.same").await, json!(true));
        save_screenshot(self.browser, "designer-changed").await;
        self.fill("[name=jitterFraction]", "7").await;
        wait_for_script(
            self.browser,
            "the page names the invalid field",
            "return document.querySelector('#preview .problem')?.textContent.includes('jitterFraction')",
        )
        .await;
        self.fill("[name=jitterFraction]", "0.5").await;
        self.click("button[formaction='/console/policies/save']").await;
        self.wait_for_notice("Saved").await;
        self.fill("[name=maxAttempts]", "6").await;
        self.click("button[formaction='/console/policies/save']").await;
        self.wait_for_notice("Saved").await;
        // The notice may still be the one about the first version.
        let saved = eventually("the second version is saved", async || {
            let saved = self.fixture.client.get("/v1/policies/mail").await.json(200);
            (saved["version"] == 2).then_some(saved)
        });
        let saved = saved.await;
        assert_eq!((&saved["maxAttempts"], &saved["jitterFraction"]), (&json!(6), &json!(0.5)));
        self.open("/console/policies").await;
        self.confirm("button[aria-label='Remove mail']").await;
        self.wait_for_notice("The policy was removed").await;
        assert_eq!(self.fixture.client.get("/v1/policies/mail").await.status, 404);
    }

    pub(super) async fn pauses_and_limits_queues(&self) {
        self.open("/console/queues").await;
        self.click("button[aria-label='Pause bank']").await;
        self.wait_for_notice("Paused").await;
        save_screenshot(self.browser, "queues-paused").await;
        self.click("button[aria-label='Resume bank']").await;
        self.wait_for_notice("Resumed").await;
        let every = "form:has(input[name=queue][value='*']) button";
        self.confirm(every).await;
        self.wait_for_notice("Paused").await;
        self.click(every).await;
        self.wait_for_notice("Resumed").await;
        let limits = "form[action='/console/queues/limits']:has([value=bank])";
        self.click("details:has([name=queue][value=bank]) summary").await;
        self.fill(&format!("{limits} [name=concurrency]"), "3").await;
        self.fill(&format!("{limits} [name=rateCount]"), "10").await;
        self.fill(&format!("{limits} [name=rateSeconds]"), "60").await;
        self.click(&format!("{limits} button")).await;
        self.wait_for_notice("The limits apply").await;
        self.wait_for_text("#queues", "Limits: 3 at once, 10 starts per 1 min").await;
        self.click("details:has([name=queue][value=bank]) summary").await;
        for field in ["concurrency", "rateCount", "rateSeconds"] {
            self.fill(&format!("{limits} [name={field}]"), "").await;
        }
        self.click(&format!("{limits} button")).await;
        self.wait_for_notice("The queue has no limits").await;
    }

    pub(super) async fn pauses_and_runs_schedules(&self) {
        self.open("/console/schedules").await;
        self.click("button[aria-label='Pause nightly']").await;
        self.wait_for_notice("Paused").await;
        self.click("button[aria-label='Resume nightly']").await;
        self.wait_for_notice("Resumed").await;
        self.click("button[aria-label='Run nightly now']").await;
        self.wait_for_notice("The schedule has enqueued a job").await;
        let id = self.browser.url().await.split(['/', '?']).find(|part| part.len() == 36).unwrap().to_owned();
        self.fixture.wait_for_state(&id, "succeeded").await;
    }

    pub(super) async fn uses_the_keyboard(&self) {
        self.open("/").await;
        self.browser.press(TAB).await;
        self.browser.press("\u{E007}").await;
        let at = self.browser.run("return document.activeElement.id").await;
        assert_eq!(at, json!("main"), "the first tab stop does not skip the menu");
        self.browser.press("g").await;
        self.browser.press("d").await;
        self.see("#dead").await;
        self.browser.press("?").await;
        self.see("kbd").await;
    }

    pub(super) async fn works_without_scripts(&self) {
        self.browser.set_scripts_enabled(false).await;
        let id = self.fixture.create_delayed_task("/plain").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        self.click(&Self::button(&format!("{path}/cancel"))).await;
        self.wait_for_notice("Cancelled").await;
        self.open("/console/policies/design").await;
        self.fill("[name=maxAttempts]", "3").await;
        self.click("form[data-design] button").await;
        let drawn = self.read("#within").await;
        assert!(drawn.contains("budget"), "{drawn}");
        self.browser.set_scripts_enabled(true).await;
    }

    pub(super) async fn creates_and_revokes_a_read_only_key(&self) {
        self.open("/console/keys").await;
        self.fill("[name=name]", "reader").await;
        self.click("section form button").await;
        let key = self.read("#created").await;
        assert!(key.starts_with("rdk_"), "{key}");
        save_screenshot(self.browser, "key-created").await;
        self.click("form[action='/console/sign-out'] button").await;
        self.wait_for_notice("Signed out").await;
        self.fill("[name=key]", &key).await;
        self.click("main button").await;
        self.see("#overview").await;
        self.open(&format!("/console/jobs/{}", self.fixture.delayed_task)).await;
        self.see("#why").await;
        assert_eq!(
            self.browser.run("return document.querySelectorAll('main button').length").await,
            json!(0)
        );
        save_screenshot(self.browser, "task-read-only").await;
        self.open("/console/keys").await;
        let forbidden = self.read("main").await;
        assert!(forbidden.contains("Your API key does not allow this"), "{forbidden}");
        self.browser.take_log().await;
        self.click("form[action='/console/sign-out'] button").await;
        self.fill("[name=key]", &self.fixture.key).await;
        self.click("main button").await;
        self.see("#overview").await;
        self.open("/console/keys").await;
        self.confirm("button[aria-label='Revoke reader']").await;
        self.wait_for_notice("The key was revoked").await;
        let rejected = self.fixture.service.client().with_key(&key).get("/v1/jobs").await;
        assert_eq!(rejected.status, 401);
        self.open("/").await;
        self.see("#overview").await;
    }
}
