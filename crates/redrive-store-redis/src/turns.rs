//! Lets those go on whose turn it is in their partition's key.

use redis::Value;
use redrive_core::quota::Bounds;
use redrive_core::{JobId, Order, StoreError};

use crate::open::Inner;
use crate::row::SEPARATOR;
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
            let next = line.next(settings.bounds_of(&scope));
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

/// A job that waits for its turn, as a script says it: in which order, and under which key.
pub(crate) struct Turn<'a> {
    order: Order,
    scope: &'a str,
}

impl<'a> Turn<'a> {
    /// Reads a script's word, if it is one.
    pub(crate) fn read(word: &'a str) -> Option<Self> {
        let (order, scope) = word.strip_prefix("turn\u{1f}")?.split_once(SEPARATOR)?;
        Some(Self { order: if order == "strict" { Order::Strict } else { Order::Any }, scope })
    }

    /// Lets the job go on if its turn has come.
    pub(crate) async fn take(&self, inner: &Inner, partition: usize, id: JobId) -> Result<bool, StoreError> {
        let settings = Settings::read(inner).await?;
        let line = Line::look(inner, partition, self.scope).await?;
        let is_next = match self.order {
            Order::Strict => line.first == Some(id),
            Order::Any => true,
        };
        let bounds = settings.bounds_of(self.scope);
        if !is_next || !bounds.lets_go_on(self.order, line.running, line.claimable) {
            return Ok(false);
        }
        Ok(go(inner, partition, &[id]).await?.contains(&true))
    }
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

    /// Who may go on, as core decides.
    fn next(&self, bounds: Bounds) -> Vec<JobId> {
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
        next
    }
}
