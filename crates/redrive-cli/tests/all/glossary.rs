//! Compares the OpenAPI document, the help of every command, the pages of the console and the metrics with `docs/glossary.md`.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;
use serde_json::{Value, json};

use crate::cli::session::text;
use crate::cli::usage::LeafCommand;
use crate::fixtures::{Client, Launch, Service, redrive};

/// Words of the section "Words that we do not use" that are right in another sense: `attempts_exhausted`, "open the page",
/// "about redrive", "in turn".
const ALLOWED_ELSEWHERE: [&str; 6] = ["exhausted", "open", "closed", "about", "turn", "look at"];

/// The glossary.
struct Glossary(String);

impl Glossary {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/glossary.md");
        Self(std::fs::read_to_string(path).unwrap())
    }

    /// The cells of this column, from every table that has it.
    fn column(&self, name: &str) -> Vec<String> {
        let (mut position, mut cells) = (None, Vec::new());
        for line in self.0.lines() {
            let row: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            if !line.starts_with('|') {
                position = None;
            } else if let Some(found) = row.iter().position(|cell| *cell == name) {
                position = Some(found);
            } else if let Some(cell) = position.and_then(|position| row.get(position))
                && !cell.starts_with("---")
            {
                cells.push((*cell).to_owned());
            }
        }
        assert!(!cells.is_empty(), "no table has the column {name:?}");
        cells
    }

    /// The words between backticks in a column.
    fn code(&self, column: &str) -> BTreeSet<String> {
        let code = Regex::new("`([^`]+)`").unwrap();
        let cells = self.column(column);
        cells
            .iter()
            .flat_map(|cell| code.captures_iter(cell).map(|found| found[1].to_owned()).collect::<Vec<_>>())
            .collect()
    }

    /// Fails if a text has a word that the glossary has replaced.
    fn check_words(&self, place: &str, text: &str) {
        let retired = self.column("not").join(", ");
        let retired = Regex::new(r"\([^)]*\)").unwrap().replace_all(&retired, "").into_owned();
        for word in retired.split(',').map(str::trim).filter(|word| !ALLOWED_ELSEWHERE.contains(word)) {
            let pattern = format!(r"(?i)\b{}s?\b", regex::escape(word).replace(' ', r"[ _-]"));
            let found = Regex::new(&pattern).unwrap().find(text);
            let context = found.map(|found| text[..found.end()].lines().last().unwrap_or_default());
            assert_eq!(context, None, "{place} says {word:?}: docs/glossary.md has another word for it");
        }
    }
}

async fn start_service(folder: &Path) -> (Service, Client) {
    let service = Launch::new(folder).start();
    let client = service.client();
    (service, client)
}

/// The names of all properties and parameters of a document.
fn field_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            names.extend(
                object
                    .get("properties")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                    .map(|p| p.0.clone()),
            );
            if object.contains_key("in") {
                names.extend(object.get("name").and_then(Value::as_str).map(str::to_owned));
            }
            object.values().for_each(|value| field_names(value, names));
        }
        Value::Array(items) => items.iter().for_each(|value| field_names(value, names)),
        _ => {}
    }
}

