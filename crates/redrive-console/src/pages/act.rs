//! What a person does with one job, or with those they have ticked.

use std::pin::pin;

use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};

use super::Answer;
use crate::api::{query, segment};
use crate::form::{Fields, Posted};
use crate::trouble::Trouble;
use crate::visitor::Visitor;

/// Jobs acted on at once.
const AT_ONCE: usize = 8;
/// Jobs that may be ticked: those of a page.
const SELECTED_MAX: usize = 1000;

/// `POST /console/jobs/{id}/{verb}`.
pub(super) async fn on_one(
    visitor: Visitor,
    Path((id, verb)): Path<(String, String)>,
    Posted(fields): Posted,
) -> Answer {
    let (path, body) = asked(&id, &verb, &fields)?;
    visitor.api.send_json(Method::POST, &path, &body).await?;
    let page = match verb.as_str() {
        "discard" => "/console/dead".to_owned(),
        _ => format!("/console/jobs/{}", segment(&id)),
    };
    Ok(Redirect::to(&query(&page, [("done", verb.as_str())])).into_response())
}

/// `POST /console/act`.
pub(super) async fn on_selected(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let verb = fields.text("verb");
    let ids = fields.all("id");
    if ids.is_empty() {
        return Err(Trouble::Senseless("nothing is selected: tick what you mean first".to_owned()));
    }
    if ids.len() > SELECTED_MAX {
        return Err(Trouble::Senseless(format!("at most {SELECTED_MAX} can be selected at once")));
    }
    let calls = ids.iter().map(|id| asked(id, &verb, &Fields::default())).collect::<Result<Vec<_>, _>>()?;
    let (mut done, mut failed) = (0_u64, 0_u64);
    let call = async |(path, body): (String, Value)| visitor.api.send_json(Method::POST, &path, &body).await;
    let mut answers = pin!(stream::iter(calls).map(call).buffer_unordered(AT_ONCE));
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(()) => done += 1,
            // It has changed meanwhile, or is gone: the others are not concerned.
            Err(Trouble::Said(said)) if matches!(said.status, 404 | 409) => failed += 1,
            Err(trouble) => return Err(trouble),
        }
    }
    let (done, failed) = (done.to_string(), failed.to_string());
    let said = [("done", "selected"), ("verb", &*verb), ("count", &*done), ("failed", &*failed)];
    Ok(Redirect::to(&back(fields.get("back"), &said)).into_response())
}

/// The API's path for a verb, and what to send there.
fn asked(id: &str, verb: &str, fields: &Fields) -> Result<(String, Value), Trouble> {
    let job = format!("/jobs/{}", segment(id));
    match verb {
        "cancel" | "run-now" | "redrive" | "pause" | "resume" | "discard" => {
            Ok((format!("{job}/{verb}"), json!({})))
        }
        "redrive-afresh" => Ok((format!("{job}/redrive"), json!({"steps": "forget"}))),
        "signal" => Ok((format!("{job}/signals"), signal(fields)?)),
        _ => Err(Trouble::NoPage),
    }
}

fn signal(fields: &Fields) -> Result<Value, Trouble> {
    let value: Value = match fields.get("value") {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Trouble::Senseless(format!("value: must be JSON, such as true or \"text\": {error}"))
        })?,
    };
    Ok(json!({"name": fields.text("name"), "value": value}))
}

/// The list that was being looked at, with what was done.
fn back(to: Option<&str>, said: &[(&str, &str)]) -> String {
    const JOBS: &str = "/console/jobs";
    let to = to.unwrap_or(JOBS);
    let (path, old) = to.split_once('?').unwrap_or((to, ""));
    let path = [JOBS, "/console/tasks"].into_iter().find(|list| *list == path).unwrap_or(JOBS);
    let is_said = |name: &str| matches!(name, "done" | "verb" | "count" | "failed");
    let kept = url::form_urlencoded::parse(old.as_bytes()).into_owned();
    let kept: Vec<(String, String)> = kept.filter(|(name, _)| !is_said(name)).collect();
    let kept = kept.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    query(path, kept.chain(said.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_comes_back_to_the_list_and_nowhere_else() {
        let said = [("done", "selected")];
        assert_eq!(
            back(Some("/console/tasks?state=dead&done=x"), &said),
            "/console/tasks?state=dead&done=selected"
        );
        assert_eq!(back(Some("https://evil.example/?a=b"), &said), "/console/jobs?a=b&done=selected");
        assert_eq!(back(None, &said), "/console/jobs?done=selected");
    }
}
