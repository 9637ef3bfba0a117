//! Resumes what nobody resumed, page by page.

use redrive_core::steps::Swept;
use redrive_core::{JobId, StoreError};
use tokio_postgres::types::Type;

use crate::open::Inner;
use crate::resume;

const SWEEP: &str = concat!(include_str!("../sql/sweep.sql"), include_str!("../sql/resume.sql"));

pub(crate) async fn sweep(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
    let (now, after, limit) = (inner.manual_now(), after.map(|id| id.0), limit as i64);
    let looked_at =
        resume::look(inner, SWEEP, &[(&now, Type::INT8), (&after, Type::UUID), (&limit, Type::INT8)]).await?;
    let last = looked_at.last().map(|(looked, _)| JobId(looked.id));
    Ok(Swept { resumed: resume::take_turns(inner, &looked_at).await?, last })
}
