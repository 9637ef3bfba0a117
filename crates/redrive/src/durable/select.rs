//! `cx.select`: waits for the first of several signals and sleeps.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use redrive_core::steps::{Signal, Step, StepKind};
use redrive_core::{SignalName, Timestamp, WaitCondition};
use serde::de::DeserializeOwned;

use super::history::{StepPlace, unreadable};
use super::race::Contender;
use super::suspend::Suspension;
use crate::{Context, JobError};

impl Context {
    /// Waits for the first of several signals and sleeps, without occupying the worker. The choice is stored, so a replay returns
    /// the same one. The other signals are not taken: a later wait gets them.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Order { id: u64 }
    /// # impl Task for Order { const KIND: &'static str = "order"; type Output = String; }
    /// enum Next { Paid(u64), Withdrawn, TimedOut }
    ///
    /// async fn order(order: Order, cx: Context) -> Result<String, JobError> {
    ///     let day = Duration::from_secs(24 * 60 * 60);
    ///     let next = cx
    ///         .select([
    ///             cx.signal::<u64>("paid").map(Next::Paid),
    ///             cx.signal::<()>("withdrawn").map(|()| Next::Withdrawn),
    ///             cx.sleep(day).map(|()| Next::TimedOut),
    ///         ])
    ///         .await?;
    ///     Ok(match next {
    ///         Next::Paid(cents) => format!("paid {cents}"),
    ///         Next::Withdrawn => "withdrawn".to_owned(),
    ///         Next::TimedOut => "not paid within a day".to_owned(),
    ///     })
    /// }
    /// ```
    ///
    /// If several signals have arrived, the oldest one is chosen. A signal that has arrived is chosen before a sleep that is
    /// over. A signal whose value cannot be read is skipped, as by [`Context::signal`].
    ///
    /// `tokio::select!` over waits and steps of the same context also chooses the same one at each replay. It costs one more
    /// write, and it can also wait for a [`Context::step`] or a [`Context::fan_out`].
    pub fn select<'a, T>(&'a self, arms: impl IntoIterator<Item = SelectArm<'a, T>>) -> Select<'a, T> {
        Select { cx: self, arms: arms.into_iter().collect() }
    }
}

/// A signal or a sleep that [`Context::select`] waits for. See [`crate::AwaitSignal::map`] and [`crate::Sleep::map`].
#[must_use = "an arm does nothing until it is passed to Context::select"]
pub struct SelectArm<'a, T>(ArmKind<'a, T>);

enum ArmKind<'a, T> {
    Signal { name: String, read: ReadSignal<'a, T> },
    Sleep { place: Result<StepPlace, JobError>, span: Duration, then: Box<dyn FnOnce() -> T + Send + 'a> },
}

/// Reads the value of a signal. It is called again for the next signal after a value that it could not read.
type ReadSignal<'a, T> = Box<dyn FnMut(&[u8]) -> Result<T, serde_json::Error> + Send + 'a>;

impl<'a, T> SelectArm<'a, T> {
    pub(super) fn signal<V: DeserializeOwned>(name: String, then: impl FnOnce(V) -> T + Send + 'a) -> Self {
        let mut then = Some(then);
        let read = move |json: &[u8]| {
            let value: V = serde_json::from_slice(json)?;
            let then = then.take().ok_or_else(|| serde::de::Error::custom("the signal was already read"))?;
            Ok(then(value))
        };
        Self(ArmKind::Signal { name, read: Box::new(read) })
    }

    pub(super) fn sleep(
        place: Result<StepPlace, JobError>,
        span: Duration,
        then: impl FnOnce(()) -> T + Send + 'a,
    ) -> Self {
        Self(ArmKind::Sleep { place, span, then: Box::new(move || then(())) })
    }

    /// Its name in the stored step.
    fn label(&self) -> &str {
        match &self.0 {
            ArmKind::Signal { name, .. } => name,
            ArmKind::Sleep { .. } => "sleep",
        }
    }
}

/// A wait for the first of several signals and sleeps. See [`Context::select`].
#[must_use = "the handler waits only when this is awaited"]
pub struct Select<'a, T> {
    cx: &'a Context,
    arms: Vec<SelectArm<'a, T>>,
}

impl<'a, T: Send + 'a> IntoFuture for Select<'a, T> {
    type Output = Result<T, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let place = self.cx.history.next_step("select", &[StepKind::Selected]);
        let contender = self.cx.history.races.enter();
        Box::pin(async move { self.run(place?, contender).await })
    }
}

