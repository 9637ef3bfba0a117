//! The records that claims look at: which queues are paused, and how much of each may run.

use redrive_core::quota::QUOTA;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::rooms::Quotas;
use redrive_core::{Queue, Quota, StoreError};

use crate::answer;
use crate::open::Inner;

/// Between the kind and the id of a record among the settings.
const SEPARATOR: char = '\u{1f}';

/// Whether claims look at records of this kind.
pub(crate) fn is_setting(kind: &str) -> bool {
    kind == PAUSED || kind == QUOTA
}

/// What claims look at.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    paused: Vec<String>,
    pub(crate) quotas: Quotas,
}

impl Settings {
    pub(crate) async fn read(inner: &Inner) -> Result<Self, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(format!("{}settings", inner.layout.records_tag()));
        let mut settings = Self::default();
        let mut flat = answer::items(flat(inner.send(command).await?))?.into_iter();
        while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
            let (name, value) = (answer::text(name)?, answer::bytes(value)?);
            match name.split_once(SEPARATOR) {
                Some((PAUSED, queue)) => settings.paused.push(queue.to_owned()),
                Some((QUOTA, queue)) => drop(settings.quotas.insert(queue.to_owned(), Quota::read(&value))),
                _ => {}
            }
        }
        Ok(settings)
    }

    pub(crate) fn is_paused(&self, queue: &str) -> bool {
        self.paused.iter().any(|paused| paused == EVERY_QUEUE || paused == queue)
    }

    pub(crate) fn is_bounded(&self, queue: &Queue) -> bool {
        self.quotas.contains_key(queue.as_str())
    }

    pub(crate) fn quota(&self, queue: &Queue) -> Quota {
        self.quotas.get(queue.as_str()).copied().unwrap_or_default()
    }
}

/// A hash as a flat list, whichever version of the protocol is spoken.
fn flat(value: redis::Value) -> redis::Value {
    match value {
        redis::Value::Map(pairs) => {
            redis::Value::Array(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect())
        }
        other => other,
    }
}
