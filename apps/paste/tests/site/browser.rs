//! A person with a phone: pastes, watches it become ready, reads it; and sees it fail.

use std::time::Duration;

use redrive_testkit::servers::{Browser, PHONE};

use crate::stage::{SOON, World, text};

async fn write(browser: &Browser, url: &str, content: &str) {
    browser.open(url).await;
    let field = browser.see("#content", SOON).await;
    browser.write(&field, content).await;
    let button = browser.see("#send", SOON).await;
    browser.click(&button).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_pastes_watches_and_reads() {
    let world = World::on_sqlite();
    world.proxy.refuse(true);
    let site = world.start(&[]);
    let browser = Browser::start(PHONE).await;
    // The driver types nothing beyond the basic plane.
    let content = format!("{} <b>bold</b> & more", text("typed").replace('\u{1F980}', "crab").trim());
    write(&browser, &site.url, &content).await;
    browser.see("#status[data-status=uploading]", SOON).await;
    world.proxy.refuse(false);
    // On the same page, which nobody loads again.
    browser.see("#status[data-status=ready]", SOON).await;
    assert!(browser.fits().await, "a phone need not be scrolled sideways");
    let link = browser.see("#link", SOON).await;
    browser.click(&link).await;
    let shown = browser.see("pre#content", SOON).await;
    assert_eq!(browser.text(&shown).await, content);
    assert!(browser.fits().await);
    browser.close().await;
}

/// Takes half a minute, and is run beside others that do.
pub(crate) async fn a_person_sees_a_paste_fail() {
    let world = World::on_sqlite();
    world.proxy.refuse(true);
    let site = world.start(&[]);
    let browser = Browser::start(PHONE).await;
    write(&browser, &site.url, "this will not work").await;
    browser.see("#status[data-status=uploading]", SOON).await;
    browser.see("#status[data-status=failed]", Duration::from_secs(90)).await;
    browser.close().await;
}
