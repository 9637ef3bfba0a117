//! Panics in implementations of serde's traits.

use redrive::{Context, EndedJob, Error, JobError, Policy, ResultError, SqliteTransaction, State, Task};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{failures, panicked, quick_policy, work_beside};
use crate::fixture::{job, open};

/// A text. It panics when it is serialised as "unwritable" or deserialised as "unreadable".
#[derive(Debug, Clone, PartialEq)]
struct Brittle(&'static str);

impl Serialize for Brittle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert_ne!(self.0, "unwritable");
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for Brittle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "unreadable" => panic!("cannot read this"),
            _ => Ok(Self("fine")),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Carry {
    payload: Brittle,
    /// The text that the handler returns.
    output: String,
}

impl Task for Carry {
    const KIND: &'static str = "carry";
    type Output = Brittle;

    fn policy() -> Policy {
        quick_policy()
    }
}

fn carry(payload: &'static str, output: &str) -> Carry {
    Carry { payload: Brittle(payload), output: output.to_owned() }
}

async fn handle(carry: Carry, _: Context) -> Result<Brittle, JobError> {
    Ok(Brittle(match carry.output.as_str() {
        "unwritable" => "unwritable",
        "unreadable" => "unreadable",
        _ => "fine",
    }))
}

#[tokio::test]
async fn a_payload_or_a_signal_whose_serialize_panics_is_an_error() {
    let redrive = open().await;
    let error = redrive.enqueue(carry("unwritable", "")).await.unwrap_err();
    assert!(matches!(error, Error::Panicked(_)), "{error:?}");
    assert!(error.to_string().starts_with("the Serialize of a carry panicked: assertion"), "{error}");
    let id = redrive.enqueue(carry("fine", "")).await.unwrap().id();
    let error = redrive.signal(id, "go", &Brittle("unwritable")).await.unwrap_err();
    assert!(error.to_string().starts_with("the Serialize of a signal panicked: assertion"), "{error}");
}

#[tokio::test]
async fn a_payload_whose_deserialize_panics_fails_its_attempts_and_its_closure_is_not_called() {
    let redrive = open().await;
    let id = redrive.enqueue(carry("unreadable", "")).await.unwrap().id();
    let worker = redrive.worker().on(handle).on_end(
        |_: &mut SqliteTransaction<'_, '_, '_>, _: &Carry, _: &EndedJob| -> Result<(), Error> {
            unreachable!("the payload cannot be read")
        },
    );
    work_beside(&redrive, worker, &[id]).await;
    let failure = panicked("the Deserialize of a carry panicked: cannot read this");
    assert_eq!(failures(&redrive, id).await, [failure.clone(), failure.clone(), failure]);
    assert_eq!(job(&redrive, id).await.state, State::Dead);
}

#[tokio::test]
async fn an_output_whose_serialize_panics_fails_its_attempts() {
    let redrive = open().await;
    let id = redrive.enqueue(carry("fine", "unwritable")).await.unwrap().id();
    work_beside(&redrive, redrive.worker().on(handle), &[id]).await;
    let failures = failures(&redrive, id).await;
    let text = "the Serialize of a carry output panicked: assertion";
    assert!(failures.len() == 3 && failures.iter().all(|(_, error)| error.starts_with(text)), "{failures:?}");
}

#[tokio::test]
async fn an_output_whose_deserialize_panics_is_an_error_for_its_reader() {
    let redrive = open().await;
    let id = redrive.enqueue(carry("fine", "unreadable")).await.unwrap().id();
    work_beside(&redrive, redrive.worker().on(handle), &[id]).await;
    match redrive.output::<Carry>(id).await {
        Err(ResultError::Unreadable { source, .. }) => {
            assert_eq!(source.to_string(), "the Deserialize of a carry output panicked: cannot read this");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_step_whose_serialize_or_deserialize_panics_fails_its_attempt() {
    for (value, text) in [("unwritable", "assertion"), ("unreadable", "cannot read this")] {
        let redrive = open().await;
        let id = redrive.enqueue(carry("fine", value)).await.unwrap().id();
        let worker = redrive.worker().on(|task: Carry, cx: Context| async move {
            let value = handle(task, cx.clone()).await?;
            cx.step("carry", || async { Ok::<_, JobError>(value) }).await
        });
        work_beside(&redrive, worker, &[id]).await;
        assert_eq!(job(&redrive, id).await.state, State::Dead);
        let failures = failures(&redrive, id).await;
        assert!(
            failures.iter().all(|(outcome, error)| outcome == "panic" && error.contains(text)),
            "{failures:?}"
        );
    }
}
