//! Durable jobs: steps, signals, and jobs that wait.

use redis::Value;
use redrive_core::steps::{ForgetResult, NewStep, RememberResult, Signal, SignalResult, Step, SweepResult};
use redrive_core::transfer::StoredSignal;
use redrive_core::{JobId, Lease, SignalName, StoreError};
use uuid::Uuid;

use crate::entries;
use crate::inner::{Inner, ShardedCall};
use crate::lifecycle::enqueue;
use crate::lifecycle::job_tree::{self, FollowUp};
use crate::limits::SlotWait;
use crate::script::{self, Arguments, reply};

/// The answer of a script that has ended some children of a job but not all: the caller has to ask about the job again.
pub(crate) const ASK_AGAIN: &str = "more";

pub(crate) async fn recall(
    inner: &Inner,
    id: JobId,
    from: u32,
    limit: usize,
) -> Result<Vec<Step>, StoreError> {
    let shard = inner.shards_of(&[id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(id);
    arguments.text(from);
    arguments.count(limit);
    let steps = reply::items(inner.run(&script::RECALL, shard, arguments).await?)?;
    steps.into_iter().map(|step| entries::read_step(&reply::bytes(step)?)).collect()
}

pub(crate) async fn remember(
    inner: &Inner,
    new_steps: &[NewStep],
) -> Result<Vec<RememberResult>, StoreError> {
    enqueue::check_starts(inner, new_steps.iter().flat_map(|new| &new.children)).await?;
    let ids: Vec<JobId> = new_steps.iter().map(|new| new.lease.id).collect();
    let add = |arguments: &mut Arguments, n: usize| {
        let NewStep { lease, step, children, takes } = &new_steps[n];
        arguments.lease(inner, *lease);
        arguments.text(step.place);
        arguments.bytes(&entries::write_step(step));
        arguments.text(takes.map(|signal| signal.simple().to_string()).unwrap_or_default());
        enqueue::write_all(arguments, children);
    };
    let read = |_, value| {
        let mut flat = reply::items(value)?.into_iter();
        let mut answers = Vec::new();
        while let (Some(word), Some(existing)) = (flat.next(), flat.next()) {
            answers.push((reply::text(word)?, reply::bytes(existing)?));
        }
        Ok(answers)
    };
    let answers = inner.run_for_jobs(&ids, ShardedCall::new(&script::REMEMBER, add), read).await?;
    let results = new_steps.iter().zip(answers).map(|(new, (word, existing))| {
        Ok(match word.as_str() {
            "kept" => RememberResult::Stored(new.step.clone()),
            "before" => RememberResult::AlreadyStored(entries::read_step(&existing)?),
            "cancel" => RememberResult::CancelRequested,
            "nosignal" => RememberResult::NoSignal,
            _ => RememberResult::LeaseLost,
        })
    });
    results.collect()
}

pub(crate) async fn forget(inner: &Inner, ids: &[JobId]) -> Result<Vec<ForgetResult>, StoreError> {
    let parse = |word: &str| {
        Ok(match word {
            "done" => ForgetResult::Done,
            "missing" => ForgetResult::NotFound,
            state => ForgetResult::NotDead(reply::state(state)?),
        })
    };
    inner.run_for_ids(&script::FORGET, ids, parse).await
}

pub(crate) async fn signal(inner: &Inner, signals: &[Signal]) -> Result<Vec<SignalResult>, StoreError> {
    let ids: Vec<JobId> = signals.iter().map(|signal| signal.job).collect();
    let add = |arguments: &mut Arguments, n: usize| {
        let Signal { job, id, name, value } = &signals[n];
        arguments.id(*job);
        arguments.text(id.simple());
        arguments.text(name);
        arguments.bytes(value);
    };
    let parse = |word: &String| {
        Ok(match word.as_str() {
            "kept" => SignalResult::Stored,
            "missing" => SignalResult::NotFound,
            state => SignalResult::Ended(reply::state(state)?),
        })
    };
    let read = |_, value| reply::texts(value)?.iter().map(parse).collect();
    inner.run_for_jobs(&ids, ShardedCall::new(&script::SIGNAL, add), read).await
}

/// The signals of a job with these names that no step has taken, in the order of their arrival.
pub(crate) async fn pending_signals(
    inner: &Inner,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>, StoreError> {
    let shard = inner.shards_of(&[job]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(job);
    arguments.count(limit);
    arguments.count(names.len());
    names.iter().for_each(|name| arguments.text(name));
    let pending = reply::items(inner.run(&script::PENDING_SIGNALS, shard, arguments).await?)?;
    let damaged = || StoreError::Corrupt(format!("job {job}: a signal cannot be read"));
    let signals = pending.into_iter().map(|signal| {
        let StoredSignal { id, name, value, .. } =
            entries::read_signal(&reply::bytes(signal)?).ok_or_else(damaged)?;
        Ok(Signal { job, id, name, value })
    });
    signals.collect()
}

/// Marks signals as taken. Returns false, and changes nothing, if the lease is lost.
pub(crate) async fn skip_signals(inner: &Inner, lease: Lease, signals: &[Uuid]) -> Result<bool, StoreError> {
    let shard = inner.shards_of(&[lease.id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.lease(inner, lease);
    arguments.count(signals.len());
    signals.iter().for_each(|signal| arguments.text(signal.simple()));
    Ok(inner.run(&script::SKIP_SIGNALS, shard, arguments).await? == Value::Int(1))
}

/// Makes those jobs due whose wait is over. Returns which ones.
pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let shards = inner.shards_of(ids).await?;
    let mut resumed = Vec::with_capacity(ids.len());
    while resumed.len() < ids.len() {
        let from = resumed.len();
        let shard = shards[from];
        let count = shards[from..].iter().take_while(|of| **of == shard).count();
        resumed.extend(resume_first(inner, shard, &ids[from..from + count]).await?);
    }
    inner.wake_if(resumed.contains(&true));
    Ok(resumed)
}

/// Answers for the first of the jobs: up to and including one that waits for a slot, or up to one to ask about again.
async fn resume_first(inner: &Inner, shard: usize, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let mut arguments = inner.arguments();
    arguments.ids(ids);
    let (words, follow_up) = FollowUp::read(shard, inner.run(&script::RESUME, shard, arguments).await?)?;
    follow_up.run(inner).await?;
    let words = reply::texts(words)?;
    let mut resumed = Vec::with_capacity(words.len());
    for (id, word) in ids.iter().zip(words.iter().filter(|word| *word != ASK_AGAIN)) {
        resumed.push(match SlotWait::parse(word) {
            Some(wait) => wait.grant_if_free(inner, shard, *id).await?,
            None => word == "yes",
        });
    }
    Ok(resumed)
}

/// Resumes the next waiting jobs after `after`, in case a crash kept another caller from it, and ends descendants that a crash left.
pub(crate) async fn sweep(
    inner: &Inner,
    after: Option<JobId>,
    limit: usize,
) -> Result<SweepResult, StoreError> {
    let mut arguments = inner.arguments();
    arguments.optional_id(after);
    arguments.count(limit);
    let mut waiting = Vec::new();
    for (shard, value) in inner.run_on_all_shards(&script::WAITING, &arguments).await?.into_iter().enumerate()
    {
        let [ids, descendants_left] = reply::parts(value)?;
        if descendants_left == Value::Int(1) {
            job_tree::end_descendants(inner, shard).await?;
        }
        for id in reply::texts(ids)? {
            let id = reply::id(&id)?;
            inner.locations.insert_shard(id, shard);
            waiting.push(id);
        }
    }
    waiting.sort_unstable();
    waiting.truncate(limit);
    let resumed = resume(inner, &waiting).await?;
    let last = waiting.last().copied();
    let resumed =
        waiting.into_iter().zip(resumed).filter(|(_, resumed)| *resumed).map(|(id, _)| id).collect();
    Ok(SweepResult { resumed, last })
}
