//! Looks at the next jobs that wait, whoever should have resumed them, and ends what a crash left below jobs that have ended.

use redis::Value;
use redrive_core::steps::Swept;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, cancel, resume, script};

pub(crate) async fn sweep(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(after.map(|id| id.0.simple().to_string()).unwrap_or_default());
    arguments.count(limit);
    let mut waiting = Vec::new();
    for (partition, value) in inner.run_on_all(&script::AWAITS, &arguments).await?.into_iter().enumerate() {
        let [ids, left] = answer::parts(value)?;
        if left == Value::Int(1) {
            cancel::work_off(inner, partition).await?;
        }
        for id in answer::texts(ids)? {
            let id = answer::id(&id)?;
            inner.homes.learn_partition(id, partition);
            waiting.push(id);
        }
    }
    waiting.sort_unstable();
    waiting.truncate(limit);
    let resumed = resume::resume(inner, &waiting).await?;
    let last = waiting.last().copied();
    let resumed =
        waiting.into_iter().zip(resumed).filter(|(_, resumed)| *resumed).map(|(id, _)| id).collect();
    Ok(Swept { resumed, last })
}
