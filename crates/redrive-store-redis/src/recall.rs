//! Remembered steps.

use redrive_core::steps::{Step, StepKind};
use redrive_core::{JobId, StepName, StoreError};

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn recall(
    inner: &Inner,
    id: JobId,
    from: u32,
    limit: usize,
) -> Result<Vec<Step>, StoreError> {
    let partition = inner.partitions_of(&[id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(id);
    arguments.text(from);
    arguments.count(limit);
    let steps = answer::items(inner.run(&script::RECALL, partition, arguments).await?)?;
    steps.into_iter().map(|step| read(&answer::bytes(step)?)).collect()
}

/// Between the parts of a step.
const SEPARATOR: u8 = 0x1f;

/// A step as it is kept: PLACE, KIND, NAME and VALUE.
pub(crate) fn write(step: &Step) -> Vec<u8> {
    let (place, kind, name) = (step.place, step.kind.code(), &step.name);
    let separator = char::from(SEPARATOR);
    let mut bytes = format!("{place}{separator}{kind}{separator}{name}{separator}").into_bytes();
    bytes.extend(&step.value);
    bytes
}

/// A step from what it was written as.
pub(crate) fn read(bytes: &[u8]) -> Result<Step, StoreError> {
    let mut parts = bytes.splitn(4, |byte| *byte == SEPARATOR);
    let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok()).map(str::to_owned);
    let damaged = || StoreError::Corrupt("a step cannot be read".to_owned());
    let (place, kind, name) =
        (text().ok_or_else(damaged)?, text().ok_or_else(damaged)?, text().ok_or_else(damaged)?);
    Ok(Step {
        place: place.parse().map_err(|_| damaged())?,
        kind: kind.parse().ok().and_then(StepKind::from_code).ok_or_else(damaged)?,
        name: StepName::new(name)?,
        value: parts.next().ok_or_else(damaged)?.to_vec(),
    })
}
