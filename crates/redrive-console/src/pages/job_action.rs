//! Actions on one job, or on the selected jobs of a list.

use std::pin::pin;

use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};

use super::Answer;
use crate::api::{query, segment};
use crate::context::PageContext;
use crate::error::PageError;
use crate::form::{FormFields, VerifiedForm};

/// The number of concurrent requests.
const CONCURRENCY: usize = 8;
/// The largest number of selected jobs, far above the jobs of a page.
const SELECTED_MAX: usize = 1000;

/// `POST /console/jobs/{id}/{action}`.
pub(super) async fn on_one(
    context: PageContext,
    Path((id, action)): Path<(String, String)>,
    VerifiedForm(fields): VerifiedForm,
) -> Answer {
    let (path, body) = api_request(&id, &action, &fields)?;
    context.api.send_json(Method::POST, &path, &body).await?;
    let page = match action.as_str() {
        "discard" => "/console/dead".to_owned(),
        _ => format!("/console/jobs/{}", segment(&id)),
    };
    Ok(Redirect::to(&query(&page, [("done", action.as_str())])).into_response())
}

/// `POST /console/act`.
pub(super) async fn on_selected(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let action = fields.text("action");
    let ids = fields.all("id");
    if ids.is_empty() {
        return Err(PageError::InvalidInput("no job is selected: select jobs first".to_owned()));
    }
    if ids.len() > SELECTED_MAX {
        return Err(PageError::InvalidInput(format!("at most {SELECTED_MAX} jobs can be selected")));
    }
    let calls = ids
        .iter()
        .map(|id| api_request(id, &action, &FormFields::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut done, mut failed) = (0_u64, 0_u64);
    let call = async |(path, body): (String, Value)| context.api.send_json(Method::POST, &path, &body).await;
    let mut answers = pin!(stream::iter(calls).map(call).buffer_unordered(CONCURRENCY));
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(()) => done += 1,
            // The job has changed or is gone. The other jobs are not affected.
            Err(PageError::Api(problem)) if matches!(problem.status, 404 | 409) => failed += 1,
            Err(error) => return Err(error),
        }
    }
    let (done, failed) = (done.to_string(), failed.to_string());
    let result = [("done", "selected"), ("action", &*action), ("count", &*done), ("failed", &*failed)];
    Ok(Redirect::to(&back(fields.get("back"), &result)).into_response())
}

/// The path and the body of the API request for an action.
fn api_request(id: &str, action: &str, fields: &FormFields) -> Result<(String, Value), PageError> {
    let job = format!("/jobs/{}", segment(id));
    match action {
        "cancel" | "run-now" | "redrive" | "pause" | "resume" | "discard" => {
            Ok((format!("{job}/{action}"), json!({})))
        }
        "redrive-afresh" => Ok((format!("{job}/redrive"), json!({"steps": "forget"}))),
        "signal" => Ok((format!("{job}/signals"), signal(fields)?)),
        _ => Err(PageError::NotFound),
    }
}

fn signal(fields: &FormFields) -> Result<Value, PageError> {
    let value: Value = match fields.get("value") {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|error| {
            PageError::InvalidInput(format!("value: must be JSON, such as true or \"text\": {error}"))
        })?,
    };
    Ok(json!({"name": fields.text("name"), "value": value}))
}

/// The list that the user came from, with the result of the action.
fn back(to: Option<&str>, result: &[(&str, &str)]) -> String {
    const JOBS: &str = "/console/jobs";
    let to = to.unwrap_or(JOBS);
    let (path, old) = to.split_once('?').unwrap_or((to, ""));
    let path = [JOBS, "/console/tasks"].into_iter().find(|list| *list == path).unwrap_or(JOBS);
    let is_result = |name: &str| matches!(name, "done" | "action" | "count" | "failed");
    let kept = url::form_urlencoded::parse(old.as_bytes()).into_owned();
    let kept: Vec<(String, String)> = kept.filter(|(name, _)| !is_result(name)).collect();
    let kept = kept.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    query(path, kept.chain(result.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_returns_to_the_list_and_not_to_another_site() {
        let result = [("done", "selected")];
        assert_eq!(
            back(Some("/console/tasks?state=dead&done=x"), &result),
            "/console/tasks?state=dead&done=selected"
        );
        assert_eq!(back(Some("https://evil.example/?a=b"), &result), "/console/jobs?a=b&done=selected");
        assert_eq!(back(None, &result), "/console/jobs?done=selected");
    }
}
