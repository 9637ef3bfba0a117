//! A real browser, controlled by the few calls of the WebDriver protocol that tests need.

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

use super::process::{find_program, free_port, own_dependent_command, processes_marked, signal, spawn};

/// The key of an element's id in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// How long the driver may take to answer, on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Chromium with its driver. Both end with this value.
pub struct Browser {
    driver: Child,
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
    session: String,
    /// The profile folder, by which its processes are found.
    folder: tempfile::TempDir,
}

/// An element of the open page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element(String);

/// The width and height of a phone's screen.
pub const PHONE: (u32, u32) = (390, 840);
/// The width and height of a desktop's screen.
pub const DESKTOP: (u32, u32) = (1280, 900);

impl Browser {
    /// Starts a browser with a screen of this width and height.
    pub async fn start(screen: (u32, u32)) -> Self {
        let port = free_port();
        let program = find_program("chromedriver").expect("chromedriver is missing: run `cargo xtask setup`");
        let mut command: Command = own_dependent_command(&program, "TERM");
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
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        for _ in 0..600 {
            if let Some(Ok(value)) = browser.ask(Method::POST, "/session", &capabilities).await {
                let id = value["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {value}"));
                browser.session = format!("/session/{id}");
                return browser;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the browser does not start");
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.call("/url", json!({"url": url})).await;
    }

    /// The address of the open page.
    pub async fn url(&self) -> String {
        self.get("/url").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page has an element.
    pub async fn wait_for(&self, selector: &str, within: Duration) -> Element {
        self.retry_on(selector, within, async |element| Ok(element)).await
    }

    /// Clicks on an element as soon as it exists and can be clicked on.
    pub async fn click_on(&self, selector: &str, within: Duration) {
        self.retry_on(selector, within, async |element| {
            self.call_element(&element, "click", &json!({})).await
        })
        .await;
    }

    /// Replaces the text of a field as soon as it can be written to.
    pub async fn fill(&self, selector: &str, text: &str, within: Duration) {
        let write = async |element: Element| {
            self.call_element(&element, "clear", &json!({})).await?;
            match text {
                "" => Ok(Value::Null),
                text => self.call_element(&element, "value", &json!({"text": text})).await,
            }
        };
        self.retry_on(selector, within, write).await;
    }

    /// The visible text of an element, as soon as it exists.
    pub async fn text_of(&self, selector: &str, within: Duration) -> String {
        let read = async |element: Element| {
            self.try_call(Method::GET, &format!("/element/{}/text", element.0), &Value::Null).await
        };
        self.retry_on(selector, within, read).await.as_str().unwrap_or_default().to_owned()
    }

    /// Finds an element and runs `act` on it. Tries again while the element does not exist or the page changes.
    async fn retry_on<T>(
        &self,
        selector: &str,
        within: Duration,
        act: impl AsyncFn(Element) -> Result<T, Value>,
    ) -> T {
        let find = json!({"using": "css selector", "value": selector});
        let began = Instant::now();
        loop {
            let found = self.try_call(Method::POST, "/element", &find).await;
            let result = match found {
                Ok(element) => act(Element(element[ELEMENT].as_str().unwrap_or_default().to_owned())).await,
                Err(absent) => Err(absent),
            };
            match result {
                Ok(value) => return value,
                Err(error) if began.elapsed() > within => {
                    let problem = &error["message"];
                    panic!("{selector} was not usable within {within:?}, at {}: {problem}", self.url().await)
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn call_element(&self, element: &Element, verb: &str, body: &Value) -> Result<Value, Value> {
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

    /// The visible text of an element.
    pub async fn text(&self, element: &Element) -> String {
        self.get(&format!("/element/{}/text", element.0)).await.as_str().unwrap_or_default().to_owned()
    }

    /// Accepts the dialog that is open.
    pub async fn accept_dialog(&self) {
        self.call("/alert/accept", json!({})).await;
    }

    /// Dismisses the dialog that is open.
    pub async fn dismiss_dialog(&self) {
        self.call("/alert/dismiss", json!({})).await;
    }

    /// Presses a key. It goes to the element with the focus.
    pub async fn press(&self, key: &str) {
        self.press_times(key, 1).await;
    }

    /// Presses a key several times.
    pub async fn press_times(&self, key: &str, times: u64) {
        let once = [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let steps: Vec<Value> = (0..times).flat_map(|_| once.clone()).collect();
        self.call("/actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": steps}]}))
            .await;
    }

    /// Runs a script in the page, given as the body of a function, and returns its result.
    pub async fn run(&self, script: &str) -> Value {
        self.call("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Whether the page is no wider than the screen.
    pub async fn fits_screen_width(&self) -> bool {
        self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth").await
            == json!(true)
    }

    /// Changes the width and height of the screen.
    pub async fn resize(&self, (width, height): (u32, u32)) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE.0});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub async fn set_color_scheme(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Allows or forbids pages to run scripts.
    pub async fn set_scripts_enabled(&self, run: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": !run})).await;
    }

    /// A screenshot of the whole page, as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        let screenshot = self
            .devtools("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}))
            .await;
        let data = screenshot["data"].as_str().expect("the response has a screenshot");
        BASE64_STANDARD.decode(data).unwrap_or_else(|e| panic!("the screenshot is not base64: {e}"))
    }

    /// The messages that the page and the browser have logged since the last call.
    pub async fn take_log(&self) -> Vec<String> {
        let entries = self.call("/se/log", json!({"type": "browser"})).await;
        let line = |entry: &Value| format!("{}: {}", entry["level"], entry["message"]);
        entries.as_array().into_iter().flatten().map(line).collect()
    }

    /// Closes the window and the browser.
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

    /// The value of the response, or the error of the driver; `None` while the driver does not listen.
    async fn ask(&self, method: Method, path: &str, body: &Value) -> Option<Result<Value, Value>> {
        let body = if method == Method::GET { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(format!("{}{path}", self.address));
        let request = request.body(Full::new(body)).expect("a request");
        let answered = tokio::time::timeout(WAIT_MAX, async {
            let answer = self.client.request(request).await.ok()?;
            let is_success = answer.status().is_success();
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            let mut answer: Value = serde_json::from_slice(&body).ok()?;
            let value = answer["value"].take();
            Some(if is_success { Ok(value) } else { Err(value) })
        });
        answered.await.unwrap_or_else(|_| panic!("{path}: the driver did not answer within {WAIT_MAX:?}"))
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
