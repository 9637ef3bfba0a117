//! Authentication and permissions of callers. Each route declares its permission with an extractor, so no route can skip the check.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use redrive_core::store::Backend;
use redrive_core::{Job, StoreError, Tenant};
use tokio::time::Instant;

use crate::api::{self, Api};
use crate::auth_limit;
use crate::caller_secrets::PresentedSecret;
use crate::error::{Answer, Problem};
use crate::keys::{self, KEY_PREFIX, Key};
use crate::sessions::{self, Session};
use redrive_wire::Code;
use redrive_wire::Scope;
use redrive_wire::content::Detail;
use redrive_wire::headers::TENANT_HEADER;
use redrive_wire::session::TOKEN_PREFIX;

/// How long a key is cached. A revocation on another node takes effect after this time.
pub const KEY_CACHE_TTL: Duration = Duration::from_secs(1);
/// The maximum number of cached keys, and of cached sessions.
const KEYS_CACHED_MAX: usize = 1024;

/// The authenticated caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The only tenant whose jobs the caller sees and changes: the tenant of the key, or the one that `Redrive-Tenant` names. `None`
    /// means every tenant.
    pub tenant: Option<Tenant>,
    /// The tenant for which the caller creates jobs.
    pub acts_for: Tenant,
    /// Whether the key is bound to a tenant. Such a caller may not change resources that all tenants share.
    pub is_bound: bool,
    /// The permissions of the key.
    pub scope: Scope,
    /// Whether the caller may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// How the caller was authenticated.
    pub credential: Credential,
}

/// The credential that a caller sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// None: the service accepts calls without a key.
    Anonymous,
    /// The API key with this id.
    Key(String),
    /// The session with this id.
    Session(String),
}

