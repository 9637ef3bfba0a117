//! Old runs finish under old code.

use std::ops::RangeInclusive;

use redrive_core::steps::StepKind;

use super::unreadable;
use crate::{Context, JobError};

impl Context {
    /// Which version of the code this run goes by. A run that comes here for the first time goes by the newest; one that
    /// was here, or went past here before the change was made, by the one it began with.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Order { id: u64 }
    /// # impl Task for Order { const KIND: &'static str = "order"; type Output = (); }
    /// # async fn charge() -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn reserve() -> Result<(), std::io::Error> { Ok(()) }
    /// async fn fulfil(order: Order, cx: Context) -> Result<(), JobError> {
    ///     if cx.version("reserve-first", 1..=2).await? >= 2 {
    ///         cx.step("reserve", reserve).await?;
    ///     }
    ///     cx.step("charge", charge).await
    /// }
    /// ```
    ///
    /// A run whose version is below the range is rejected: code that could finish it is gone.
    pub async fn version(&self, change: &str, versions: RangeInclusive<u32>) -> Result<u32, JobError> {
        let version = match self.history.peek() {
            Some(step) if step.kind == StepKind::Version && step.name.as_str() == change => {
                self.history.enter_version(change)?;
                let text = String::from_utf8_lossy(&step.value);
                text.parse().map_err(|error| unreadable(&step, error))?
            }
            Some(_) => *versions.start(),
            None if self.history.goes_on() => *versions.start(),
            None => {
                let place = self.history.enter_version(change)?;
                let newest = versions.end().to_string().into_bytes();
                self.history.keep(&place, StepKind::Version, newest).await?;
                *versions.end()
            }
        };
        if versions.contains(&version) {
            return Ok(version);
        }
        Err(JobError::reject(format_args!(
            "this run goes by version {version} of {change:?}, the code knows {} to {}",
            versions.start(),
            versions.end()
        )))
    }
}
