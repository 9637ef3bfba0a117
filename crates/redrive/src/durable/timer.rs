//! `cx.sleep`: a sleep that survives restarts.

use std::future::Future;
use std::pin::Pin;
use std::task;
use std::time::Duration;

use redrive_core::Timestamp;
use redrive_core::limits::HORIZON;
use redrive_core::steps::StepKind;

use super::history::{StepPlace, unreadable};
use super::race::Contender;
use super::select::SelectArm;
use super::suspend::Suspension;
use crate::{Context, JobError};

impl Context {
    /// Sleeps for `span`, at most a year, without occupying the worker. The handler stops here. Afterwards any worker runs it
    /// again from its beginning, with the stored results of its steps. A sleep costs no attempt and no time budget.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Trial { user: u64 }
    /// # impl Task for Trial { const KIND: &'static str = "trial"; type Output = (); }
    /// # async fn mail(text: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn trial(trial: Trial, cx: Context) -> Result<(), JobError> {
    ///     cx.step("welcome", || mail("welcome")).await?;
    ///     cx.sleep(Duration::from_secs(14 * 24 * 60 * 60)).await?;
    ///     cx.step("remind", || mail("your trial ends")).await
    /// }
    /// ```
    pub fn sleep(&self, span: Duration) -> Sleep<'_> {
        let place = self.history.next_step("sleep", &[StepKind::Timer]);
        let start = SleepStart { place, contender: self.history.races.enter() };
        Sleep { cx: self, span, start: Some(start), running: None }
    }

    /// The deadline that is stored at a place. The first attempt that gets there stores now plus `span`.
    pub(super) async fn deadline(
        &self,
        place: &StepPlace,
        kind: StepKind,
        span: Duration,
    ) -> Result<Timestamp, JobError> {
        let step = match &place.stored {
            Some(step) => step.clone(),
            None => {
                let until = self.history.now()?.after(span);
                self.history.store_step(place, kind, until.as_ms().to_string().into_bytes()).await?
            }
        };
        let text = String::from_utf8_lossy(&step.value);
        text.parse().map(Timestamp::from_ms).map_err(|error| unreadable(&step, error))
    }

    async fn run_sleep(&self, span: Duration, start: SleepStart<'_>) -> Result<(), JobError> {
        let SleepStart { place, mut contender } = start;
        let place = place?;
        let history = &*self.history;
        if history.has_completed(&place) {
            contender.mark_recorded();
            return Ok(());
        }
        let busy = history.suspensions.busy();
        let deadline = self.timer(&place, span).await?;
        if deadline > history.now()? {
            let suspension = Suspension { until: None, deadline: Some(deadline) };
            return history.suspensions.suspend(suspension, busy).await;
        }
        let _permit = contender.permit().await;
        history.record_completion(&place, &contender).await
    }

    /// When the sleep at a place ends.
    pub(super) async fn timer(&self, place: &StepPlace, span: Duration) -> Result<Timestamp, JobError> {
        if span > HORIZON {
            return Err(JobError::reject("a sleep is longer than a year; use a shorter one"));
        }
        self.deadline(place, StepKind::Timer, span).await
    }
}

/// A durable sleep. Await it, or pass it to [`Context::select`] with [`Sleep::map`]. See [`Context::sleep`].
#[must_use = "the handler sleeps only when this is awaited"]
pub struct Sleep<'a> {
    cx: &'a Context,
    span: Duration,
    /// Its place and contender, until it is first polled.
    start: Option<SleepStart<'a>>,
    running: Option<RunningSleep<'a>>,
}

type RunningSleep<'a> = Pin<Box<dyn Future<Output = Result<(), JobError>> + Send + 'a>>;

struct SleepStart<'a> {
    place: Result<StepPlace, JobError>,
    contender: Contender<'a>,
}

impl<'a> Sleep<'a> {
    /// Makes it an arm of [`Context::select`]. `then` returns the result of the select.
    pub fn map<R>(self, then: impl FnOnce(()) -> R + Send + 'a) -> SelectArm<'a, R> {
        let place = self.start.map(|start| start.place);
        let place = place.unwrap_or_else(|| {
            Err(JobError::reject("a sleep was awaited before it was passed to cx.select"))
        });
        SelectArm::sleep(place, self.span, then)
    }
}

impl Future for Sleep<'_> {
    type Output = Result<(), JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        if let Some(start) = self.start.take() {
            self.running = Some(Box::pin(self.cx.run_sleep(self.span, start)));
        }
        match &mut self.running {
            Some(running) => running.as_mut().poll(cx),
            None => task::Poll::Pending,
        }
    }
}
