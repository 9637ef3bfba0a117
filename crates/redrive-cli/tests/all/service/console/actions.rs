//! What a person does at the console, and what must have come of it.

use std::time::Duration;

use redrive_testkit::servers::{Browser, Element};
use serde_json::{Value, json};

use super::inspect::{Inspect, TAB, inspect, keep, until};
use super::scene::Scene;
use crate::stage::eventually;

/// More than a page needs to show something, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Someone with a browser.
pub(super) struct Person<'a> {
    pub(super) browser: &'a Browser,
    pub(super) scene: &'a Scene,
}

impl Person<'_> {
    async fn open(&self, path: &str) {
        self.browser.open(&self.scene.url(path)).await;
    }

    async fn see(&self, selector: &str) -> Element {
        self.browser.see(selector, SOON).await
    }

    async fn click(&self, selector: &str) {
        self.browser.click_on(selector, SOON).await;
    }

    async fn read(&self, selector: &str) -> String {
        self.browser.read(selector, SOON).await
    }

    /// Clicks on what is asked for twice, and says yes.
    async fn confirm(&self, selector: &str) {
        self.click(selector).await;
        self.browser.accept().await;
    }

    async fn fill(&self, selector: &str, text: &str) {
        self.browser.fill(selector, text, SOON).await;
    }

    async fn choose(&self, selector: &str, value: &str) {
        self.click(&format!("{selector} option[value='{value}']")).await;
    }

    /// Waits until the page says what was just done.
    async fn told(&self, text: &str) {
        let notice = "return document.querySelector('.notice[role=status]')?.textContent ?? ''";
        eventually(&format!("{text:?} is said"), async || {
            self.browser.run(notice).await.as_str().filter(|said| said.contains(text)).map(drop)
        })
        .await;
    }

    /// The button of a form, by where that leads.
    fn button(path: &str) -> String {
        format!("form[action='{path}'] button")
    }

    pub(super) async fn signs_in(&self) {
        self.open("/console/tasks?state=dead").await;
        let page = Inspect { name: "sign-in", url: self.browser.url().await, loads: true };
        inspect(self.browser, &page).await;
        self.fill("[name=key]", "rdk_0123456789abcdef_wrong").await;
        self.click("main button").await;
        let refused = self.read("#refused").await;
        assert!(refused.contains("not known"), "{refused}");
        // The browser notes that it was refused.
        self.browser.logged().await;
        self.fill("[name=key]", &self.scene.key).await;
        self.click("main button").await;
        self.see("#rows").await;
        assert!(self.browser.url().await.ends_with("/console/tasks?state=dead"), "one is led back");
        let readable = self.browser.run("return document.cookie").await;
        assert_eq!(readable, json!(""), "no script can read the key");
    }

    pub(super) async fn finds_tasks(&self) {
        self.open("/console/tasks").await;
        self.see("#rows table").await;
        self.browser.press("/").await;
        let focused = self.browser.run("return document.activeElement.name").await;
        assert_eq!(focused, json!("text"), "the key / leads to the filter");
        self.browser.press("b").await;
        self.fill("[name=text]", "HOOK/1").await;
        self.choose("[name=state]", "dead").await;
        self.click("form.filter button").await;
        self.rows_are(1).await;
        let found = self.read("#rows td a").await;
        assert!(found.ends_with("/hook/1"), "{found}");
        self.open("/console/tasks?reason=NOT_RETRYABLE").await;
        self.rows_are(4).await;
        self.open("/console/jobs?kind=charge&queue=bank").await;
        self.rows_are(1).await;
        self.open("/console/tasks?tenant=nobody").await;
        self.rows_are(0).await;
    }

    /// Waits until a list has so many rows.
    async fn rows_are(&self, rows: u64) {
        let count =
            "return document.querySelector('#count') && document.querySelectorAll('#rows tbody tr').length";
        let what = format!("{} has {rows} rows", self.browser.url().await);
        eventually(&what, async || (self.browser.run(count).await == json!(rows)).then_some(())).await;
    }

    /// Waits until a part of the page says something.
    async fn shows(&self, selector: &str, text: &str) {
        let what = format!("{selector} shows {text:?}");
        eventually(&what, async || self.read(selector).await.contains(text).then_some(())).await;
    }

    pub(super) async fn acts_on_those_selected(&self) {
        let ids = [
            self.scene.later("/pick/1").await,
            self.scene.later("/pick/2").await,
            self.scene.later("/pick/3").await,
        ];
        let pick = format!(
            "/console/tasks?subject={}",
            self.scene.works.url("/pick").replace(':', "%3A").replace('/', "%2F")
        );
        self.open(&pick).await;
        let disabled = "return document.querySelector('button[value=cancel]').disabled";
        assert_eq!(self.browser.run(disabled).await, json!(true), "nothing is selected yet");
        for verb in ["pause", "resume", "run-now"] {
            self.open(&pick).await;
            self.click(&format!("input[value='{}']", ids[0])).await;
            self.click(&format!("button[value={verb}]")).await;
            self.told("1 job is").await;
        }
        self.scene.until(&ids[0], "succeeded").await;
        self.open(&pick).await;
        self.click("input[data-all]").await;
        let chosen = self.read("[data-chosen]").await;
        assert_eq!(chosen, "3 selected");
        self.click("button[value=cancel]").await;
        self.browser.dismiss().await;
        assert_eq!(self.scene.job(&ids[1]).await["state"], "pending", "a no is a no");
        self.confirm("button[value=cancel]").await;
        self.told("2 jobs are cancelled; 1 was left as before").await;
        for id in &ids[1..] {
            assert_eq!(self.scene.job(id).await["state"], "cancelled");
        }
    }

    pub(super) async fn acts_on_one_task(&self) {
        let id = self.scene.later("/one").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        for (verb, said) in [("pause", "Paused"), ("resume", "Resumed"), ("run-now", "The wait is skipped")] {
            self.click(&Self::button(&format!("{path}/{verb}"))).await;
            self.told(said).await;
        }
        self.scene.until(&id, "succeeded").await;
        let id = self.scene.later("/two").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        self.confirm(&Self::button(&format!("{path}/cancel"))).await;
        self.told("Cancelled").await;
        let dead = format!("/console/jobs/{}", self.scene.exhausted);
        self.open(&dead).await;
        let page = self.read("main").await;
        for text in ["attempts exhausted", "3 of 3", "503", "authorization", "••••••", "x-order"]
        {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("hush"), "a secret is shown");
        self.click("details summary").await;
        let excerpt = self.read("details[open] pre").await;
        assert_eq!(excerpt, "<b>busy</b>, try later");
        self.click(&Self::button(&format!("{dead}/redrive"))).await;
        self.told("Driven again").await;
        self.scene.until(&self.scene.exhausted, "dead").await;
        self.open(&dead).await;
        assert_eq!(self.browser.run("return document.querySelectorAll('.timeline').length").await, json!(2));
        keep(self.browser, "task-driven-twice").await;
        self.confirm(&Self::button(&format!("{dead}/discard"))).await;
        self.told("Removed for good").await;
        assert_eq!(self.scene.client.get(&format!("/jobs/{}", self.scene.exhausted)).await.status, 404);
    }

    pub(super) async fn acts_on_jobs(&self) {
        let path = format!("/console/jobs/{}", self.scene.publishing);
        self.open(&path).await;
        let tree = self.read(".tree").await;
        for text in ["render", "2 children", "resize"] {
            assert!(tree.contains(text), "{text}: {tree}");
        }
        self.click(".tree ul a").await;
        self.shows("main", "child of").await;
        self.open(&path).await;
        self.fill("[name=value]", "\"Ada\"").await;
        self.click(&Self::button(&format!("{path}/signal"))).await;
        self.told("The signal is sent").await;
        self.scene.until(&self.scene.publishing, "succeeded").await;
        let charged = format!("/console/jobs/{}", self.scene.charged);
        self.open(&charged).await;
        let page = self.read("main").await;
        assert!(page.contains("no such account") && !page.contains("hush"), "{page}");
        self.confirm(&Self::button(&format!("{charged}/redrive-afresh"))).await;
        self.told("Driven again").await;
        let again = async || (self.scene.job(&self.scene.charged).await["run"] == 2).then_some(());
        eventually("it is driven again", again).await;
        self.scene.until(&self.scene.charged, "dead").await;
    }

    pub(super) async fn sees_a_page_follow_what_happens(&self) {
        let id = self.scene.later("/follow").await;
        self.open(&format!("/console/jobs/{id}")).await;
        self.browser.run("window.same = true").await;
        self.see("h1 .pending").await;
        self.scene.client.post(&format!("/jobs/{id}/run-now"), &json!({})).await.json(200);
        self.see("h1 .succeeded").await;
        assert_eq!(
            self.browser.run("return window.same").await,
            json!(true),
            "the page was not loaded again"
        );
        self.click("#live").await;
        assert_eq!(self.read("#live").await, "Live: off");
        self.click("#live").await;
    }

    pub(super) async fn redrives_and_discards_many(&self) {
        // From a group of dead letters, at a rate, with a canary that cannot succeed.
        self.open("/console/dead").await;
        let group = "form:has(input[name=reason][value=NOT_RETRYABLE]):has(input[name=kind][value=delivery])";
        self.fill(&format!("{group} [name=rate]"), "100").await;
        self.fill(&format!("{group} [name=canary]"), "1").await;
        self.click(&format!("{group} button[value=REDRIVE]")).await;
        assert_eq!(self.read("#matched").await, "4");
        self.click("main form button").await;
        let ended = "const s = document.querySelector('#operation-state')?.textContent; return s && s !== 'running' && s";
        let state = until(self.browser, "the operation ends", ended).await;
        assert!(state.as_str().unwrap().contains("one of the first did not succeed"), "{state}");
        keep(self.browser, "operation-light").await;
        // From a list, slowly, and stopped.
        self.open("/console/tasks?state=dead").await;
        self.click("a[href*='verb=REDRIVE']").await;
        self.fill("[name=rate]", "0.1").await;
        self.click("main form button").await;
        self.confirm("form[action$='/stop'] button").await;
        self.told("Stopped").await;
        self.cancels_and_runs_many().await;
        self.open("/console/dead").await;
        self.click(&format!("{group} button[value=DISCARD]")).await;
        self.click("[name=sure]").await;
        self.click("main form button").await;
        let state = until(self.browser, "the operation ends", ended).await;
        assert_eq!(state, json!("done"));
        let left = self.scene.client.list("/jobs?state=dead&kind=delivery&reason=NOT_RETRYABLE").await;
        assert_eq!(left, Vec::<Value>::new());
        self.open("/console/operations").await;
        let list = self.read("#operations").await;
        assert!(list.contains("Discard") && list.contains("Redrive") && list.contains("Cancel"), "{list}");
        keep(self.browser, "operations-light").await;
    }

    async fn cancels_and_runs_many(&self) {
        let mut ids = Vec::new();
        for number in 0..6 {
            ids.push(self.scene.later(&format!("/many/{number}")).await);
        }
        let many = |verb: &str, path: &str| {
            let subject = self.scene.works.url(path).replace(':', "%3A").replace('/', "%2F");
            format!("/console/bulk?verb={verb}&state=pending&kind=delivery&subject={subject}")
        };
        self.open(&many("RUN_NOW", "/many/0")).await;
        self.click("main form button").await;
        self.see("#operation").await;
        self.scene.until(&ids[0], "succeeded").await;
        self.open(&many("CANCEL", "/many")).await;
        assert_eq!(self.read("#matched").await, "5");
        self.click("[name=sure]").await;
        self.click("main form button").await;
        for id in &ids[1..] {
            self.scene.until(id, "cancelled").await;
        }
    }

    pub(super) async fn designs_a_policy(&self) {
        self.open("/console/policies").await;
        self.click("a[href='/console/policies/design']").await;
        self.see("#waits svg").await;
        let before = self.browser.run("return document.querySelector('#waits svg').outerHTML").await;
        self.shows("#replay", "needed more than one attempt").await;
        self.browser.run("window.same = true").await;
        self.fill("[name=policyId]", "mail").await;
        self.fill("[name=maxAttempts]", "5").await;
        self.choose("[name=jitterType]", "PROPORTIONAL").await;
        self.fill("[name=jitterFraction]", "0.2").await;
        let redrawn = format!(
            "const s = document.querySelector('#waits svg'); return s && s.outerHTML !== {before} && s.getAttribute('aria-label').includes('attempt 5')"
        );
        until(self.browser, "the drawing follows the fields", &redrawn).await;
        assert_eq!(self.browser.run("return window.same").await, json!(true));
        keep(self.browser, "designer-changed").await;
        self.fill("[name=jitterFraction]", "7").await;
        until(
            self.browser,
            "what is wrong is said",
            "return document.querySelector('#preview .problem')?.textContent.includes('jitterFraction')",
        )
        .await;
        self.fill("[name=jitterFraction]", "0.5").await;
        self.click("button[formaction='/console/policies/save']").await;
        self.told("Saved").await;
        self.fill("[name=maxAttempts]", "6").await;
        self.click("button[formaction='/console/policies/save']").await;
        self.told("Saved").await;
        // The page said so before, about the first version.
        let saved = eventually("the second version is saved", async || {
            let saved = self.scene.client.get("/retry-policies/mail").await.json(200);
            (saved["version"] == 2).then_some(saved)
        });
        let saved = saved.await;
        assert_eq!((&saved["maxAttempts"], &saved["jitterFraction"]), (&json!(6), &json!(0.5)));
        self.open("/console/policies").await;
        self.confirm("button[aria-label='Remove mail']").await;
        self.told("Removed").await;
        assert_eq!(self.scene.client.get("/retry-policies/mail").await.status, 404);
    }

    pub(super) async fn pauses_queues_and_bounds_them(&self) {
        self.open("/console/queues").await;
        self.click("button[aria-label='Pause bank']").await;
        self.told("Paused").await;
        keep(self.browser, "queues-paused").await;
        self.click("button[aria-label='Resume bank']").await;
        self.told("Resumed").await;
        let every = "form:has(input[name=queue][value='*']) button";
        self.confirm(every).await;
        self.told("Paused").await;
        self.click(every).await;
        self.told("Resumed").await;
        let quota = "form[action='/console/queues/quota']:has([value=bank])";
        self.click("details:has([name=queue][value=bank]) summary").await;
        self.fill(&format!("{quota} [name=concurrency]"), "3").await;
        self.fill(&format!("{quota} [name=rateCount]"), "10").await;
        self.fill(&format!("{quota} [name=rateSeconds]"), "60").await;
        self.click(&format!("{quota} button")).await;
        self.told("The quota holds").await;
        self.shows("#queues", "At most 3 at once, 10 starts per 1 min").await;
        self.click("details:has([name=queue][value=bank]) summary").await;
        for field in ["concurrency", "rateCount", "rateSeconds"] {
            self.fill(&format!("{quota} [name={field}]"), "").await;
        }
        self.click(&format!("{quota} button")).await;
        self.told("Nothing bounds").await;
    }

    pub(super) async fn pauses_and_runs_schedules(&self) {
        self.open("/console/schedules").await;
        self.click("button[aria-label='Pause nightly']").await;
        self.told("Paused").await;
        self.click("button[aria-label='Resume nightly']").await;
        self.told("Resumed").await;
        self.click("button[aria-label='Run nightly now']").await;
        self.told("A job of the schedule").await;
        let id = self.browser.url().await.split(['/', '?']).find(|part| part.len() == 36).unwrap().to_owned();
        self.scene.until(&id, "succeeded").await;
    }

    pub(super) async fn goes_by_keyboard(&self) {
        self.open("/").await;
        self.browser.press(TAB).await;
        self.browser.press("\u{E007}").await;
        let at = self.browser.run("return document.activeElement.id").await;
        assert_eq!(at, json!("main"), "the first stop skips the menu");
        self.browser.press("g").await;
        self.browser.press("d").await;
        self.see("#dead").await;
        self.browser.press("?").await;
        self.see("kbd").await;
    }

    pub(super) async fn works_without_scripts(&self) {
        self.browser.scripts(false).await;
        let id = self.scene.later("/plain").await;
        let path = format!("/console/jobs/{id}");
        self.open(&path).await;
        self.click(&Self::button(&format!("{path}/cancel"))).await;
        self.told("Cancelled").await;
        self.open("/console/policies/design").await;
        self.fill("[name=maxAttempts]", "3").await;
        self.click("form[data-design] button").await;
        let drawn = self.read("#within").await;
        assert!(drawn.contains("budget"), "{drawn}");
        self.browser.scripts(true).await;
    }

    pub(super) async fn makes_a_key_that_may_only_look(&self) {
        self.open("/console/keys").await;
        self.fill("[name=name]", "looker").await;
        self.click("section form button").await;
        let key = self.read("#made").await;
        assert!(key.starts_with("rdk_"), "{key}");
        keep(self.browser, "key-made").await;
        self.click("form[action='/console/sign-out'] button").await;
        self.told("Signed out").await;
        self.fill("[name=key]", &key).await;
        self.click("main button").await;
        self.see("#overview").await;
        self.open(&format!("/console/jobs/{}", self.scene.delayed)).await;
        self.see("#why").await;
        assert_eq!(
            self.browser.run("return document.querySelectorAll('main button').length").await,
            json!(0)
        );
        keep(self.browser, "task-read-only").await;
        self.open("/console/keys").await;
        let refused = self.read("main").await;
        assert!(refused.contains("Your key does not show this"), "{refused}");
        self.browser.logged().await;
        self.click("form[action='/console/sign-out'] button").await;
        self.fill("[name=key]", &self.scene.key).await;
        self.click("main button").await;
        self.see("#overview").await;
        self.open("/console/keys").await;
        self.confirm("button[aria-label='Revoke looker']").await;
        self.told("Revoked").await;
        let refused = self.scene.service.client().with_key(&key).get("/jobs").await;
        assert_eq!(refused.status, 401);
        self.open("/").await;
        self.see("#overview").await;
    }
}
