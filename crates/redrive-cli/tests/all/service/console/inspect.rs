//! Checks the accessibility and layout of a page: in light and dark colours, on a phone, and with the keyboard. Saves a
//! screenshot of each.

use std::path::{Path, PathBuf};

use redrive_testkit::servers::{Browser, DESKTOP, PHONE};
use serde_json::{Value, json};

/// A script that finds accessibility problems: missing names, wrong order of headings, low contrast.
const REVIEW: &str = include_str!("review.js");
/// The Tab key in the WebDriver protocol.
pub(super) const TAB: &str = "\u{E004}";

/// A page to inspect.
pub(super) struct InspectedPage<'a> {
    pub(super) name: &'a str,
    pub(super) url: String,
    /// Whether the page is an error page, for which the browser logs an error.
    pub(super) is_error: bool,
}

/// Checks a page and saves screenshots of it.
pub(super) async fn inspect(browser: &Browser, page: &InspectedPage<'_>) {
    let name = page.name;
    browser.resize(DESKTOP).await;
    browser.set_color_scheme("light").await;
    browser.open(&page.url).await;
    review(browser, name, "light").await;
    save_screenshot(browser, &format!("{name}-light")).await;
    browser.set_color_scheme("dark").await;
    review(browser, name, "dark").await;
    save_screenshot(browser, &format!("{name}-dark")).await;
    browser.set_color_scheme("light").await;
    browser.resize(PHONE).await;
    review(browser, name, "on a phone").await;
    let too_wide = "return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 391 && !e.closest('.scroll')).map((e) => e.outerHTML.slice(0, 120)).slice(0, 3)";
    assert!(
        browser.fits_screen_width().await,
        "{name} must be scrolled sideways on a phone: {}",
        browser.run(too_wide).await
    );
    save_screenshot(browser, &format!("{name}-phone")).await;
    browser.resize(DESKTOP).await;
    check_keyboard(browser, name).await;
    let logged = browser.take_log().await;
    assert!(logged.is_empty() || page.is_error, "{name}: the browser logged errors: {logged:?}");
}

async fn review(browser: &Browser, name: &str, mode: &str) {
    let problems = browser.run(REVIEW).await;
    assert_eq!(problems, json!([]), "{name}, {mode}");
}

/// Checks that Tab reaches every control, and that the focus is visible on each.
async fn check_keyboard(browser: &Browser, name: &str) {
    let controls = browser.run(RECORD_FOCUS).await.as_u64().unwrap();
    // A date field has a tab stop for each of its parts.
    browser.press_times(TAB, controls + 24).await;
    let missed = browser.run(MISSED).await;
    assert_eq!(missed, json!([]), "{name}: controls that Tab does not reach, or without a visible focus");
}

/// Starts to record which controls get the focus, and whether it is visible. Returns the number of controls.
const RECORD_FOCUS: &str = r#"
window.reached = new Set();
window.invisible = [];
document.activeElement?.blur?.();
document.addEventListener("focusin", (event) => {
  const style = getComputedStyle(event.target);
  reached.add(event.target);
  const visible = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  if (!visible && event.target.id !== "main") invisible.push(event.target.outerHTML.slice(0, 160));
});
window.controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((control) => !control.disabled && control.type !== "hidden" && control.checkVisibility({ visibilityProperty: true }));
return controls.length;
"#;
const MISSED: &str = r#"
return [...controls.filter((control) => control.isConnected && !reached.has(control)).map((control) => "not reached: " + control.outerHTML.slice(0, 160)),
  ...invisible.map((control) => "the focus is not visible: " + control)];
"#;

/// Saves a screenshot of the page in the build folder.
pub(super) async fn save_screenshot(browser: &Browser, name: &str) {
    let folder = folder();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.png")), browser.screenshot().await).unwrap();
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots")
}

/// Runs a script until it returns something other than false or null, and returns that.
pub(super) async fn wait_for_script(browser: &Browser, what: &str, script: &str) -> Value {
    crate::fixtures::eventually(what, async || {
        let result = browser.run(script).await;
        (result != json!(false) && result != Value::Null).then_some(result)
    })
    .await
}
