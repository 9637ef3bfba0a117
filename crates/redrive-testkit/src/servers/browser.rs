//! A real browser, driven over the few calls of the WebDriver protocol that tests need.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::process::{find_program, free_port, own_mortal_command, processes_marked, signal, spawn};

/// The name under which the protocol gives an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// How long the driver may take to answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chromium with its driver; both end with this value.
pub struct Browser {
    driver: Child,
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
    session: String,
    /// What it writes, and what its processes are known by.
    folder: tempfile::TempDir,
}

/// An element of the page that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element(String);

/// The width and height of a phone's screen.
pub const PHONE: (u32, u32) = (390, 840);
/// Those of a desktop's.
pub const DESKTOP: (u32, u32) = (1280, 900);

impl Browser {
    /// One with a screen of this width and height.
    pub async fn start(screen: (u32, u32)) -> Self {
        let port = free_port();
        let program = find_program("chromedriver").expect("chromedriver is missing: run `cargo xtask setup`");
        let mut command: Command = own_mortal_command(&program, "TERM");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let folder = tempfile::tempdir().expect("a folder for the browser");
        let profile = format!("--user-data-dir={}", folder.path().display());
        let mut browser = Self {
            driver: spawn(command),
            folder,
            client: Client::builder(TokioExecutor::new()).build_http(),
            address: format!("http://127.0.0.1:{port}"),
            session: String::new(),
        };
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", profile],
            "mobileEmulation": {"deviceMetrics": {"width": screen.0, "height": screen.1, "pixelRatio": 1.0, "touch": false}},
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        for _ in 0..600 {
            if let Some(Ok(value)) = browser.ask(Method::POST, "/session", &wanted).await {
                let id = value["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {value}"));
                browser.session = format!("/session/{id}");
                return browser;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("no browser starts");
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.call("/url", json!({"url": url})).await;
    }

    /// The address of the page that is open.
    pub async fn url(&self) -> String {
        self.get("/url").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page has an element.
    pub async fn see(&self, selector: &str, within: Duration) -> Element {
        self.until(selector, within, async |element| Ok(element)).await
    }

    /// Clicks on an element, as soon as it is there and can be clicked on.
    pub async fn click_on(&self, selector: &str, within: Duration) {
        self.until(selector, within, async |element| self.of(&element, "click", &json!({})).await).await;
    }

    /// Puts a text into a field, instead of what was there, as soon as it can be written to.
    pub async fn fill(&self, selector: &str, text: &str, within: Duration) {
        let write = async |element: Element| {
            self.of(&element, "clear", &json!({})).await?;
            match text {
                "" => Ok(Value::Null),
                text => self.of(&element, "value", &json!({"text": text})).await,
            }
        };
        self.until(selector, within, write).await;
    }

    /// The text of an element as it is seen, as soon as it is there.
    pub async fn read(&self, selector: &str, within: Duration) -> String {
        let read = async |element: Element| {
            self.try_call(Method::GET, &format!("/element/{}/text", element.0), &Value::Null).await
        };
        self.until(selector, within, read).await.as_str().unwrap_or_default().to_owned()
    }

    /// Finds an element and does something with it; again, while it is not there or the page has changed meanwhile.
    async fn until<T>(
        &self,
        selector: &str,
        within: Duration,
        act: impl AsyncFn(Element) -> Result<T, Value>,
    ) -> T {
        let find = json!({"using": "css selector", "value": selector});
        let began = Instant::now();
        loop {
            let found = self.try_call(Method::POST, "/element", &find).await;
            let acted = match found {
                Ok(element) => act(Element(element[ELEMENT].as_str().unwrap_or_default().to_owned())).await,
                Err(absent) => Err(absent),
            };
            match acted {
                Ok(result) => return result,
                Err(error) if began.elapsed() > within => {
                    let problem = &error["message"];
                    panic!("{selector} within {within:?}, at {}: {problem}", self.url().await)
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn of(&self, element: &Element, verb: &str, body: &Value) -> Result<Value, Value> {
        self.try_call(Method::POST, &format!("/element/{}/{verb}", element.0), body).await
    }

    /// Types into an element.
    pub async fn write(&self, element: &Element, text: &str) {
        self.call(&format!("/element/{}/value", element.0), json!({"text": text})).await;
    }

    /// Clicks on an element.
    pub async fn click(&self, element: &Element) {
        self.call(&format!("/element/{}/click", element.0), json!({})).await;
    }

    /// The text of an element, as it is seen.
    pub async fn text(&self, element: &Element) -> String {
        self.get(&format!("/element/{}/text", element.0)).await.as_str().unwrap_or_default().to_owned()
    }

    /// Says yes to the question that the page asks.
    pub async fn accept(&self) {
        self.call("/alert/accept", json!({})).await;
    }

    /// Says no to it.
    pub async fn dismiss(&self) {
        self.call("/alert/dismiss", json!({})).await;
    }

    /// Presses a key, wherever the focus is.
    pub async fn press(&self, key: &str) {
        self.press_times(key, 1).await;
    }

    /// Presses a key again and again.
    pub async fn press_times(&self, key: &str, times: u64) {
        let once = [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let steps: Vec<Value> = (0..times).flat_map(|_| once.clone()).collect();
        self.call("/actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": steps}]}))
            .await;
    }

    /// What a script in the page returns; the body of a function.
    pub async fn run(&self, script: &str) -> Value {
        self.call("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Whether everything is as wide as the screen or less.
    pub async fn fits(&self) -> bool {
        self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth").await
            == json!(true)
    }

    /// Gives the screen another width and height.
    pub async fn resize(&self, (width, height): (u32, u32)) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE.0});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Prefers a colour scheme: `light` or `dark`.
    pub async fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Lets pages run scripts, or keeps them from it.
    pub async fn scripts(&self, run: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": !run})).await;
    }

    /// A picture of the whole page, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        let shot = self
            .devtools("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}))
            .await;
        let data = shot["data"].as_str().expect("a picture");
        BASE64_STANDARD.decode(data).unwrap_or_else(|e| panic!("the picture is no base64: {e}"))
    }

    /// What the page has logged since this was last asked, warnings and errors of the browser among it.
    pub async fn logged(&self) -> Vec<String> {
        let entries = self.call("/se/log", json!({"type": "browser"})).await;
        let line = |entry: &Value| format!("{}: {}", entry["level"], entry["message"]);
        entries.as_array().into_iter().flatten().map(line).collect()
    }

    /// Closes the window, and with it the browser.
    pub async fn close(self) {
        if let Err(error) = self.try_call(Method::DELETE, "", &json!({})).await {
            panic!("the browser does not close: {error}");
        }
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.call("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    async fn get(&self, path: &str) -> Value {
        self.try_call(Method::GET, path, &Value::Null).await.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    async fn call(&self, path: &str, body: Value) -> Value {
        self.try_call(Method::POST, path, &body)
            .await
            .unwrap_or_else(|e| panic!("{path} {body}: {}", e["message"]))
    }

    async fn try_call(&self, method: Method, path: &str, body: &Value) -> Result<Value, Value> {
        self.ask(method, &format!("{}{path}", self.session), body).await.expect("the driver answers")
    }

    /// The value of an answer, or what the driver has against the call; none while it does not listen.
    async fn ask(&self, method: Method, path: &str, body: &Value) -> Option<Result<Value, Value>> {
        let body = if method == Method::GET { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(format!("{}{path}", self.address));
        let request = request.body(Full::new(body)).expect("a request");
        let answered = tokio::time::timeout(PATIENCE, async {
            let answer = self.client.request(request).await.ok()?;
            let fine = answer.status().is_success();
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            let mut answer: Value = serde_json::from_slice(&body).ok()?;
            let value = answer["value"].take();
            Some(if fine { Ok(value) } else { Err(value) })
        });
        answered.await.unwrap_or_else(|_| panic!("{path}: the driver did not answer within {PATIENCE:?}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // A browser that was not closed outlives its driver.
        for process in processes_marked(&self.folder.path().to_string_lossy()) {
            signal(process, "KILL");
        }
    }
}