fn enum_values(document: &Value, schema: &str) -> BTreeSet<String> {
    let schema = &document["components"]["schemas"][schema];
    let one_of = schema["oneOf"].as_array().into_iter().flatten().flat_map(|one| one["enum"].as_array());
    let values = schema["enum"].as_array().into_iter().chain(one_of).flatten();
    values.map(|value| value.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_uses_the_words_of_the_glossary() {
    let glossary = Glossary::read();
    let folder = tempfile::tempdir().unwrap();
    let (_service, client) = start_service(folder.path()).await;
    let document = client.get("/openapi.json").await.json(200);
    for (schema, column) in [("JobState", "state"), ("DeadReason", "reason"), ("GateState", "gate state")] {
        assert_eq!(enum_values(&document, schema), glossary.code(column), "{schema}");
    }
    let mut names = BTreeSet::new();
    field_names(&document, &mut names);
    let paths = document["paths"].as_object().unwrap();
    for word in glossary.code("API") {
        let is_known = if word.starts_with("/v1/") {
            paths.contains_key(&word)
        } else if let Some(action) = word.strip_prefix('…') {
            paths.keys().any(|path| path.ends_with(action))
        } else if let Some(kind) = word.strip_prefix("waitingFor: ") {
            enum_values(&document, "WaitingForKind").contains(kind)
        } else {
            names.contains(&word)
                || paths.keys().any(|path| path.ends_with(&format!("/{word}")))
                || enum_values(&document, "GateState").contains(&word)
        };
        assert!(is_known, "the glossary names {word:?}, and the API has no such path or field");
    }
    // The reasons contain "exhausted", and the examples show them.
    glossary.check_words("the OpenAPI document", &serde_json::to_string_pretty(&document).unwrap());
}

#[test]
fn the_help_uses_the_words_of_the_glossary() {
    let glossary = Glossary::read();
    let folder = tempfile::tempdir().unwrap();
    let commands = LeafCommand::find_all(folder.path(), Vec::new());
    assert!(commands.len() > 30, "only {} commands were found", commands.len());
    let overview = text(&redrive(folder.path()).arg("--help").output().unwrap().stdout);
    glossary.check_words("redrive --help", &overview);
    for command in &commands {
        glossary.check_words(&format!("redrive {} --help", command.path.join(" ")), &command.help);
    }
    let options: BTreeSet<String> = commands
        .iter()
        .flat_map(|command| {
            Regex::new("--[a-z][a-z-]*")
                .unwrap()
                .find_iter(&command.help)
                .map(|option| option.as_str().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    let paths: Vec<String> = commands.iter().map(|command| command.path.join(" ")).collect();
    for word in glossary.code("command line") {
        let is_command = |path: &String| {
            path == &word || path.starts_with(&format!("{word} ")) || path.ends_with(&format!(" {word}"))
        };
        let is_known =
            if word.starts_with("--") { options.contains(&word) } else { paths.iter().any(is_command) };
        assert!(is_known, "the glossary names {word:?}, and there is no such command or option");
    }
    let list = commands.iter().find(|command| command.path.join(" ") == "job list").unwrap();
    let states = Regex::new(r"(?s)--state <STATE>.*?\[possible values: ([^\]]+)\]").unwrap();
    let states = states.captures(&list.help).expect("job list has --state")[1].to_owned();
    let states: BTreeSet<String> = states.split(',').map(|state| state.trim().to_owned()).collect();
    assert_eq!(states, glossary.code("state"));
}

/// The pages that links lead to from the start page of the console.
async fn crawl(client: &Client) -> Vec<(String, String)> {
    let link = Regex::new(r#"href="(/console[^"?#]*)"#).unwrap();
    let mut paths = vec!["/".to_owned()];
    let mut pages: Vec<(String, String)> = Vec::new();
    while let Some(path) = paths.pop() {
        if path.starts_with("/console/assets/") || pages.iter().any(|(seen, _)| *seen == path) {
            continue;
        }
        let body = text(&client.get(&path).await.body);
        paths.extend(link.captures_iter(&body).map(|found| found[1].to_owned()));
        pages.push((path, body));
    }
    pages
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_uses_the_words_of_the_glossary() {
    let glossary = Glossary::read();
    let folder = tempfile::tempdir().unwrap();
    let (_service, client) = start_service(folder.path()).await;
    let task =
        client.create(&json!({"target": "http://127.0.0.1:1/hook", "policy": {"maxAttempts": 1}})).await;
    client.wait_for_end(&task).await;
    let pages = crawl(&client).await;
    assert!(pages.len() > 10, "only {} pages were found", pages.len());
    assert!(pages.iter().any(|(path, _)| path.ends_with(&task)), "the task has no page");
    let tag = Regex::new("(?s)<script.*?</script>|<[^>]+>").unwrap();
    for (path, body) in &pages {
        glossary.check_words(path, &tag.replace_all(body, "\n"));
    }
    let jobs = &pages.iter().find(|(path, _)| path == "/console/jobs").expect("a list of jobs").1;
    let select = jobs.split(r#"<select name="state""#).nth(1).expect("a filter by state");
    let option = Regex::new(r#"<option value="([a-z]+)""#).unwrap();
    let select = select.split("</select>").next().unwrap();
    let states: BTreeSet<String> = option.captures_iter(select).map(|found| found[1].to_owned()).collect();
    assert_eq!(states, glossary.code("state"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_use_the_words_of_the_glossary() {
    let glossary = Glossary::read();
    let folder = tempfile::tempdir().unwrap();
    let (_service, client) = start_service(folder.path()).await;
    let task =
        client.create(&json!({"target": "http://127.0.0.1:1/hook", "policy": {"maxAttempts": 1}})).await;
    client.wait_for_end(&task).await;
    let metrics = text(&client.get("/metrics").await.body);
    let name = Regex::new("(?m)^# TYPE ([a-z_]+) ").unwrap();
    let exposed: BTreeSet<String> = name.captures_iter(&metrics).map(|found| found[1].to_owned()).collect();
    let described: Vec<String> = glossary.column("metric");
    let in_code = Regex::new("`(retry_[a-z_]+)`").unwrap();
    let described: BTreeSet<String> = described
        .iter()
        .flat_map(|cell| in_code.captures_iter(cell).map(|found| found[1].to_owned()).collect::<Vec<_>>())
        .collect();
    // A metric of errors appears with its first error.
    let without_errors = described.iter().filter(|name| *name != "retry_store_errors").cloned().collect();
    assert_eq!(exposed, without_errors, "left: GET /metrics, right: docs/glossary.md");
    let state = Regex::new(r#"retry_tasks\{[^}]*state="([^"]+)""#).unwrap();
    let states: BTreeSet<String> = state.captures_iter(&metrics).map(|found| found[1].to_owned()).collect();
    assert!(!states.is_empty() && states.is_subset(&glossary.code("state")), "{states:?}");
    glossary.check_words("GET /metrics", &metrics);
}
