//! Sleeps that last for days, across restarts.

use std::future::Future;
use std::pin::Pin;
use std::task;
use std::time::Duration;

use redrive_core::Timestamp;
use redrive_core::limits::HORIZON;
use redrive_core::steps::StepKind;

use super::history::{Place, unreadable};
use super::pause::Pause;
use super::race::Contender;
use super::select::Arm;
use crate::{Context, JobError};

impl Context {
    /// Sleeps for `span` without holding the worker: the handler stops here and starts again afterwards, on any worker,
    /// with its steps remembered. Costs no attempt and no budget. At most a year.
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
        let place = self.history.enter("sleep", &[StepKind::Timer]);
        let start = SleepStart { place, contender: self.history.races.enter() };
        Sleep { cx: self, span, start: Some(start), running: None }
    }

    /// The instant that is remembered at a place; on the first attempt that comes there, `span` from now.
    pub(super) async fn deadline(
        &self,
        place: &Place,
        kind: StepKind,
        span: Duration,
    ) -> Result<Timestamp, JobError> {
        let step = match &place.before {
            Some(step) => step.clone(),
            None => {
                let until = self.history.now()?.after(span);
                self.history.keep(place, kind, until.as_ms().to_string().into_bytes()).await?
            }
        };
        let text = String::from_utf8_lossy(&step.value);
        text.parse().map(Timestamp::from_ms).map_err(|error| unreadable(&step, error))
    }

    async fn run_sleep(&self, span: Duration, start: SleepStart<'_>) -> Result<(), JobError> {
        let SleepStart { place, mut contender } = start;
        let place = place?;
        let history = &*self.history;
        if history.has_won(&place) {
            contender.decide();
            return Ok(());
        }
        let busy = history.pauses.busy();
        let deadline = self.timer(&place, span).await?;
        if deadline > history.now()? {
            return history.pauses.pause(Pause { until: None, deadline: Some(deadline) }, busy).await;
        }
        let _turn = contender.turn().await;
        history.win(&place, &contender).await
    }

    /// When the sleep at a place ends.
    pub(super) async fn timer(&self, place: &Place, span: Duration) -> Result<Timestamp, JobError> {
        if span > HORIZON {
            return Err(JobError::reject("a sleep lasts at most a year"));
        }
        self.deadline(place, StepKind::Timer, span).await
    }
}

/// A sleep; await it, or hand it to [`Context::select`] with [`Sleep::map`].
#[must_use = "a handler sleeps when this is awaited"]
pub struct Sleep<'a> {
    cx: &'a Context,
    span: Duration,
    /// What it starts with, until it is first polled.
    start: Option<SleepStart<'a>>,
    running: Option<RunningSleep<'a>>,
}

type RunningSleep<'a> = Pin<Box<dyn Future<Output = Result<(), JobError>> + Send + 'a>>;

struct SleepStart<'a> {
    place: Result<Place, JobError>,
    contender: Contender<'a>,
}

impl<'a> Sleep<'a> {
    /// Makes it one of the things that [`Context::select`] waits for; `then` makes what that returns.
    pub fn map<R>(self, then: impl FnOnce(()) -> R + Send + 'a) -> Arm<'a, R> {
        let place = self.start.map(|start| start.place);
        let place =
            place.unwrap_or_else(|| Err(JobError::reject("a sleep was awaited before it was selected")));
        Arm::sleep(place, self.span, then)
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
