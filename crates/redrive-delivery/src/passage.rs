//! A call's way through its origin's gate: whatever ends it, the gate hears of it and the log keeps the evidence.

use redrive_worker::{Context, Note};
use tokio::time::Instant;

use crate::evidence::Evidence;
use crate::exchange::{Exchange, Sort, Trouble};
use crate::gate::{Permit, Signal};
use crate::progress::Progress;

/// Between [`Passage::new`] and its end the call counts among those under way to its origin.
///
/// An attempt may be dropped at any moment. A timeout says that the origin struggles; an abort says nothing about it.
pub(crate) struct Passage {
    cx: Context,
    permit: Option<Permit>,
    began: Instant,
    progress: Option<Progress>,
}

impl Passage {
    pub(crate) fn new(cx: Context, permit: Permit) -> Self {
        Self { cx, permit: Some(permit), began: Instant::now(), progress: None }
    }

    /// The request is about to be sent.
    pub(crate) fn depart(&mut self, progress: &Progress) {
        self.began = Instant::now();
        self.progress = Some(progress.clone());
    }

    /// The exchange has ended by itself.
    pub(crate) fn arrive(&mut self, exchange: &Exchange) {
        if exchange.deferral().is_none() {
            self.note(&exchange.evidence());
        }
        self.progress = None;
        let Some(permit) = self.permit.take() else { return };
        match signal(exchange) {
            Some(signal) => permit.leave(signal, self.began.elapsed(), Instant::now()),
            None => drop(permit),
        }
    }

    fn note(&self, evidence: &Evidence) {
        let status = evidence.grpc_code.or(evidence.status);
        self.cx.note(Note { detail: Some(evidence.to_json()), status });
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let Some(progress) = &self.progress else { return };
        self.note(&progress.evidence());
        if let Some(permit) = self.permit.take().filter(|_| !self.cx.is_cancelled()) {
            permit.leave(Signal::Struggle(None), self.began.elapsed(), Instant::now());
        }
    }
}

/// What an exchange says about its origin; none when it says nothing.
fn signal(exchange: &Exchange) -> Option<Signal> {
    let wait = exchange.retry_after;
    match &exchange.trouble {
        None => Some(Signal::Success),
        Some(Trouble { sort, .. }) => match sort {
            Sort::Local(_) | Sort::Refused | Sort::Body => None,
            Sort::Dns | Sort::Connect | Sort::ConnectTimeout | Sort::Tls | Sort::Connection => {
                Some(Signal::Struggle(None))
            }
            Sort::Status(status) => Some(Signal::of_status(*status, wait)),
            Sort::Grpc(code) => Some(Signal::of_grpc(*code, wait)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalFailure;

    #[test]
    fn a_problem_of_this_node_is_not_held_against_the_origin() {
        let said = |sort| {
            let trouble = Some(Trouble { sort, message: String::new() });
            signal(&Exchange { trouble, ..Exchange::so_far(&Progress::new()) })
        };
        for local in [LocalFailure::ProcessFiles, LocalFailure::Ports, LocalFailure::Resolver] {
            assert!(said(Sort::Local(local)).is_none(), "{local}");
        }
        assert!(said(Sort::Body).is_none() && said(Sort::Refused).is_none());
        assert!(said(Sort::Connect).is_some() && said(Sort::Dns).is_some());
    }
}
