//! Tests with a browser: a user pastes, waits until the paste is ready and reads it, or sees it fail.

use std::time::Duration;

use redrive_testkit::servers::{Browser, PHONE};

use crate::setup::{TIMEOUT, TestSite, text};

async fn submit(browser: &Browser, url: &str, content: &str) {
    browser.open(url).await;
    let field = browser.wait_for("#content", TIMEOUT).await;
    browser.write(&field, content).await;
    let button = browser.wait_for("#send", TIMEOUT).await;
    browser.click(&button).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_pastes_waits_and_reads() {
    let site = TestSite::on_sqlite();
    site.proxy.set_refusing(true);
    let process = site.start(&[]);
    let browser = Browser::start(PHONE).await;
    // The driver cannot type characters outside the Basic Multilingual Plane.
    let content = format!("{} <b>bold</b> & more", text("typed").replace('\u{1F980}', "crab").trim());
    submit(&browser, &process.url, &content).await;
    browser.wait_for("#status[data-status=uploading]", TIMEOUT).await;
    site.proxy.set_refusing(false);
    // The page updates itself without a reload.
    browser.wait_for("#status[data-status=ready]", TIMEOUT).await;
    assert!(browser.fits_screen_width().await, "the page must fit the width of a phone");
    let link = browser.wait_for("#link", TIMEOUT).await;
    browser.click(&link).await;
    let shown = browser.wait_for("pre#content", TIMEOUT).await;
    assert_eq!(browser.text(&shown).await, content);
    assert!(browser.fits_screen_width().await);
    browser.close().await;
}

/// Takes half a minute, so it runs together with other slow tests.
pub(crate) async fn a_user_sees_a_paste_fail() {
    let site = TestSite::on_sqlite();
    site.proxy.set_refusing(true);
    let process = site.start(&[]);
    let browser = Browser::start(PHONE).await;
    submit(&browser, &process.url, "this will not work").await;
    browser.wait_for("#status[data-status=uploading]", TIMEOUT).await;
    browser.wait_for("#status[data-status=failed]", Duration::from_secs(90)).await;
    browser.close().await;
}
