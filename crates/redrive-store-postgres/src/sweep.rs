//! Resumes what nobody resumed, page by page, and ends what a crash has left running below jobs that ended.

use redrive_core::steps::Swept;
use redrive_core::{JobId, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::open::Inner;
use crate::resume::{self, FoundWaits, Wait};
use crate::trees;

const SWEEP: &str = concat!(include_str!("../sql/sweep.sql"), include_str!("../sql/resume.sql"));

pub(crate) async fn sweep(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
    let (now, after, limit) = (inner.manual_now(), after.map(|id| id.0), limit as i64);
    let FoundWaits { waits, marked } =
        resume::look(inner, SWEEP, &[(&now, Type::INT8), (&after, Type::UUID), (&limit, Type::INT8)]).await?;
    if let Some(tree) = marked {
        let passed_on = trees::sweep(inner, tree).await?;
        inner.wake_if(passed_on);
    }
    let last = waits.last().map(|wait| JobId(wait.job.id));
    let resumed = if waits.iter().any(Wait::is_held_back) {
        let order: Vec<Uuid> = waits.iter().map(|wait| wait.job.id).collect();
        resume::resume_in_order(inner, &order).await?
    } else {
        resume::take_turns(inner, &waits).await?
    };
    Ok(Swept { resumed, last })
}
