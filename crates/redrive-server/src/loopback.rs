//! Whether tasks may call services on this machine, kept in line with the API keys.
//!
//! Whoever can reach a service without keys can reach this machine anyway: only then may targets be on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redrive_delivery::{LoopbackAccess, Transport};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::auth::KEY_TRUSTED;
use crate::wire::me::LoopbackTargets;

/// The part of a transport's guard that depends on the API keys.
#[derive(Default)]
pub(crate) struct LoopbackGuard {
    transport: OnceLock<Transport>,
    state: Mutex<State>,
    /// Wakes whoever reads the keys again.
    recheck: Notify,
}

#[derive(Default)]
struct State {
    /// Counts the changes of keys on this node, so that an answer from before one is not applied after it.
    changes: u64,
    /// What the log was told last.
    logged: Option<LoopbackTargets>,
}

impl LoopbackGuard {
    /// Closes loopback at once, because a key has changed. It opens again if the service turns out to be open still.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.changes += 1;
        self.set(LoopbackAccess::Refused);
        self.recheck.notify_one();
    }

    /// Whether targets may be on this machine, and why; none when this node's transport is not guarded by keys.
    pub(crate) fn status(&self) -> Option<LoopbackTargets> {
        let guard = self.transport.get()?.guard();
        let here = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let allowed = here.iter().any(|address| guard.check(*address).is_ok());
        let reason = match (allowed, guard.loopback()) {
            (true, LoopbackAccess::Allowed) => "the service listens on loopback only and has no API keys",
            (true, LoopbackAccess::Refused) => "--allow-target covers loopback addresses",
            (false, LoopbackAccess::Allowed) => "--deny-target covers loopback addresses",
            (false, LoopbackAccess::Refused) => {
                "API keys exist, or others can reach the service, and --allow-target does not cover them"
            }
        };
        Some(LoopbackTargets { allowed, reason: reason.to_owned() })
    }

    fn set(&self, access: LoopbackAccess) {
        if let Some(transport) = self.transport.get() {
            transport.set_guard((*transport.guard()).clone().with_loopback(access));
        }
    }

    fn log(&self, state: &mut State) {
        let status = self.status();
        if state.logged == status {
            return;
        }
        match &status {
            Some(LoopbackTargets { allowed: true, reason }) => {
                tracing::info!(reason, "tasks may call services on this machine (loopback addresses)");
            }
            Some(LoopbackTargets { allowed: false, reason }) => {
                tracing::info!(reason, "tasks may not call services on this machine (loopback addresses)");
            }
            None => {}
        }
        state.logged = status;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Api {
    /// Lets the guard of `transport` follow the API keys: loopback is open exactly as long as the service is.
    pub(crate) async fn guard_loopback(&self, transport: Transport) {
        // A second transport would have to be another node's.
        let _ = self.loopback.transport.set(transport);
        let loopback = Arc::clone(&self.loopback);
        self.keyring.on_change(move || loopback.close());
        self.recheck_loopback().await;
    }

    /// Follows changes that other nodes and the command line make, until `closing` is cancelled.
    pub(crate) async fn follow_keys(self: Arc<Self>, closing: CancellationToken) {
        if self.loopback.transport.get().is_none() {
            return;
        }
        let mut ticks = interval(KEY_TRUSTED);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = closing.cancelled() => return,
                () = self.loopback.recheck.notified() => {}
                _ = ticks.tick() => {}
            }
            self.recheck_loopback().await;
        }
    }

    /// Reads the keys again. While they cannot be read, the guard stays as it is: jobs come from the same store.
    async fn recheck_loopback(&self) {
        let before = self.loopback.lock().changes;
        let Ok(open) = self.keyring.is_open().await else { return };
        let mut state = self.loopback.lock();
        if state.changes == before {
            self.loopback.set(if open { LoopbackAccess::Allowed } else { LoopbackAccess::Refused });
            self.loopback.log(&mut state);
        }
    }
}
