//! Looks at a page as a strict reviewer would: in light and dark, on a phone, by keyboard alone, with pictures to keep.

use std::path::{Path, PathBuf};

use redrive_testkit::servers::{Browser, DESKTOP, PHONE};
use serde_json::{Value, json};

/// Finds what is wrong with a page: names, order of headings, contrast.
const REVIEW: &str = include_str!("review.js");
/// The Tab key, in the words of the protocol.
pub(super) const TAB: &str = "\u{E004}";

/// A page to look at.
pub(super) struct Inspect<'a> {
    pub(super) name: &'a str,
    pub(super) url: String,
    /// Whether it is a page at all; the browser notes one that is not.
    pub(super) loads: bool,
}

/// Looks at a page, and keeps pictures of it.
pub(super) async fn inspect(browser: &Browser, page: &Inspect<'_>) {
    let name = page.name;
    browser.resize(DESKTOP).await;
    browser.prefer("light").await;
    browser.open(&page.url).await;
    review(browser, name, "light").await;
    keep(browser, &format!("{name}-light")).await;
    browser.prefer("dark").await;
    review(browser, name, "dark").await;
    keep(browser, &format!("{name}-dark")).await;
    browser.prefer("light").await;
    browser.resize(PHONE).await;
    review(browser, name, "on a phone").await;
    let widest = "return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 391 && !e.closest('.scroll')).map((e) => e.outerHTML.slice(0, 120)).slice(0, 3)";
    assert!(
        browser.fits().await,
        "{name} must be scrolled sideways on a phone: {}",
        browser.run(widest).await
    );
    keep(browser, &format!("{name}-phone")).await;
    browser.resize(DESKTOP).await;
    by_keyboard(browser, name).await;
    let logged = browser.logged().await;
    assert!(logged.is_empty() || !page.loads, "{name}: the browser complains: {logged:?}");
}

async fn review(browser: &Browser, name: &str, how: &str) {
    let problems = browser.run(REVIEW).await;
    assert_eq!(problems, json!([]), "{name}, {how}");
}

/// Every control is reached by Tab, and seen when it is.
async fn by_keyboard(browser: &Browser, name: &str) {
    let controls = browser.run(LISTEN).await.as_u64().unwrap();
    // A field for a date has a stop for each of its parts.
    browser.press_times(TAB, controls + 24).await;
    let missed = browser.run(MISSED).await;
    assert_eq!(missed, json!([]), "{name}: not reached by Tab, or not seen to be");
}

/// Begins to note which controls get the focus, and whether that shows; says how many there are.
const LISTEN: &str = r#"
window.reached = new Set();
window.unseen = [];
document.activeElement?.blur?.();
document.addEventListener("focusin", (event) => {
  const style = getComputedStyle(event.target);
  reached.add(event.target);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  if (!seen && event.target.id !== "main") unseen.push(event.target.outerHTML.slice(0, 160));
});
window.controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((control) => !control.disabled && control.type !== "hidden" && control.checkVisibility({ visibilityProperty: true }));
return controls.length;
"#;
const MISSED: &str = r#"
return [...controls.filter((control) => control.isConnected && !reached.has(control)).map((control) => "not reached: " + control.outerHTML.slice(0, 160)),
  ...unseen.map((control) => "focus not seen: " + control)];
"#;

/// Keeps a picture of the page beside the build.
pub(super) async fn keep(browser: &Browser, name: &str) {
    let folder = folder();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.png")), browser.picture().await).unwrap();
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots")
}

/// What a script finds, once it is what is waited for.
pub(super) async fn until(browser: &Browser, what: &str, script: &str) -> Value {
    crate::stage::eventually(what, async || {
        let found = browser.run(script).await;
        (found != json!(false) && found != Value::Null).then_some(found)
    })
    .await
}
