//! A headless Chromium on a pipe: opens pages, sends real clicks and keys, and records a page's requests and errors.
//!
//! It speaks the browser's own protocol (DevTools) over file descriptors 3 and 4, as JSON ended by a zero byte; a shell puts
//! them there. Every wait has a time limit, and the browser ends with its [`Browser`]. It cannot run without Chromium;
//! [`Browser::start`] then returns `None`.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every answer.
const LIMIT: Duration = Duration::from_secs(300);

/// Names of Chromium's program.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// A running browser with one page.
pub struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    events: Vec<Value>,
    /// Its profile, deleted with it.
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser with an empty page; `None` if there is no Chromium.
    pub fn start() -> Option<Self> {
        let runs = |name: &str| {
            let version =
                Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            version.is_ok_and(|status| status.success())
        };
        let name = NAMES.iter().find(|name| runs(name))?;
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";
        let options = "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage \
                       --no-first-run --disable-extensions --disable-background-networking --disable-sync \
                       --disable-component-update --mute-audio --hide-scrollbars --force-device-scale-factor=1";
        let mut process = Command::new("sh")
            .args(["-c", script, name])
            .args(options.split_whitespace())
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let commands = process.stdin.take().expect("it was asked for");
        let answers = process.stdout.take().expect("it was asked for");
        let (send, messages) = channel();
        thread::spawn(move || {
            for part in BufReader::new(answers).split(0) {
                let Ok(part) = part else { break };
                let message = serde_json::from_slice(&part).expect("the browser speaks JSON");
                if send.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser =
            Self { process, commands, messages, last: 0, session: None, events: vec![], _profile: profile };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attached);
        browser.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol and waits for its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut line = serde_json::to_vec(&message).expect("plain JSON");
        line.push(0);
        self.commands.write_all(&line).expect("the browser listens");
        let end = Instant::now() + LIMIT;
        loop {
            let message = self.next(end, method);
            if message["id"] == json!(id) {
                assert!(message.get("error").is_none(), "{method} {parameters}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    #[track_caller]
    fn next(&self, end: Instant, waits_for: &str) -> Value {
        let left = end.saturating_duration_since(Instant::now());
        let message = self.messages.recv_timeout(left);
        message.unwrap_or_else(|error| {
            panic!("{waits_for}: the browser gave no answer within {LIMIT:?}: {error}")
        })
    }

    /// Opens a file as `file://` and waits until it is loaded.
    #[track_caller]
    pub fn open(&mut self, path: &Path) {
        let seen = self.events.len();
        let result = self.call("Page.navigate", &json!({ "url": format!("file://{}", path.display()) }));
        assert!(result.get("errorText").is_none(), "{result}");
        let end = Instant::now() + LIMIT;
        let loaded = |event: &Value| event["method"] == "Page.loadEventFired";
        while !self.events[seen..].iter().any(loaded) {
            let message = self.next(end, "the load of a page");
            self.events.push(message);
        }
    }

    /// Sets the window's size in pixels, and the user's preference for dark colours.
    pub fn look(&mut self, width: u64, height: u64, dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &features);
    }

    /// Returns the value of an expression in the page, awaited if it is a promise.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true });
        let result = self.call("Runtime.evaluate", &asked);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {}", result["exceptionDetails"]);
        result["result"].get("value").cloned().unwrap_or(Value::Null)
    }

    /// Brings an element into view and returns its middle, in pixels of the window.
    #[track_caller]
    pub fn middle(&mut self, selector: &str) -> (f64, f64) {
        let place = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; \
             e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()",
            json!(selector)
        );
        let place = self.eval(&place);
        let number = |at: usize| place[at].as_f64().unwrap_or_else(|| panic!("there is no {selector}"));
        (number(0), number(1))
    }

    /// Moves the mouse.
    pub fn hover(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", &json!({ "type": "mouseMoved", "x": x, "y": y }));
    }

    /// Clicks the middle of an element with the mouse.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        self.hover(x, y);
        for what in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": what, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Turns the wheel with Ctrl held.
    pub fn zoom(&mut self, x: f64, y: f64, by: f64) {
        let event =
            json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": by, "modifiers": 2 });
        self.call("Input.dispatchMouseEvent", &event);
    }

    /// Types into the focused element.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Prints the page to PDF.
    pub fn print(&mut self) {
        let asked = json!({ "preferCSSPageSize": true, "printBackground": true, "paperWidth": 8.27, "paperHeight": 11.69 });
        self.call("Page.printToPDF", &asked);
    }

    /// Waits until the effect of the last event is drawn. On a busy machine a browser may draw no frame if nothing changed; the
    /// wait is then limited to the worst drawing time.
    pub fn frame(&mut self) {
        let drawn = "new Promise(done => { requestAnimationFrame(() => setTimeout(done, 50)); setTimeout(done, 2000); })";
        self.eval(drawn);
    }

    /// Returns the requested addresses, and errors, warnings and exceptions, since the browser started.
    pub fn heard(&mut self) -> (Vec<String>, Vec<String>) {
        self.frame();
        let (mut asked, mut wrong) = (vec![], vec![]);
        for event in &self.events {
            let of = &event["params"];
            let level = |at: &Value| matches!(at.as_str(), Some("error" | "warning" | "assert"));
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => asked.push(text(&of["request"]["url"])),
                "Network.webSocketCreated" => asked.push(text(&of["url"])),
                "Runtime.exceptionThrown" => wrong.push(of["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" if level(&of["type"]) => wrong.push(of["args"].to_string()),
                "Log.entryAdded" if level(&of["entry"]["level"]) => wrong.push(of["entry"].to_string()),
                _ => {}
            }
        }
        (asked, wrong)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The test is over either way; the browser may already have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
