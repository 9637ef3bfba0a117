//! Leaves signals, lists those that nobody took, and sets some aside.

use redis::Value;
use redrive_core::steps::{Signal, Signalled};
use redrive_core::transfer::Received;
use redrive_core::{JobId, Lease, SignalName, StoreError};
use uuid::Uuid;

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::row::SEPARATOR;
use crate::{answer, script};

pub(crate) async fn signal(inner: &Inner, signals: &[Signal]) -> Result<Vec<Signalled>, StoreError> {
    let ids: Vec<JobId> = signals.iter().map(|signal| signal.job).collect();
    let read = |_, value| answer::texts(value)?.iter().map(|word| word_of(word)).collect();
    let add = |arguments: &mut Arguments, n: usize| {
        let Signal { job, id, name, value } = &signals[n];
        arguments.id(*job);
        arguments.text(id.simple());
        arguments.text(name);
        arguments.bytes(value);
    };
    inner.run_by_home(&ids, Spread::of(&script::SIGNAL, add), read).await
}

/// The signals of a job by any of these names that nobody took, in the order in which they came.
pub(crate) async fn pending(
    inner: &Inner,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>, StoreError> {
    let partition = inner.partitions_of(&[job]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(job);
    arguments.count(limit);
    arguments.count(names.len());
    names.iter().for_each(|name| arguments.text(name));
    let pending = answer::items(inner.run(&script::PENDING_SIGNALS, partition, arguments).await?)?;
    let damaged = || StoreError::Corrupt(format!("job {job}: a signal cannot be read"));
    let each = pending.into_iter().map(|signal| {
        let Received { id, name, value, .. } = read(&answer::bytes(signal)?).ok_or_else(damaged)?;
        Ok(Signal { job, id, name, value })
    });
    each.collect()
}

/// Marks signals as taken; false, with nothing changed, if the lease is lost.
pub(crate) async fn set_aside(inner: &Inner, lease: Lease, signals: &[Uuid]) -> Result<bool, StoreError> {
    let partition = inner.partitions_of(&[lease.id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.lease(inner, lease);
    arguments.count(signals.len());
    signals.iter().for_each(|signal| arguments.text(signal.simple()));
    Ok(inner.run(&script::SET_ASIDE, partition, arguments).await? == Value::Int(1))
}

/// A signal from ID, TAKEN, NAME and VALUE.
pub(crate) fn read(bytes: &[u8]) -> Option<Received> {
    let mut parts = bytes.splitn(4, |byte| char::from(*byte) == SEPARATOR);
    let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (id, taken, name) = (Uuid::try_parse(text()?).ok()?, text()? == "1", SignalName::new(text()?).ok()?);
    Some(Received { id, name, value: parts.next()?.to_vec(), taken })
}

/// A signal as it is kept.
pub(crate) fn write(signal: &Received) -> Vec<u8> {
    let (id, taken, name) = (signal.id.simple(), u8::from(signal.taken), &signal.name);
    let mut bytes = format!("{id}{SEPARATOR}{taken}{SEPARATOR}{name}{SEPARATOR}").into_bytes();
    bytes.extend(&signal.value);
    bytes
}

fn word_of(word: &str) -> Result<Signalled, StoreError> {
    Ok(match word {
        "kept" => Signalled::Kept,
        "missing" => Signalled::NotFound,
        state => Signalled::Ended(answer::state(state)?),
    })
}