impl Caller {
    /// Whether the caller may see the jobs of `tenant`.
    pub fn sees(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// Whether the caller may see `job`.
    pub fn sees_job(&self, job: &Job) -> bool {
        self.sees(&job.tenant)
    }

    /// Reduces the detail that a route shows to what the caller may see.
    pub(crate) fn detail(&self, detail: Detail) -> Detail {
        if self.bodies { detail } else { Detail::Hidden }
    }

    fn require_scope(self, scope: Scope) -> Answer<Self> {
        if self.scope >= scope {
            return Ok(self);
        }
        let detail = format!("this call needs a key with scope {scope}; your key has scope {}", self.scope);
        Err(Problem::new(Code::Forbidden, detail))
    }

    fn require_unbound(self) -> Answer<Self> {
        match self.is_bound {
            false => Ok(self),
            true => Err(Problem::new(
                Code::Forbidden,
                "this call affects all tenants, so it needs a key that is not bound to a tenant",
            )),
        }
    }
}

/// Defines an extractor that authenticates the caller and checks a permission.
macro_rules! permission {
    ($(#[$doc:meta])* $name:ident, $caller:ident => $granted:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(pub Caller);

        impl FromRequestParts<Arc<Api>> for $name {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Answer<Self> {
                let $caller = auth_limit::admit(api, parts).await?;
                $granted.map(Self)
            }
        }
    };
}

permission!(
    /// May read jobs and tasks.
    Reader, caller => caller.require_scope(Scope::Read)
);
permission!(
    /// May create and change jobs and tasks.
    Writer, caller => caller.require_scope(Scope::Write)
);
permission!(
    /// May run operator actions on jobs and tasks.
    Admin, caller => caller.require_scope(Scope::Admin)
);
permission!(
    /// May read resources that all tenants share.
    ReaderOfAll, caller => caller.require_scope(Scope::Read)?.require_unbound()
);
permission!(
    /// May change resources that all tenants share.
    AdminOfAll, caller => caller.require_scope(Scope::Admin)?.require_unbound()
);

/// Caches keys and sessions, so that each is read at most once per second.
pub struct Keyring {
    store: Arc<dyn Backend>,
    /// Whether calls without a key are accepted until the first key exists.
    open: bool,
    cache: Mutex<KeyCache>,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct KeyCache {
    keys: HashMap<String, (Option<Arc<Key>>, Instant)>,
    sessions: HashMap<String, (Option<Arc<Session>>, Instant)>,
    /// When the store was last read and had no key.
    keyless_at: Option<Instant>,
    /// Whether the store has ever had a key. This never becomes false again.
    closed: bool,
    /// Counts the changes of this node, so that a value read before a change is not cached after it.
    changes: u64,
}

impl Keyring {
    /// The keys in `store`.
    pub fn new(store: Arc<dyn Backend>, open: bool) -> Self {
        Self { store, open, cache: Mutex::default(), on_change: OnceLock::new() }
    }

    /// Clears the cache, after this node has changed a key or a session.
    pub fn forget(&self) {
        let mut cache = self.lock();
        *cache = KeyCache { changes: cache.changes + 1, closed: cache.closed, ..KeyCache::default() };
        drop(cache);
        if let Some(act) = self.on_change.get() {
            act();
        }
    }

    /// Calls `act` whenever this node has changed a key or a session, before it answers the request.
    pub(crate) fn on_change(&self, act: impl Fn() + Send + Sync + 'static) {
        // Only the loopback guard uses this, and a node has one.
        let _ = self.on_change.set(Box::new(act));
    }

    /// Whether the service accepts calls without a key: it listens on loopback and never had a key.
    pub async fn is_open(&self) -> Result<bool, StoreError> {
        Ok(self.open && !self.is_closed().await?)
    }

    /// Whether a credential is still valid: it was not revoked and has not expired.
    pub(crate) async fn still_admits(&self, credential: &Credential) -> Result<bool, StoreError> {
        match credential {
            Credential::Anonymous => self.is_open().await,
            Credential::Key(id) => Ok(self.find(id).await?.is_some()),
            Credential::Session(id) => match self.find_session(id).await? {
                Some(session) => Ok(self.find(&session.key_id).await?.is_some()),
                None => Ok(false),
            },
        }
    }

    /// Authenticates a request by its headers.
    pub(crate) async fn admit(&self, headers: &HeaderMap) -> Answer<Caller> {
        let Some(text) = credential_text(headers)? else {
            if !self.is_open().await? {
                let detail = "send an API key in the header Authorization: Bearer rdk_…";
                return Err(Problem::new(Code::Unauthenticated, detail));
            }
            let (scope, credential) = (Scope::Admin, Credential::Anonymous);
            let (tenant, acts_for) = tenants(headers, None)?;
            return Ok(Caller { tenant, acts_for, is_bound: false, scope, bodies: true, credential });
        };
        let (key, credential) = self.verify(text).await?;
        let (tenant, acts_for) = tenants(headers, key.tenant.as_ref())?;
        let (is_bound, bodies) = (key.tenant.is_some(), key.sees_bodies());
        Ok(Caller { tenant, acts_for, is_bound, scope: key.scope, bodies, credential })
    }

    async fn verify(&self, text: &str) -> Answer<(Arc<Key>, Credential)> {
        if text.starts_with(TOKEN_PREFIX) {
            return self.verify_session(text).await;
        }
        let unknown = || Problem::new(Code::Unauthenticated, "this API key is unknown or was revoked");
        let presented = PresentedSecret::parse(KEY_PREFIX, text).ok_or_else(unknown)?;
        let key = self.find(presented.id).await?.filter(|key| key.matches(&presented)).ok_or_else(unknown)?;
        let credential = Credential::Key(key.id.clone());
        Ok((key, credential))
    }

    /// A session has the permissions of its key, and is valid only as long as the key exists.
    async fn verify_session(&self, text: &str) -> Answer<(Arc<Key>, Credential)> {
        let ended = || Problem::new(Code::Unauthenticated, "this session has ended: sign in again");
        let presented = PresentedSecret::parse(TOKEN_PREFIX, text).ok_or_else(ended)?;
        let session = self.find_session(presented.id).await?;
        let session = session.filter(|session| session.matches(&presented)).ok_or_else(ended)?;
        let key = self.find(&session.key_id).await?.ok_or_else(ended)?;
        Ok((key, Credential::Session(session.id.clone())))
    }

    async fn find(&self, id: &str) -> Result<Option<Arc<Key>>, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        if let Some(key) = cached(&self.lock().keys, id, now) {
            return Ok(key);
        }
        let key = keys::find(&*self.store, id).await?.map(Arc::new);
        let mut cache = self.lock();
        if cache.changes == changes {
            remember(&mut cache.keys, id, key.clone(), now);
        }
        Ok(key)
    }

    /// The session with this id, unless it has expired.
    async fn find_session(&self, id: &str) -> Result<Option<Arc<Session>>, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        let cached = cached(&self.lock().sessions, id, now);
        let session = match cached {
            Some(session) => session,
            None => {
                let session = sessions::find(&*self.store, id).await?.map(Arc::new);
                let mut cache = self.lock();
                if cache.changes == changes {
                    remember(&mut cache.sessions, id, session.clone(), now);
                }
                session
            }
        };
        Ok(session.filter(|session| session.expires_at > api::now()))
    }

    async fn is_closed(&self) -> Result<bool, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        {
            let cache = self.lock();
            if cache.closed || cache.keyless_at.is_some_and(|read_at| now - read_at < KEY_CACHE_TTL) {
                return Ok(cache.closed);
            }
        }
        let closed = keys::ever_created(&*self.store).await?;
        let mut cache = self.lock();
        cache.closed |= closed;
        if !closed && cache.changes == changes {
            cache.keyless_at = Some(now);
        }
        Ok(cache.closed)
    }

