//! `cx.version`: lets old runs finish with the old code.

use std::ops::RangeInclusive;

use redrive_core::steps::StepKind;

use super::unreadable;
use crate::{Context, JobError};

impl Context {
    /// The version of the code that this run uses. A run that gets here for the first time uses the newest version, and keeps it.
    /// A run that passed this point before the change was made uses the oldest one.
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
    /// A run whose version is not in the range is rejected, because the code that could finish it is gone.
    pub async fn version(&self, change: &str, versions: RangeInclusive<u32>) -> Result<u32, JobError> {
        let version = match self.history.peek() {
            Some(step) if step.kind == StepKind::Version && step.name.as_str() == change => {
                self.history.next_version(change)?;
                let text = String::from_utf8_lossy(&step.value);
                text.parse().map_err(|error| unreadable(&step, error))?
            }
            Some(_) => *versions.start(),
            None if self.history.has_more_steps() => *versions.start(),
            None => {
                let place = self.history.next_version(change)?;
                let newest = versions.end().to_string().into_bytes();
                self.history.store_step(&place, StepKind::Version, newest).await?;
                *versions.end()
            }
        };
        if versions.contains(&version) {
            return Ok(version);
        }
        Err(JobError::reject(format_args!(
            "this run uses version {version} of {change:?}, and the code only has versions {} to {}",
            versions.start(),
            versions.end()
        )))
    }
}