impl<T> Select<'_, T> {
    async fn run(self, place: StepPlace, contender: Contender<'_>) -> Result<T, JobError> {
        let Self { cx, mut arms } = self;
        if let Some(step) = &place.stored {
            return replay(step, arms);
        }
        let history = &*cx.history;
        let busy = history.suspensions.busy();
        let names = names(&arms)?;
        let sleep = earliest_sleep(cx, &mut arms).await?;
        if names.is_empty() && sleep.is_none() {
            return Err(JobError::reject("cx.select has nothing to wait for: pass it a signal or a sleep"));
        }
        loop {
            let permit = contender.permit().await;
            if let Some(signal) = history.oldest_signal(&names).await? {
                if let Some(value) = take(cx, &place, &mut arms, &signal).await? {
                    return Ok(value);
                }
                continue;
            }
            if let Some((index, deadline)) = sleep
                && deadline <= history.now()?
            {
                let chosen = SelectedArm { index, label: arms[index].label(), value: b"" };
                let step = history.store_step(&place, StepKind::Selected, chosen.write()).await?;
                return replay(&step, arms);
            }
            permit.release();
            let parts = names.into_iter().map(WaitCondition::Signal);
            let until = WaitCondition::any(parts).ok();
            let deadline = sleep.map(|(_, deadline)| deadline);
            return history.suspensions.suspend(Suspension { until, deadline }, busy).await;
        }
    }
}

/// The names of the signals among the arms.
fn names<T>(arms: &[SelectArm<'_, T>]) -> Result<Vec<SignalName>, JobError> {
    let signals = arms.iter().filter(|arm| matches!(arm.0, ArmKind::Signal { .. }));
    signals.map(|arm| SignalName::new(arm.label()).map_err(JobError::reject)).collect()
}

/// The sleep that ends first: the index of its arm, and its end.
async fn earliest_sleep<T>(
    cx: &Context,
    arms: &mut [SelectArm<'_, T>],
) -> Result<Option<(usize, Timestamp)>, JobError> {
    let mut earliest: Option<(usize, Timestamp)> = None;
    for (index, arm) in arms.iter_mut().enumerate() {
        if let ArmKind::Sleep { place, span, .. } = &mut arm.0 {
            let place = place.as_ref().map_err(JobError::copy)?;
            let deadline = cx.timer(place, *span).await?;
            if earliest.is_none_or(|(_, first)| deadline < first) {
                earliest = Some((index, deadline));
            }
        }
    }
    Ok(earliest)
}

/// Takes a signal for its arm. Returns none if the arm could not read the signal, which is then skipped.
async fn take<T>(
    cx: &Context,
    place: &StepPlace,
    arms: &mut [SelectArm<'_, T>],
    signal: &Signal,
) -> Result<Option<T>, JobError> {
    for (index, arm) in arms.iter_mut().enumerate() {
        if let ArmKind::Signal { name, read } = &mut arm.0
            && name == signal.name.as_str()
        {
            let value = match read(&signal.value) {
                Ok(value) => value,
                Err(error) => {
                    cx.history.skip_signal(signal, error).await?;
                    return Ok(None);
                }
            };
            let chosen = SelectedArm { index, label: name, value: &signal.value };
            let taken = cx.history.take_signal(place, signal, StepKind::Selected, chosen.write()).await?;
            return match taken {
                Some(_) => Ok(Some(value)),
                None => {
                    Err(JobError::fail(format_args!("signal \"{name}\" disappeared before it was taken")))
                }
            };
        }
    }
    Err(JobError::fail(format_args!("the store returned signal \"{}\", which no arm waits for", signal.name)))
}

/// Returns the choice of an earlier attempt.
fn replay<T>(step: &Step, arms: Vec<SelectArm<'_, T>>) -> Result<T, JobError> {
    let chosen = SelectedArm::read(&step.value).ok_or_else(|| unreadable(step, "no arm is named"))?;
    let arm = arms.into_iter().nth(chosen.index).filter(|arm| arm.label() == chosen.label);
    match arm.map(|arm| arm.0) {
        Some(ArmKind::Signal { mut read, .. }) => read(chosen.value).map_err(|error| unreadable(step, error)),
        Some(ArmKind::Sleep { then, .. }) => Ok(then()),
        None => Err(JobError::fail(format_args!(
            "the code has changed: arm {} of cx.select was \"{}\"; keep the order of the arms, or separate old runs from \
             new ones with cx.version",
            chosen.index, chosen.label
        ))),
    }
}

/// The choice of a select as it is stored: the arm's number and name on one line, then the signal's value.
#[derive(Debug, PartialEq)]
struct SelectedArm<'a> {
    index: usize,
    label: &'a str,
    value: &'a [u8],
}

impl<'a> SelectedArm<'a> {
    fn write(&self) -> Vec<u8> {
        let mut written = format!("{} {}\n", self.index, self.label).into_bytes();
        written.extend_from_slice(self.value);
        written
    }

    fn read(written: &'a [u8]) -> Option<Self> {
        let end = written.iter().position(|byte| *byte == b'\n')?;
        let (index, label) = std::str::from_utf8(&written[..end]).ok()?.split_once(' ')?;
        Some(Self { index: index.parse().ok()?, label, value: &written[end + 1..] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_was_written() {
        for (label, value) in [("sleep", &b""[..]), ("a b c", b"{\"x\":\n1}"), ("ü", b"\n")] {
            let chosen = SelectedArm { index: 12, label, value };
            assert_eq!(SelectedArm::read(&chosen.write()), Some(chosen));
        }
        assert_eq!(SelectedArm::read(b"12 no end"), None);
    }
}
