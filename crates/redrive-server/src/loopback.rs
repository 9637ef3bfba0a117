//! Decides whether tasks may call loopback addresses, depending on the API keys.
//!
//! Tasks may call them only while the service accepts calls without a key. Every caller is then on this machine and can reach its
//! services anyway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redrive_delivery::{LoopbackAccess, Transport};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::auth::KEY_CACHE_TTL;
use redrive_wire::me::LoopbackTargets;

/// The part of a transport's guard that depends on the API keys.
#[derive(Default)]
pub(crate) struct LoopbackGuard {
    transport: OnceLock<Transport>,
    state: Mutex<State>,
    /// Wakes [`Api::follow_keys`].
    recheck: Notify,
}

#[derive(Default)]
struct State {
    /// Counts the changes of keys on this node, so that a value read before a change is not applied after it.
    changes: u64,
    /// The status that was logged last.
    logged: Option<LoopbackTargets>,
}

impl LoopbackGuard {
    /// Refuses loopback targets at once, because a key has changed. The next check allows them again if the service is still open.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.changes += 1;
        self.set(LoopbackAccess::Refused);
        self.recheck.notify_one();
    }

    /// Whether loopback targets are allowed, and why; `None` if the guard of this node does not follow the keys.
    pub(crate) fn status(&self) -> Option<LoopbackTargets> {
        let guard = self.transport.get()?.guard();
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let allowed = loopback.iter().any(|address| guard.check(*address).is_ok());
        let reason = match (allowed, guard.loopback()) {
            (true, LoopbackAccess::Allowed) => "the service listens on loopback only and has no API keys",
            (true, LoopbackAccess::Refused) => "--allow-target covers loopback addresses",
            (false, LoopbackAccess::Allowed) => "--deny-target covers loopback addresses",
            (false, LoopbackAccess::Refused) => {
                "API keys exist, or other machines can reach the service, and --allow-target does not cover loopback addresses"
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
    /// Makes the guard of `transport` follow the API keys: loopback targets are allowed exactly while the service is open.
    pub(crate) async fn guard_loopback(&self, transport: Transport) {
        // A node has one transport.
        let _ = self.loopback.transport.set(transport);
        let loopback = Arc::clone(&self.loopback);
        self.keyring.on_change(move || loopback.close());
        self.recheck_loopback().await;
    }

    /// Applies the key changes that other nodes and the command line make, until `closing` is cancelled.
    pub(crate) async fn follow_keys(self: Arc<Self>, closing: CancellationToken) {
        if self.loopback.transport.get().is_none() {
            return;
        }
        let mut ticks = interval(KEY_CACHE_TTL);
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

    /// Reads the keys again. If the store cannot be read, the guard does not change: no jobs can be claimed then either.
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
