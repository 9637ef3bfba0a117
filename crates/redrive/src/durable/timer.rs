//! Sleeps that last for days, across restarts.

use std::future::Future;
use std::time::Duration;

use redrive_core::Timestamp;
use redrive_core::limits::HORIZON;
use redrive_core::steps::StepKind;

use super::history::{Place, unreadable};
use super::pause::Pause;
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
    pub fn sleep(&self, span: Duration) -> impl Future<Output = Result<(), JobError>> + Send + use<'_> {
        let place = self.history.enter("sleep", &[StepKind::Timer]);
        async move {
            if span > HORIZON {
                return Err(JobError::reject("a sleep lasts at most a year"));
            }
            let until = self.deadline(&place?, StepKind::Timer, span).await?;
            self.sleep_to(until).await
        }
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

    async fn sleep_to(&self, until: Timestamp) -> Result<(), JobError> {
        let left = until.since(self.history.now()?);
        if left.is_zero() {
            return Ok(());
        }
        self.history.pauses.pause(Pause { until: None, at_most: Some(left) }).await
    }
}
