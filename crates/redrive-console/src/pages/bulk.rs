//! Acting on all that match: first how many there are, then an operation that can be watched and stopped.

use askama::Template;
use axum::response::{IntoResponse, Redirect};
use futures_util::future::try_join_all;
use redrive_server::wire::count::JobCount;
use redrive_server::wire::operation::Operation;
use serde_json::{Value, json};

use super::Answer;
use crate::api::segment;
use crate::filter::Filter;
use crate::form::{Fields, Posted};
use crate::frame::{Frame, render};
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words::{self, now_ms};

#[derive(Template)]
#[template(path = "bulk.html")]
struct Page {
    frame: Frame,
    verb: Verb,
    filter: Filter,
    sentence: String,
    matched: u64,
    count: String,
    list: String,
    rate: String,
    canary: String,
}

/// What is done with all that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Redrive,
    Discard,
    Cancel,
    RunNow,
}

impl Verb {
    fn read(name: Option<&str>) -> Result<Self, Trouble> {
        match name {
            Some("REDRIVE") => Ok(Self::Redrive),
            Some("DISCARD") => Ok(Self::Discard),
            Some("CANCEL") => Ok(Self::Cancel),
            Some("RUN_NOW") => Ok(Self::RunNow),
            _ => Err(Trouble::NoPage),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Redrive => "REDRIVE",
            Self::Discard => "DISCARD",
            Self::Cancel => "CANCEL",
            Self::RunNow => "RUN_NOW",
        }
    }

    /// The states in which it can be done.
    fn states(self) -> &'static [&'static str] {
        match self {
            Self::Redrive | Self::Discard => &["dead"],
            Self::Cancel => &["pending", "retrying", "running", "waiting"],
            Self::RunNow => &["pending", "retrying"],
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Redrive => "Redrive",
            Self::Discard => "Discard",
            Self::Cancel => "Cancel",
            Self::RunNow => "Run now",
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::Redrive => {
                "Attempts and budget of each start anew, due at once or at the rate below. Jobs go on from the steps they remember."
            }
            Self::Discard => "They are removed for good, with their logs. Nothing brings them back.",
            Self::Cancel => {
                "Each ends with everything below it. One that is running is asked to end; an attempt that succeeds meanwhile counts."
            }
            Self::RunNow => {
                "Their waits are skipped: all are due at once, or at the rate below. Gates still hold calls to origins that struggle."
            }
        }
    }

    /// Whether what it begins can succeed, so that some may go first.
    fn begins_attempts(self) -> bool {
        matches!(self, Self::Redrive | Self::RunNow)
    }

    /// Whether nothing brings back what it does.
    fn is_grave(self) -> bool {
        matches!(self, Self::Discard | Self::Cancel)
    }
}

/// `GET /console/bulk`.
pub(super) async fn ask(visitor: Visitor) -> Answer {
    let verb = Verb::read(visitor.query.get("verb"))?;
    if !visitor.administers() {
        return Err(Trouble::Refused("acting on all that match needs a key of scope admin"));
    }
    let filter = Filter::read(&visitor.query);
    let JobCount { count: matched, at_least } = count(&visitor, verb, &filter).await?;
    let title = format!("{} all that match", verb.words());
    render(&Page {
        frame: visitor.frame(title, "operations"),
        sentence: filter.sentence(),
        matched,
        count: words::about(matched, at_least),
        list: filter.link("/console/jobs", &[]),
        rate: visitor.query.text("rate"),
        canary: visitor.query.text("canary"),
        verb,
        filter,
    })
}

/// How many it would be done to: of those that match, the ones in a state in which it can be done. States are counted side by
/// side, each as far as a list's count goes, which is quicker than a dry run of the operation.
async fn count(visitor: &Visitor, verb: Verb, filter: &Filter) -> Result<JobCount, Trouble> {
    let asked = |state: &&&str| filter.state.is_empty() || filter.state == **state;
    let now = now_ms();
    let counts = verb.states().iter().filter(asked).map(|state| {
        let of_state = Filter { state: (*state).to_owned(), ..filter.clone() };
        visitor.api.get::<JobCount>(&of_state.api("/jobs/count", now, &[]))
    });
    let mut sum = JobCount { count: 0, at_least: false };
    for counted in try_join_all(counts).await? {
        sum.count += counted.count;
        sum.at_least |= counted.at_least;
    }
    Ok(sum)
}

/// `POST /console/bulk`.
pub(super) async fn begin(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let verb = Verb::read(fields.get("verb"))?;
    if verb.is_grave() && fields.get("sure").is_none() {
        let text = "nothing brings back what this does: tick that you are sure first";
        return Err(Trouble::Senseless(text.to_owned()));
    }
    let request = request(verb, &Filter::read(&fields), &fields)?;
    let operation: Operation = visitor.api.post("/operations", &request).await?;
    let page = format!("/console/operations/{}", segment(&operation.operation_id));
    Ok(Redirect::to(&page).into_response())
}

fn request(verb: Verb, filter: &Filter, fields: &Fields) -> Result<Value, Trouble> {
    let mut request = json!({"kind": verb.name(), "filter": filter.operation(now_ms())});
    if let Some(rate) = fields.number::<f64>("rate")? {
        request["ratePerSecond"] = json!(rate);
    }
    if let Some(canary) = fields.number::<u32>("canary")?
        && verb.begins_attempts()
    {
        request["canary"] = json!(canary);
    }
    Ok(request)
}
