//! Limits how fast one peer can guess API keys.
//!
//! A peer that sent too many wrong keys is rejected without a read of the store. A key that was verified before still passes, so
//! that an attacker cannot lock out other clients of the same proxy.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Api;
use crate::auth::Caller;
use crate::error::{Answer, Problem};
use crate::peer::PeerGroup;
use redrive_wire::Code;
use redrive_wire::Peer;

/// Wrong keys that a peer may send in a burst.
const FAILED_LOGINS_MAX: u32 = 20;
/// Wrong keys per second that a peer may send after the burst.
const FAILED_LOGINS_PER_SECOND: u32 = 1;
/// How long a verified key passes without being counted.
const VERIFIED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Verified keys that are remembered.
const VERIFIED_KEYS_MAX: usize = 65_536;
/// Peers with a budget of their own. All further peers share one.
const PEERS_MAX: usize = 16_384;
/// Logins of one peer that may wait for the result of other logins.
const WAITING_LOGINS_MAX: u32 = 256;
/// The minimum interval between removals of old entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Authenticates a request, unless its peer has sent too many wrong keys.
pub(crate) async fn admit(api: &Api, parts: &Parts) -> Answer<Caller> {
    let Some(credential) = credential(&parts.headers) else {
        return api.keyring.admit(&parts.headers).await;
    };
    let peer = parts.extensions.get::<Peer>().map_or(PeerGroup::UNKNOWN, |peer| PeerGroup::of(*peer));
    let login = api.failed_logins.begin(peer, credential).await?;
    let admitted = api.keyring.admit(&parts.headers).await;
    login.end(match &admitted {
        Ok(_) => LoginResult::Verified,
        Err(problem) if problem.code == Code::Unauthenticated => LoginResult::Failed,
        Err(_) => LoginResult::Unknown,
    });
    admitted
}

/// The header with the key or session, as it was sent.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key"));
    value.map(axum::http::HeaderValue::as_bytes)
}

/// The failed logins of each peer, and the verified keys.
#[derive(Default)]
pub(crate) struct FailedLogins {
    hasher: RandomState,
    state: Mutex<LoginState>,
    resolved: Notify,
}

#[derive(Default)]
struct LoginState {
    peers: HashMap<PeerGroup, PeerLoginBudget>,
    /// The time at which a key was last verified, by a keyed hash of the key. A collision only lets one more guess be checked.
    verified: HashMap<u64, Instant>,
    swept_at: Option<Instant>,
}

/// The number of wrong keys that a peer may still send.
struct PeerLoginBudget {
    tokens: f64,
    refilled_at: Instant,
    /// Logins that are being checked.
    unresolved: u32,
    /// Logins that wait for the result of those.
    waiting: u32,
}

/// The next step of a login.
enum LoginDecision {
    Check { counted: bool },
    Wait,
    Reject,
}

/// The result of a login.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoginResult {
    Verified,
    Failed,
    /// The request failed for another reason than its key: the store did not answer, or another header is wrong.
    Unknown,
}

