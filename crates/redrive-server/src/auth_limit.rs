//! Limits how fast one peer can guess API keys.
//!
//! A peer that sends wrong keys is refused before the store is asked. A key that was right before still passes, so that an
//! attacker cannot lock out others behind the same proxy.

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
use crate::error::{Answer, Code, Problem};
use crate::peer::{Peer, PeerGroup};

/// Wrong keys that a peer may send at once.
const FAILED_LOGINS_MAX: u32 = 20;
/// Wrong keys that a peer may send in each second after that.
const FAILED_LOGINS_PER_SECOND: u32 = 1;
/// How long a key that was right passes without being counted.
const VERIFIED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys that were right, as far as they are remembered.
const VERIFIED_KEYS_MAX: usize = 65_536;
/// Peers that are counted apart. More share one allowance.
const PEERS_MAX: usize = 16_384;
/// Requests of one peer that may wait for the result of others.
const WAITING_MAX: u32 = 256;
/// Time from one search for entries that can be forgotten to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Who sends a request, unless its peer has sent too many wrong keys.
pub(crate) async fn admit(api: &Api, parts: &Parts) -> Answer<Caller> {
    let Some(credential) = credential(&parts.headers) else {
        return api.keyring.admit(&parts.headers).await;
    };
    let peer = parts.extensions.get::<Peer>().map_or(PeerGroup::UNKNOWN, |peer| peer.group());
    let login = api.failed_logins.begin(peer, credential).await?;
    let admitted = api.keyring.admit(&parts.headers).await;
    login.end(match &admitted {
        Ok(_) => LoginResult::Verified,
        Err(problem) if problem.code == Code::Unauthenticated => LoginResult::Failed,
        Err(_) => LoginResult::Unknown,
    });
    admitted
}

/// The key in the headers, as it came.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key"));
    value.map(axum::http::HeaderValue::as_bytes)
}

/// The failed logins of each peer, and the keys that were right.
#[derive(Default)]
pub(crate) struct FailedLogins {
    hasher: RandomState,
    state: Mutex<State>,
    resolved: Notify,
}

#[derive(Default)]
struct State {
    peers: HashMap<PeerGroup, Allowance>,
    /// Keys that were right, by a keyed hash, and when. A collision only lets a guess be checked.
    verified: HashMap<u64, Instant>,
    swept_at: Option<Instant>,
}

/// How many wrong keys a peer may still send.
struct Allowance {
    tokens: f64,
    counted_at: Instant,
    unresolved: u32,
    waiting: u32,
}

/// What is to be done with a login.
enum Decision {
    Check { counted: bool },
    Wait,
    Refuse,
}

/// What became of a login.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoginResult {
    Verified,
    Failed,
    /// The key was not at fault: the store did not answer, or another header is wrong.
    Unknown,
}

impl FailedLogins {
    /// Counts a login that is about to be checked, or refuses it.
    async fn begin(&self, peer: PeerGroup, credential: &[u8]) -> Answer<Login<'_>> {
        let key = self.hasher.hash_one(credential);
        let mut has_waited = false;
        loop {
            let resolved = self.resolved.notified();
            let decision = self.lock().decide(peer, key, has_waited, Instant::now());
            match decision {
                Decision::Check { counted } => {
                    return Ok(Login { logins: self, peer, key, counted, result: LoginResult::Failed });
                }
                Decision::Refuse => {
                    let detail = "too many wrong API keys came from your address; try again in a second";
                    return Err(Problem::new(Code::TooManyFailedLogins, detail));
                }
                Decision::Wait => {
                    let _waiting = Waiting { logins: self, peer };
                    has_waited = true;
                    resolved.await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn decide(&mut self, peer: PeerGroup, key: u64, has_waited: bool, now: Instant) -> Decision {
        if self.verified.get(&key).is_some_and(|at| now - *at < VERIFIED_FOR) {
            return Decision::Check { counted: false };
        }
        self.sweep(now);
        let allowance = self.allowance(peer, now);
        if allowance.tokens >= 1.0 {
            allowance.tokens -= 1.0;
            allowance.unresolved += 1;
            return Decision::Check { counted: true };
        }
        // Many requests with one new key may come at once: the first result decides about the others.
        if allowance.unresolved > 0 && (has_waited || allowance.waiting < WAITING_MAX) {
            allowance.waiting += 1;
            return Decision::Wait;
        }
        Decision::Refuse
    }

    fn allowance(&mut self, peer: PeerGroup, now: Instant) -> &mut Allowance {
        let is_counted_apart = self.peers.len() < PEERS_MAX || self.peers.contains_key(&peer);
        let peer = if is_counted_apart { peer } else { PeerGroup::UNKNOWN };
        let allowance = self.peers.entry(peer).or_insert_with(|| Allowance {
            tokens: f64::from(FAILED_LOGINS_MAX),
            counted_at: now,
            unresolved: 0,
            waiting: 0,
        });
        allowance.refill(now);
        allowance
    }

    /// Forgets peers that have their whole allowance again, and keys that were not used for long.
    fn sweep(&mut self, now: Instant) {
        let is_full = self.peers.len() >= PEERS_MAX || self.verified.len() >= VERIFIED_KEYS_MAX;
        if !is_full || self.swept_at.is_some_and(|at| now - at < SWEEP_EVERY) {
            return;
        }
        self.swept_at = Some(now);
        self.verified.retain(|_, at| now - *at < VERIFIED_FOR);
        self.peers.retain(|_, allowance| {
            allowance.refill(now);
            !allowance.is_whole()
        });
    }

    fn end(&mut self, login: &Login<'_>, now: Instant) {
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
        let allowance = self.allowance(login.peer, now);
        allowance.unresolved = allowance.unresolved.saturating_sub(1);
        if login.result != LoginResult::Failed {
            allowance.tokens = f64::from(FAILED_LOGINS_MAX).min(allowance.tokens + 1.0);
        }
        if allowance.is_whole() {
            self.peers.remove(&login.peer);
        }
    }
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let earned = (now - self.counted_at).as_secs_f64() * f64::from(FAILED_LOGINS_PER_SECOND);
        self.tokens = f64::from(FAILED_LOGINS_MAX).min(self.tokens + earned);
        self.counted_at = now;
    }

    fn is_whole(&self) -> bool {
        self.tokens >= f64::from(FAILED_LOGINS_MAX) && self.unresolved == 0 && self.waiting == 0
    }
}

/// A login that is being checked. One that is given up counts as failed: the guess was made.
struct Login<'a> {
    logins: &'a FailedLogins,
    peer: PeerGroup,
    key: u64,
    counted: bool,
    result: LoginResult,
}

impl Login<'_> {
    fn end(mut self, result: LoginResult) {
        self.result = result;
    }
}

