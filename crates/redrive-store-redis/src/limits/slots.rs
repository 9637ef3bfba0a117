//! Grants free slots to jobs that wait for one.

use redrive_core::queue_limits::Limits;
use redrive_core::{JobId, Order, StoreError};

use crate::inner::Inner;
use crate::row::SEPARATOR;
use crate::script::{self, reply};
use crate::settings::Settings;

/// The maximum number of waiting jobs that the script `scope_state` returns.
const WAITING_READ: usize = 100;

/// Makes waiting jobs due after jobs of these scopes have freed slots.
pub(crate) async fn grant_free_slots(
    inner: &Inner,
    shard: usize,
    scopes: Vec<String>,
) -> Result<(), StoreError> {
    if scopes.is_empty() {
        return Ok(());
    }
    let settings = Settings::read(inner).await?;
    for scope in scopes {
        loop {
            let state = ScopeState::read(inner, shard, &scope).await?;
            let next = state.next_jobs(settings.key_limits(&scope));
            let (chosen, waiting) = (next.len(), state.waiting.len());
            let granted = grant(inner, shard, &next).await?;
            inner.wake_if(granted.contains(&true));
            // If every job of a full page got a slot, jobs of the next page may get one too.
            if chosen < waiting || waiting < WAITING_READ {
                break;
            }
        }
    }
    Ok(())
}

/// A job that waits for a slot, as a script reports it.
pub(crate) struct SlotWait<'a> {
    order: Order,
    scope: &'a str,
}

impl<'a> SlotWait<'a> {
    /// Parses the answer of a script; `None` if it is another answer.
    pub(crate) fn parse(word: &'a str) -> Option<Self> {
        let (order, scope) = word.strip_prefix("slot\u{1f}")?.split_once(SEPARATOR)?;
        Some(Self { order: if order == "strict" { Order::Strict } else { Order::Any }, scope })
    }

    /// Makes the job due if a slot is free for it.
    pub(crate) async fn grant_if_free(
        &self,
        inner: &Inner,
        shard: usize,
        id: JobId,
    ) -> Result<bool, StoreError> {
        let settings = Settings::read(inner).await?;
        let state = ScopeState::read(inner, shard, self.scope).await?;
        let is_next = match self.order {
            Order::Strict => state.first_strict == Some(id),
            Order::Any => true,
        };
        let limits = settings.key_limits(self.scope);
        if !is_next || !limits.may_resume(self.order, state.running, state.claimable) {
            return Ok(false);
        }
        Ok(grant(inner, shard, &[id]).await?.contains(&true))
    }
}

async fn grant(inner: &Inner, shard: usize, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut arguments = inner.arguments();
    arguments.ids(ids);
    reply::flags(inner.run(&script::GRANT_SLOTS, shard, arguments).await?)
}

/// The jobs of one scope, as far as they matter for free slots.
struct ScopeState {
    running: u64,
    claimable: u64,
    /// The first live job in strict order.
    first_strict: Option<JobId>,
    first_strict_waits: bool,
    /// Jobs without strict order that wait for a slot, in claim order.
    waiting: Vec<JobId>,
}

impl ScopeState {
    async fn read(inner: &Inner, shard: usize, scope: &str) -> Result<Self, StoreError> {
        let mut arguments = inner.arguments();
        arguments.count(1);
        arguments.text(scope);
        let [state] = reply::parts(inner.run(&script::SCOPE_STATE, shard, arguments).await?)?;
        let [running, claimable, first, first_waits, waiting] = reply::parts(state)?;
        Ok(Self {
            running: reply::number(running)?,
            claimable: reply::number(claimable)?,
            first_strict: reply::optional_id(first)?,
            first_strict_waits: !reply::text(first_waits)?.is_empty(),
            waiting: reply::texts(waiting)?.iter().map(|id| reply::id(id)).collect::<Result<_, _>>()?,
        })
    }

    /// The jobs that get a slot now.
    fn next_jobs(&self, limits: Limits) -> Vec<JobId> {
        let mut next = Vec::new();
        if let Some(first) = self.first_strict.filter(|_| self.first_strict_waits)
            && limits.may_resume(Order::Strict, self.running, self.claimable)
        {
            next.push(first);
        }
        // Each job that becomes due counts as claimable for the next one.
        let others = (self.claimable..).zip(&self.waiting);
        let others =
            others.take_while(|(claimable, _)| limits.may_resume(Order::Any, self.running, *claimable));
        next.extend(others.map(|(_, id)| *id));
        next
    }
}
