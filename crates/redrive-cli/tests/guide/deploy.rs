//! Compares the files of `deploy/` with the service: its metrics, its command, its port.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use super::pages::repository_root;

const TIMEOUT: Duration = Duration::from_secs(60);

fn read(path: &str) -> String {
    std::fs::read_to_string(repository_root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A service in a temporary folder. Dropping the value kills it.
struct Service {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        let address = greeting.split_whitespace().find_map(|word| word.strip_prefix("http://")).unwrap();
        Self { address: address.to_owned(), child, _folder: folder }
    }

    fn request(&self, request: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("{request} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        let length = body.len();
        let content = format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(format!("{head}{content}").as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// The metrics after one task has succeeded and one is dead.
    fn metrics(&self) -> String {
        for path in ["/healthz", "/nowhere"] {
            let target = format!("http://{}{path}", self.address);
            self.request("POST /v1/tasks", &format!(r#"{{"target": "{target}", "method": "GET"}}"#));
        }
        let started = Instant::now();
        loop {
            let metrics = self.request("GET /metrics", "");
            let outcomes = ["succeeded", "dead"].map(|outcome| format!("outcome=\"{outcome}\""));
            if outcomes.iter().all(|outcome| metrics.contains(outcome)) {
                return metrics;
            }
            assert!(started.elapsed() < TIMEOUT, "the attempts are not counted:\n{metrics}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The labels of each metric. A counter that was never incremented has no sample, but its type is in the output.
fn samples(metrics: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut samples: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in metrics.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|line| line.strip_suffix(" counter")) {
            samples.entry(format!("{name}_total")).or_default();
        } else if line.starts_with("retry_") {
            let end = line.find(['{', ' ']).unwrap();
            let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let names = labels.map(|(labels, _)| words_before(labels, "=\"")).unwrap_or_default();
            samples.entry(line[..end].to_owned()).or_default().extend(names);
        }
    }
    // No call to the store has failed, so this label is not in the output.
    samples.entry("retry_store_errors_total".to_owned()).or_default().insert("verb".to_owned());
    samples
}

/// Each word of letters, digits and underscores directly before `mark`.
fn words_before(text: &str, mark: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let ends = text.match_indices(mark).map(|(at, _)| &text[..at]);
    ends.map(|before| before[before.trim_end_matches(is_word).len()..].to_owned()).collect()
}

/// The metrics and labels of a query that the service does not have.
fn problems(query: &str, samples: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names: Vec<&str> = words.filter(|word| word.starts_with("retry_")).collect();
    let mut known: BTreeSet<&str> = BTreeSet::from(["job", "instance"]);
    for name in &names {
        match samples.get(*name) {
            Some(labels) => known.extend(labels.iter().map(String::as_str)),
            None => problems.push(format!("there is no metric {name}")),
        }
    }
    if names.is_empty() && !query.starts_with("up{") {
        problems.push("it uses no metric of redrive".to_owned());
    }
    let by = query.split(" by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = by.flat_map(|(labels, _)| labels.split(',').map(|label| label.trim().to_owned()));
    let selected = words_before(query, "=\"").into_iter().chain(words_before(query, "!=\""));
    for label in grouped.chain(selected).filter(|label| !label.is_empty()) {
        if !known.contains(label.as_str()) {
            problems.push(format!("no metric of the query has the label {label}"));
        }
    }
    problems.into_iter().map(|problem| format!("{query}: {problem}")).collect()
}

fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/redrive.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

fn alerts() -> Vec<Yaml> {
    let rules = YamlLoader::load_from_str(&read("deploy/prometheus/alerts.yml")).unwrap();
    rules[0]["groups"].as_vec().unwrap()[0]["rules"].as_vec().unwrap().clone()
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let samples = samples(&Service::start().metrics());
    let mut queries = dashboard_queries();
    queries.extend(alerts().iter().map(|alert| alert["expr"].as_str().unwrap().to_owned()));
    assert!(queries.len() > 20, "{queries:?}");
    let problems: Vec<String> = queries.iter().flat_map(|query| problems(query, &samples)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // Every metric must be on the dashboard, so that nobody forgets to add a new one.
    let all_queries = queries.concat();
    let family = |name: &str| {
        let endings = ["_total", "_bucket", "_sum", "_count"];
        endings.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let families: BTreeSet<String> = samples.keys().map(|name| family(name)).collect();
    let forgotten: Vec<&String> =
        families.iter().filter(|family| !all_queries.contains(family.as_str())).collect();
    assert!(forgotten.is_empty(), "the dashboard does not show {forgotten:?}");
}

#[test]
fn a_query_with_an_unknown_metric_or_label_is_a_problem() {
    let samples = BTreeMap::from([("retry_tasks".to_owned(), BTreeSet::from(["state".to_owned()]))]);
    assert!(problems("max by (state) (retry_tasks{state=\"dead\"})", &samples).is_empty());
    for wrong in [
        "sum(retry_task)",
        "max by (origin) (retry_tasks)",
        "retry_tasks{status=\"dead\"}",
        "retry_tasks{status!=\"dead\"}",
        "vector(0)",
    ] {
        assert_eq!(problems(wrong, &samples).len(), 1, "{wrong}");
    }
}

#[test]
fn every_alert_has_a_summary_and_an_action() {
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        for field in ["summary", "action"] {
            assert!(alert["annotations"][field].as_str().is_some_and(|text| text.len() > 20), "{name}");
        }
        assert!(["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
    }
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read("deploy/systemd/redrive.service");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.service");
    // The check requires that the program exists.
    let local = unit.replace("/usr/local/bin/redrive", env!("CARGO_BIN_EXE_redrive"));
    assert_ne!(unit, local, "the unit starts /usr/local/bin/redrive");
    std::fs::write(&path, local).unwrap();
    let check = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    let check = check.unwrap_or_else(|error| panic!("systemd-analyze: {error}: run `cargo xtask setup`"));
    let messages = String::from_utf8_lossy(&check.stderr);
    let about_unit: Vec<&str> = messages.lines().filter(|line| line.contains("redrive.service")).collect();
    assert!(check.status.success() && about_unit.is_empty(), "{messages}");
}

/// The instructions of a Dockerfile, with continued lines joined.
fn instructions(dockerfile: &str) -> Vec<(String, String)> {
    let lines = dockerfile.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let words = joined.lines().filter(|line| !line.trim().is_empty());
    words
        .map(|line| {
            let (verb, rest) = line.trim().split_once(' ').unwrap_or_else(|| panic!("no arguments: {line}"));
            (verb.to_owned(), rest.trim().to_owned())
        })
        .collect()
}

#[test]
fn the_dockerfile_builds_and_starts_redrive() {
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "VOLUME",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    ];
    let all = instructions(&read("deploy/Dockerfile"));
    let of = |verb: &str| -> Vec<&str> {
        all.iter().filter(|(name, _)| name == verb).map(|(_, rest)| rest.as_str()).collect()
    };
    assert!(all.iter().all(|(verb, _)| known.contains(&verb.as_str())), "{all:?}");
    assert_eq!(all[0].0, "FROM");
    let manifest = read("Cargo.toml");
    let oldest = manifest.split_once("rust-version = \"").unwrap().1.split_once('"').unwrap().0;
    assert!(of("FROM")[0].starts_with(&format!("rust:{oldest}")), "the image needs Rust {oldest}");
    let stages: Vec<&str> =
        of("FROM").iter().filter_map(|from| from.split_once(" AS ")).map(|f| f.1).collect();
    let from = of("COPY").into_iter().find_map(|copy| copy.strip_prefix("--from=")).unwrap();
    assert!(stages.contains(&from.split(' ').next().unwrap()), "{from}");
    let built = of("RUN").into_iter().find(|run| run.contains("cargo build")).unwrap();
    assert!(
        built.contains("-p redrive-cli") && Path::new(&repository_root().join("crates/redrive-cli")).is_dir()
    );
    for path in ["[\"redrive\"]", "[\"serve\"]"] {
        let parsed: Vec<String> = serde_json::from_str(path).unwrap();
        let start = [of("ENTRYPOINT")[0], of("CMD")[0]];
        assert!(start.iter().any(|line| serde_json::from_str::<Vec<String>>(line).unwrap() == parsed));
    }
    assert_eq!((of("EXPOSE"), of("ENV")), (vec!["7373"], vec!["REDRIVE_LISTEN=0.0.0.0:7373"]));
}