impl Drop for Login<'_> {
    fn drop(&mut self) {
        self.logins.lock().end(self, Instant::now());
        if self.counted {
            self.logins.resolved.notify_waiters();
        }
    }
}

/// A request that waits for the result of others of its peer.
struct Waiting<'a> {
    logins: &'a FailedLogins,
    peer: PeerGroup,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.logins.lock();
        let allowance = state.allowance(self.peer, Instant::now());
        allowance.waiting = allowance.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn peer(number: u32) -> PeerGroup {
        Peer((std::net::Ipv4Addr::from(number), 1).into()).group()
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
    async fn wrong_keys_use_up_the_allowance_of_their_peer_and_right_ones_do_not() {
        let logins = FailedLogins::default();
        for _ in 0..1_000 {
            logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Verified);
        }
        for _ in 0..FAILED_LOGINS_MAX {
            assert!(fail(&logins, peer(1)).await);
        }
        assert!(!fail(&logins, peer(1)).await);
        assert!(logins.begin(peer(1), b"Bearer new").await.is_err(), "a new key cannot be told from a guess");
        logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Verified);
        assert!(fail(&logins, peer(2)).await, "other peers have their own allowance");
        advance(Duration::from_secs(3)).await;
        let passed = async |times: u32| {
            let mut passed = 0;
            for _ in 0..times {
                passed += u32::from(fail(&logins, peer(1)).await);
            }
            passed
        };
        assert_eq!(passed(10).await, 3);
        // A key that was right and is revoked is a wrong key from then on.
        logins.begin(peer(1), b"Bearer right").await.unwrap().end(LoginResult::Failed);
        assert!(logins.begin(peer(1), b"Bearer right").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_uses_nothing_up_and_an_abandoned_guess_does() {
        let logins = FailedLogins::default();
        for _ in 0..1_000 {
            logins.begin(peer(1), b"Bearer x").await.unwrap().end(LoginResult::Unknown);
        }
        assert!(logins.lock().peers.is_empty(), "nothing is kept of peers with their whole allowance");
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
        assert!(fail(&logins, peer(1)).await, "what a right key has used is given back");
        // The same with a wrong key ends in a refusal.
        let waiting = logins.begin(peer(1), b"Bearer wrong");
        let resolve = async {
            tokio::task::yield_now().await;
            first.drain(..).for_each(|login| login.end(LoginResult::Failed));
        };
        let (admitted, ()) = tokio::join!(waiting, resolve);
        assert!(admitted.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn many_peers_take_a_bounded_memory() {
        let logins = FailedLogins::default();
        for number in 0..PEERS_MAX as u32 + 100 {
            fail(&logins, peer(number)).await;
        }
        assert!(logins.lock().peers.len() <= PEERS_MAX + 1);
        advance(Duration::from_secs(60)).await;
        assert!(fail(&logins, peer(u32::MAX)).await);
        assert_eq!(logins.lock().peers.len(), 1, "what has recovered is forgotten");
    }
}
