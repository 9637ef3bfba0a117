//! The records that claims look at: which queues are paused, how much of each may run, and whether the store is sealed.

use redrive_core::quota::QUOTA;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::rooms::Quotas;
use redrive_core::transfer::{BEING_FILLED, SEALED};
use redrive_core::{Queue, Quota, StoreError};

use crate::answer;
use crate::open::Inner;

/// Between the kind and the id of a record among the settings.
const SEPARATOR: char = '\u{1f}';

/// Whether claims look at records of this kind.
pub(crate) fn is_setting(kind: &str) -> bool {
    kind == PAUSED || kind == QUOTA || kind == SEALED
}

/// What claims look at.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    paused: Vec<String>,
    /// The seals on the store, by their ids.
    seals: Vec<String>,
    pub(crate) quotas: Quotas,
}

impl Settings {
    pub(crate) async fn read(inner: &Inner) -> Result<Self, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(format!("{}settings", inner.layout.records_tag()));
        let mut settings = Self::default();
        let mut flat = answer::items(answer::flat(inner.send(command).await?))?.into_iter();
        while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
            let (name, value) = (answer::text(name)?, answer::bytes(value)?);
            match name.split_once(SEPARATOR) {
                Some((PAUSED, queue)) => settings.paused.push(queue.to_owned()),
                Some((SEALED, id)) => settings.seals.push(id.to_owned()),
                Some((QUOTA, queue)) => drop(settings.quotas.insert(queue.to_owned(), Quota::read(&value))),
                _ => {}
            }
        }
        Ok(settings)
    }

    pub(crate) fn is_paused(&self, queue: &str) -> bool {
        self.paused.iter().any(|paused| paused == EVERY_QUEUE || paused == queue)
    }

    /// Whether nothing is claimed here.
    pub(crate) fn is_sealed(&self) -> bool {
        !self.seals.is_empty()
    }

    /// Whether imports replace what is there.
    pub(crate) fn is_being_filled(&self) -> bool {
        self.seals.iter().any(|id| id == BEING_FILLED)
    }

    pub(crate) fn is_bounded(&self, queue: &Queue) -> bool {
        self.quotas.contains_key(queue.as_str())
    }

    pub(crate) fn quota(&self, queue: &Queue) -> Quota {
        self.quotas.get(queue.as_str()).copied().unwrap_or_default()
    }
}
