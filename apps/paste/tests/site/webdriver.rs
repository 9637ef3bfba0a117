//! A browser, driven over the few calls of the WebDriver protocol that the tests need.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::Client;

/// The name under which the protocol gives an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with its driver; both end with this value.
pub(crate) struct Browser {
    driver: Child,
    client: Client,
    session: String,
}

impl Browser {
    /// One the size of a phone.
    pub(crate) async fn start() -> Self {
        let port = fastrand::u16(20_000..32_000);
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is missing: run `cargo xtask setup`");
        let client = Client::new(&format!("http://127.0.0.1:{port}"));
        let mut browser = Self { driver, client, session: String::new() };
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            "mobileEmulation": {"deviceMetrics": {"width": 390, "height": 840, "pixelRatio": 1.0}},
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}});
        for _ in 0..300 {
            if let Some(Ok(value)) = browser.ask(Method::POST, "/session", wanted.clone()).await {
                browser.session = format!("/session/{}", value["sessionId"].as_str().unwrap());
                return browser;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("no browser starts");
    }

    /// The value of an answer, or what the driver has against the call; none while it does not listen.
    async fn ask(&self, method: Method, path: &str, body: Value) -> Option<Result<Value, Value>> {
        let body = if method == Method::GET { Bytes::new() } else { body.to_string().into() };
        let answer = self.client.try_call(method, path, None, body).await?;
        let value = answer.json()["value"].take();
        Some(if answer.number() == 200 { Ok(value) } else { Err(value) })
    }

    async fn try_call(&self, method: Method, path: &str, body: Value) -> Result<Value, Value> {
        self.ask(method, &format!("{}{path}", self.session), body).await.expect("the driver answers")
    }

    async fn call(&self, path: &str, body: Value) -> Value {
        self.try_call(Method::POST, path, body).await.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub(crate) async fn open(&self, url: &str) {
        self.call("/url", json!({"url": url})).await;
    }

    /// Waits until the page has an element.
    pub(crate) async fn see(&self, selector: &str, within: Duration) -> String {
        let find = json!({"using": "css selector", "value": selector});
        let seen = tokio::time::timeout(within, async {
            loop {
                match self.try_call(Method::POST, "/element", find.clone()).await {
                    Ok(element) => return element[ELEMENT].as_str().unwrap().to_owned(),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        seen.await.unwrap_or_else(|_| panic!("{selector} is not there within {within:?}"))
    }

    pub(crate) async fn write(&self, element: &str, text: &str) {
        self.call(&format!("/element/{element}/value"), json!({"text": text})).await;
    }

    pub(crate) async fn click(&self, element: &str) {
        self.call(&format!("/element/{element}/click"), json!({})).await;
    }

    pub(crate) async fn text(&self, element: &str) -> String {
        let text = self.try_call(Method::GET, &format!("/element/{element}/text"), Value::Null).await;
        text.unwrap().as_str().unwrap().to_owned()
    }

    /// Whether everything is as wide as the screen or less.
    pub(crate) async fn fits(&self) -> bool {
        let script = "return document.documentElement.scrollWidth <= window.innerWidth";
        self.call("/execute/sync", json!({"script": script, "args": []})).await == json!(true)
    }

    /// Closes the window, and with it the browser.
    pub(crate) async fn close(self) {
        self.try_call(Method::DELETE, "", json!({})).await.unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
