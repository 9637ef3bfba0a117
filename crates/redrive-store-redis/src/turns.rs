//! Lets those go on whose turn it is in their partition's key.

use redis::Value;
use redrive_core::{JobId, Order, StoreError};

use crate::claim_bounded::queue_of;
use crate::open::Inner;
use crate::settings::Settings;
use crate::{answer, script};

/// Makes those due whose turn it is after something has left its place under these keys.
pub(crate) async fn pass_on(inner: &Inner, partition: usize, scopes: Vec<String>) -> Result<(), StoreError> {
    if scopes.is_empty() {
        return Ok(());
    }
    let settings = Settings::read(inner).await?;
    for scope in scopes {
        loop {
            let line = Line::look(inner, partition, &scope).await?;
            let next = line.next(&settings, &scope)?;
            let (asked, waited) = (next.len(), line.waiting.len());
            let gone = go(inner, partition, &next).await?;
            inner.wake_if(gone.contains(&true));
            // Those behind what was looked at may go on as well.
            if asked < waited || waited < LOOKED_AT {
                break;
            }
        }
    }
    Ok(())
}

/// Lets one job go on if it is its turn.
pub(crate) async fn take_turn(
    inner: &Inner,
    partition: usize,
    scope: &str,
    id: JobId,
) -> Result<bool, StoreError> {
    let settings = Settings::read(inner).await?;
    let line = Line::look(inner, partition, scope).await?;
    let bounds = settings.quota(&queue_of(scope)?).per_key;
    let order = if line.waiting.contains(&id) || line.first != Some(id) { Order::Any } else { Order::Strict };
    let may = match order {
        Order::Strict => line.first_waits,
        // One in strict order that is not the first is in no line.
        Order::Any => line.has(inner, partition, id).await?,
    };
    if !may || !bounds.lets_go_on(order, line.running, line.claimable) {
        return Ok(false);
    }
    Ok(go(inner, partition, &[id]).await?.contains(&true))
}

async fn go(inner: &Inner, partition: usize, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut arguments = inner.arguments();
    arguments.count(ids.len());
    ids.iter().for_each(|id| arguments.id(*id));
    let answers = inner.run(&script::TAKE_TURNS, partition, arguments).await?;
    Ok(answer::items(answers)?.into_iter().map(|gone| gone == Value::Int(1)).collect())
}

/// How many that wait a look returns at most.
const LOOKED_AT: usize = 100;

/// Who runs, could run and waits under a key.
struct Line {
    running: u64,
    claimable: u64,
    /// The first of those in strict order.
    first: Option<JobId>,
    first_waits: bool,
    /// Those that keep no order and wait, in the order of a claim.
    waiting: Vec<JobId>,
}

impl Line {
    async fn look(inner: &Inner, partition: usize, scope: &str) -> Result<Self, StoreError> {
        let mut arguments = inner.arguments();
        arguments.count(1);
        arguments.text(scope);
        let [line] = answer::parts(inner.run(&script::TURNS, partition, arguments).await?)?;
        let [running, claimable, first, waits, waiting] = answer::parts(line)?;
        let first = answer::text(first)?;
        Ok(Self {
            running: answer::number(running)?,
            claimable: answer::number(claimable)?,
            first: if first.is_empty() { None } else { Some(answer::id(&first)?) },
            first_waits: !answer::text(waits)?.is_empty(),
            waiting: answer::texts(waiting)?.iter().map(|id| answer::id(id)).collect::<Result<_, _>>()?,
        })
    }

    /// Whether a job waits that keeps no order, behind those that were looked at too.
    async fn has(&self, inner: &Inner, partition: usize, id: JobId) -> Result<bool, StoreError> {
        if self.waiting.contains(&id) || self.waiting.len() < LOOKED_AT {
            return Ok(self.waiting.contains(&id));
        }
        let mut command = redis::cmd("HGET");
        command.arg(format!("{}job:{}", inner.layout.tag(partition), id.0.simple())).arg("strict");
        Ok(inner.send(command).await? == Value::Nil)
    }

    /// Who may go on, as core decides.
    fn next(&self, settings: &Settings, scope: &str) -> Result<Vec<JobId>, StoreError> {
        let bounds = settings.quota(&queue_of(scope)?).per_key;
        let mut next = Vec::new();
        if let Some(first) = self.first.filter(|_| self.first_waits)
            && bounds.lets_go_on(Order::Strict, self.running, self.claimable)
        {
            next.push(first);
        }
        // Whoever goes on could be claimed at once.
        let free = (self.claimable..).zip(&self.waiting);
        let free = free.take_while(|(claimable, _)| bounds.lets_go_on(Order::Any, self.running, *claimable));
        next.extend(free.map(|(_, id)| *id));
        Ok(next)
    }
}