impl FailedLogins {
    /// Charges a login to the budget of its peer, or rejects it.
    async fn begin(&self, peer: PeerGroup, credential: &[u8]) -> Answer<PendingLogin<'_>> {
        let key = self.hasher.hash_one(credential);
        let mut has_waited = false;
        loop {
            let resolved = self.resolved.notified();
            let decision = self.lock().decide(peer, key, has_waited, Instant::now());
            match decision {
                LoginDecision::Check { counted } => {
                    return Ok(PendingLogin {
                        logins: self,
                        peer,
                        key,
                        counted,
                        result: LoginResult::Failed,
                    });
                }
                LoginDecision::Reject => {
                    let detail =
                        "too many requests from your address had a wrong API key; try again in a second";
                    return Err(Problem::new(Code::TooManyFailedLogins, detail));
                }
                LoginDecision::Wait => {
                    let _waiting = WaitingLogin { logins: self, peer };
                    has_waited = true;
                    resolved.await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LoginState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginState {
    fn decide(&mut self, peer: PeerGroup, key: u64, has_waited: bool, now: Instant) -> LoginDecision {
        if self.verified.get(&key).is_some_and(|at| now - *at < VERIFIED_FOR) {
            return LoginDecision::Check { counted: false };
        }
        self.sweep(now);
        let budget = self.budget(peer, now);
        if budget.tokens >= 1.0 {
            budget.tokens -= 1.0;
            budget.unresolved += 1;
            return LoginDecision::Check { counted: true };
        }
        // Many requests with the same new key may arrive at once: the result of the first ones decides about the others.
        if budget.unresolved > 0 && (has_waited || budget.waiting < WAITING_LOGINS_MAX) {
            budget.waiting += 1;
            return LoginDecision::Wait;
        }
        LoginDecision::Reject
    }

    fn budget(&mut self, peer: PeerGroup, now: Instant) -> &mut PeerLoginBudget {
        let has_own_budget = self.peers.len() < PEERS_MAX || self.peers.contains_key(&peer);
        let peer = if has_own_budget { peer } else { PeerGroup::UNKNOWN };
        let budget = self.peers.entry(peer).or_insert_with(|| PeerLoginBudget {
            tokens: f64::from(FAILED_LOGINS_MAX),
            refilled_at: now,
            unresolved: 0,
            waiting: 0,
        });
        budget.refill(now);
        budget
    }

    /// Removes peers whose budget is full again, and keys that were verified too long ago.
    fn sweep(&mut self, now: Instant) {
        let is_full = self.peers.len() >= PEERS_MAX || self.verified.len() >= VERIFIED_KEYS_MAX;
        if !is_full || self.swept_at.is_some_and(|at| now - at < SWEEP_INTERVAL) {
            return;
        }
        self.swept_at = Some(now);
        self.verified.retain(|_, at| now - *at < VERIFIED_FOR);
        self.peers.retain(|_, budget| {
            budget.refill(now);
            !budget.is_full()
        });
    }

    fn end(&mut self, login: &PendingLogin<'_>, now: Instant) {
        match login.result {
            LoginResult::Verified => {
                if self.verified.len() < VERIFIED_KEYS_MAX || self.verified.contains_key(&login.key) {
                    self.verified.insert(login.key, now);
                }
            }
            LoginResult::Failed => {
                self.verified.remove(&login.key);
            }
            LoginResult::Unknown => {}
        }
        if !login.counted {
            return;
        }
        let budget = self.budget(login.peer, now);
        budget.unresolved = budget.unresolved.saturating_sub(1);
        if login.result != LoginResult::Failed {
            budget.tokens = f64::from(FAILED_LOGINS_MAX).min(budget.tokens + 1.0);
        }
        if budget.is_full() {
            self.peers.remove(&login.peer);
        }
    }
}

impl PeerLoginBudget {
    fn refill(&mut self, now: Instant) {
        let earned = (now - self.refilled_at).as_secs_f64() * f64::from(FAILED_LOGINS_PER_SECOND);
        self.tokens = f64::from(FAILED_LOGINS_MAX).min(self.tokens + earned);
        self.refilled_at = now;
    }

    fn is_full(&self) -> bool {
        self.tokens >= f64::from(FAILED_LOGINS_MAX) && self.unresolved == 0 && self.waiting == 0
    }
}

/// A login that is being checked. If it is dropped without a result, it counts as failed, because the guess was made.
struct PendingLogin<'a> {
    logins: &'a FailedLogins,
    peer: PeerGroup,
    key: u64,
    counted: bool,
    result: LoginResult,
}

impl PendingLogin<'_> {
    fn end(mut self, result: LoginResult) {
        self.result = result;
    }
}

impl Drop for PendingLogin<'_> {
    fn drop(&mut self) {
        self.logins.lock().end(self, Instant::now());
        if self.counted {
            self.logins.resolved.notify_waiters();
        }
    }
}

/// A login that waits for the result of other logins of its peer.
struct WaitingLogin<'a> {
    logins: &'a FailedLogins,
    peer: PeerGroup,
}