    fn lock(&self) -> MutexGuard<'_, KeyCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cached value of `id`, unless it is too old.
fn cached<T: Clone>(cache: &HashMap<String, (T, Instant)>, id: &str, now: Instant) -> Option<T> {
    cache.get(id).filter(|(_, read_at)| now - *read_at < KEY_CACHE_TTL).map(|(value, _)| value.clone())
}

fn remember<T>(cache: &mut HashMap<String, (T, Instant)>, id: &str, value: T, now: Instant) {
    if cache.len() >= KEYS_CACHED_MAX {
        cache.clear();
    }
    cache.insert(id.to_owned(), (value, now));
}

/// Whether the headers contain a key or a session, valid or not.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key")
}

/// The key or the session token in the headers.
fn credential_text(headers: &HeaderMap) -> Answer<Option<&str>> {
    let unreadable = || Problem::new(Code::Unauthenticated, "the header Authorization must be: Bearer rdk_…");
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) =
            value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unreadable)?;
        return if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(key.trim())) } else { Err(unreadable()) };
    }
    headers.get("x-api-key").map(|value| value.to_str().map_err(|_| unreadable())).transpose()
}

/// The tenant whose jobs a caller sees, and the tenant for which the caller creates. `Redrive-Tenant` sets both. Without it, a key
/// that is not bound to a tenant sees the jobs of every tenant and creates for the default tenant.
fn tenants(headers: &HeaderMap, bound: Option<&Tenant>) -> Answer<(Option<Tenant>, Tenant)> {
    let Some(value) = headers.get(TENANT_HEADER) else {
        return Ok((bound.cloned(), bound.cloned().unwrap_or_default()));
    };
    let named = value.to_str().map_err(|_| Problem::invalid(TENANT_HEADER, "must be plain text"))?;
    let named = Tenant::new(named).map_err(|invalid| Problem::invalid(TENANT_HEADER, invalid.problem))?;
    if bound.is_some_and(|own| *own != named) {
        let detail = "the header Redrive-Tenant must name the tenant that your key is bound to";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok((Some(named.clone()), named))
}
