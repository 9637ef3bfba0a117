//! Waits until nothing runs at the source any more.

use std::time::Duration;

use redrive_core::State;
use redrive_core::store::{Filter, PageRequest};

use super::{Move, Progress};
use crate::Error;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Move {
    /// Returns once no lease is in force: running jobs have ended, or their leases have run out.
    pub(super) async fn drain(&self, tell: &mut dyn FnMut(&Progress)) -> Result<(), Error> {
        loop {
            let waiting = self.leases_in_force().await?;
            match waiting {
                None => return Ok(()),
                Some(waiting) => tell(&waiting),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn leases_in_force(&self) -> Result<Option<Progress>, Error> {
        let from = &self.from.backend;
        let now = from.stats().await?.now;
        let filter = Filter { states: vec![State::Running], ..Filter::default() };
        let (mut running, mut last, mut page) = (0, None, PageRequest::first(1000));
        loop {
            let found = from.list(filter.clone(), page).await?;
            let ends = found.items.iter().filter_map(|job| job.lease_until).filter(|until| *until > now);
            for end in ends {
                running += 1;
                last = last.max(Some(end));
            }
            match found.next {
                Some(next) => page = PageRequest { after: Some(next), ..page },
                None => break,
            }
        }
        Ok((running > 0).then_some(Progress::Waiting { running, until: last, now }))
    }
}