impl Drop for WaitingLogin<'_> {
    fn drop(&mut self) {
        let mut state = self.logins.lock();
        let budget = state.budget(self.peer, Instant::now());
        budget.waiting = budget.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn peer(number: u32) -> PeerGroup {
        PeerGroup::of(Peer((std::net::Ipv4Addr::from(number), 1).into()))
    }

    async fn fail(logins: &FailedLogins, peer: PeerGroup) -> bool {
        match logins.begin(peer, b"Bearer wrong").await {
            Ok(login) => {
                login.end(LoginResult::Failed);
                true
            }
            Err(problem) => {
                assert_eq!(problem.code, Code::TooManyFailedLogins);
                false
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_keys_use_up_the_budget_of_their_peer_and_right_ones_do_not() {
        let logins = FailedLogins::default();
        for _ in 0..1_000 {
            logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Verified);
        }
        for _ in 0..FAILED_LOGINS_MAX {
            assert!(fail(&logins, peer(1)).await);
        }
        assert!(!fail(&logins, peer(1)).await);
        assert!(
            logins.begin(peer(1), b"Bearer new").await.is_err(),
            "a right key that was never verified counts like a guess"
        );
        logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Verified);
        assert!(fail(&logins, peer(2)).await, "other peers have their own budget");
        advance(Duration::from_secs(3)).await;
        let passed = async |times: u32| {
            let mut passed = 0;
            for _ in 0..times {
                passed += u32::from(fail(&logins, peer(1)).await);
            }
            passed
        };
        assert_eq!(passed(10).await, 3);
        // A revoked key counts as a wrong key.
        logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Failed);
        assert!(logins.begin(peer(1), b"Bearer right").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_store_costs_no_budget_and_an_abandoned_guess_does() {
        let logins = FailedLogins::default();
        for _ in 0..1_000 {
            logins.begin(peer(1), b"Bearer x").await.unwrap().end(LoginResult::Unknown);
        }
        assert!(logins.lock().peers.is_empty(), "peers with a full budget are not stored");
        for _ in 0..FAILED_LOGINS_MAX {
            drop(logins.begin(peer(1), b"Bearer x").await.unwrap());
        }
        assert!(!fail(&logins, peer(1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_with_one_new_key_wait_for_the_first_result() {
        let logins = FailedLogins::default();
        let mut first = Vec::new();
        for _ in 0..FAILED_LOGINS_MAX {
            first.push(logins.begin(peer(1), b"Bearer new").await.unwrap());
        }
        let waiting = logins.begin(peer(1), b"Bearer new");
        let resolve = async {
            tokio::task::yield_now().await;
            first.pop().unwrap().end(LoginResult::Verified);
        };
        let (admitted, ()) = tokio::join!(waiting, resolve);
        assert!(admitted.is_ok());
        assert!(fail(&logins, peer(1)).await, "a verified key gets its share of the budget back");
        // With a wrong key, the waiting request is rejected.
        let waiting = logins.begin(peer(1), b"Bearer wrong");
        let resolve = async {
            tokio::task::yield_now().await;
            first.drain(..).for_each(|login| login.end(LoginResult::Failed));
        };
        let (admitted, ()) = tokio::join!(waiting, resolve);
        assert!(admitted.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn many_peers_use_a_bounded_amount_of_memory() {
        let logins = FailedLogins::default();
        for number in 0..PEERS_MAX as u32 + 100 {
            fail(&logins, peer(number)).await;
        }
        assert!(logins.lock().peers.len() <= PEERS_MAX + 1);
        advance(Duration::from_secs(60)).await;
        assert!(fail(&logins, peer(u32::MAX)).await);
        assert_eq!(logins.lock().peers.len(), 1, "peers whose budget is full again are removed");
    }
}
