//! `?` in handlers and steps accepts the usual error types, and the job stores their causes.

use anyhow::Context as _;
use redrive::{Context, JobError, Policy, State, presets};

use crate::fixture::{Add, job, open, work};

type Boxed = Box<dyn std::error::Error + Send + Sync>;

async fn parse(text: &str) -> anyhow::Result<u32> {
    text.parse::<u32>().with_context(|| format!("cannot read {text:?}"))
}

async fn parse_boxed(text: &str) -> Result<u32, Boxed> {
    Ok(text.parse::<u32>()?)
}

/// Fails in a place that the task chooses.
async fn add(add: Add, cx: Context) -> Result<u32, JobError> {
    match add.a {
        0 => Ok(parse("x").await?),
        1 => Ok(parse_boxed("x").await?),
        2 => cx.step("parse", || parse("x")).await,
        3 => cx.step("parse", || parse_boxed("x")).await,
        4 => Ok(parse("x").await.map_err(JobError::reject)?),
        _ => Ok(cx.step("parse", || parse("7")).await? + parse_boxed("8").await?),
    }
}

#[tokio::test]
async fn errors_of_any_kind_fail_an_attempt_with_their_causes() {
    let redrive = open().await;
    let once: Policy = presets::once();
    let tasks = (0..6).map(|a| redrive.enqueue(Add { a, b: 0 }).policy(once.clone()));
    let ids: Vec<_> = redrive.enqueue_all(tasks).await.unwrap().into_iter().map(|job| job.id()).collect();
    work(&redrive, redrive.worker().on(add), &ids).await;
    let (digit, cause) =
        ("invalid digit found in string", "cannot read \"x\": invalid digit found in string");
    for (id, error) in ids.iter().zip([cause, digit, cause, digit, cause]) {
        assert_eq!(job(&redrive, *id).await.last_error.as_deref(), Some(error));
    }
    let last = job(&redrive, ids[5]).await;
    assert_eq!((last.state, last.output.as_deref()), (State::Succeeded, Some(&b"15"[..])));
}
