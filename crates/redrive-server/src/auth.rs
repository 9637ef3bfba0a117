//! Who is calling and what they may do. A route takes the extractor of the right it needs, so that none can forget.

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
use crate::error::{Answer, Code, Problem};
use crate::keys::{self, KEY_PREFIX, Key, Scope};
use crate::presented::PresentedSecret;
use crate::sessions::{self, Session};
use crate::wire::content::Detail;

/// How long a key that was read is trusted: another node's revocation holds after this.
pub const KEY_TRUSTED: Duration = Duration::from_secs(1);
/// Keys and sessions kept in memory, of each.
const KEYS_CACHED_MAX: usize = 1024;
/// Names the tenant for which a key without one creates.
pub const TENANT_HEADER: &str = "redrive-tenant";

/// Who is calling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The only tenant they may see; none sees all.
    pub tenant: Option<Tenant>,
    /// The tenant for which they create.
    pub acts_for: Tenant,
    /// What they may do.
    pub scope: Scope,
    /// Whether they may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// What they showed.
    pub credential: Credential,
}

/// What a caller showed to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nothing: the service is open.
    Nothing,
    /// The API key with this id.
    Key(String),
    /// The session with this id.
    Session(String),
}

impl Caller {
    /// Whether they may know of what belongs to `tenant`.
    pub fn sees(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// Whether they may know of `job`.
    pub fn sees_job(&self, job: &Job) -> bool {
        self.sees(&job.tenant)
    }

    /// How much they may see of what programs keep with a job, where `detail` is what a route shows of it.
    pub(crate) fn detail(&self, detail: Detail) -> Detail {
        if self.bodies { detail } else { Detail::Hidden }
    }

    fn needs(self, scope: Scope) -> Answer<Self> {
        if self.scope >= scope {
            return Ok(self);
        }
        let detail = format!("this needs a key of scope {scope}, yours is of scope {}", self.scope);
        Err(Problem::new(Code::Forbidden, detail))
    }

    fn unbound(self) -> Answer<Self> {
        match self.tenant {
            None => Ok(self),
            Some(_) => Err(Problem::new(
                Code::Forbidden,
                "all tenants share this: it needs a key that is not bound to one",
            )),
        }
    }
}

macro_rules! right {
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

right!(
    /// May look at what is theirs.
    Reader, caller => caller.needs(Scope::Read)
);
right!(
    /// May create and change what is theirs.
    Writer, caller => caller.needs(Scope::Write)
);
right!(
    /// May operate on what is theirs.
    Admin, caller => caller.needs(Scope::Admin)
);
right!(
    /// May look at what all tenants share.
    ReaderOfAll, caller => caller.needs(Scope::Read)?.unbound()
);
right!(
    /// May change what all tenants share.
    AdminOfAll, caller => caller.needs(Scope::Admin)?.unbound()
);

/// The keys and sessions, read at most once a second each.
pub struct Keyring {
    store: Arc<dyn Backend>,
    /// Whether everyone may do everything as long as there is no key.
    open: bool,
    known: Mutex<Known>,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Known {
    keys: HashMap<String, (Option<Arc<Key>>, Instant)>,
    sessions: HashMap<String, (Option<Arc<Session>>, Instant)>,
    /// When the store was last seen without a key.
    keyless_at: Option<Instant>,
    /// Whether the store has had a key: that never changes back.
    closed: bool,
    /// Counts the changes this node has made, so that a read from before one is not remembered after it.
    changes: u64,
}

impl Keyring {
    /// The keys in `store`.
    pub fn new(store: Arc<dyn Backend>, open: bool) -> Self {
        Self { store, open, known: Mutex::default(), on_change: OnceLock::new() }
    }

    /// Forgets what was read, after this node has changed a key.
    pub fn forget(&self) {
        let mut known = self.lock();
        *known = Known { changes: known.changes + 1, closed: known.closed, ..Known::default() };
        drop(known);
        if let Some(act) = self.on_change.get() {
            act();
        }
    }

    /// Acts whenever this node has changed a key, before the change is answered.
    pub(crate) fn on_change(&self, act: impl Fn() + Send + Sync + 'static) {
        // There is one guard to keep in line.
        let _ = self.on_change.set(Box::new(act));
    }

    /// Whether everyone who reaches this service may do everything: it listens on loopback, and never had a key.
    pub async fn is_open(&self) -> Result<bool, StoreError> {
        Ok(self.open && !self.is_closed().await?)
    }

    /// Whether what a caller showed still holds: neither revoked nor ended nor expired since.
    pub(crate) async fn still_admits(&self, credential: &Credential) -> Result<bool, StoreError> {
        match credential {
            Credential::Nothing => self.is_open().await,
            Credential::Key(id) => Ok(self.find(id).await?.is_some()),
            Credential::Session(id) => match self.find_session(id).await? {
                Some(session) => Ok(self.find(&session.key_id).await?.is_some()),
                None => Ok(false),
            },
        }
    }

    /// Who sends these headers.
    pub(crate) async fn admit(&self, headers: &HeaderMap) -> Answer<Caller> {
        let Some(text) = presented(headers)? else {
            if !self.is_open().await? {
                let detail = "send an API key in the header Authorization: Bearer rdk_…";
                return Err(Problem::new(Code::Unauthenticated, detail));
            }
            let (scope, credential) = (Scope::Admin, Credential::Nothing);
            let acts_for = acts_for(headers, None)?;
            return Ok(Caller { tenant: None, acts_for, scope, bodies: true, credential });
        };
        let (key, credential) = self.verify(text).await?;
        let tenant = key.tenant.clone();
        let acts_for = acts_for(headers, tenant.as_ref())?;
        Ok(Caller { tenant, acts_for, scope: key.scope, bodies: key.sees_bodies(), credential })
    }

    async fn verify(&self, text: &str) -> Answer<(Arc<Key>, Credential)> {
        if text.starts_with(sessions::TOKEN_PREFIX) {
            return self.verify_session(text).await;
        }
        let unknown = || Problem::new(Code::Unauthenticated, "this API key is not known, or was revoked");
        let presented = PresentedSecret::parse(KEY_PREFIX, text).ok_or_else(unknown)?;
        let key =
            self.find(presented.id).await?.filter(|key| key.is_opened_by(&presented)).ok_or_else(unknown)?;
        let credential = Credential::Key(key.id.clone());
        Ok((key, credential))
    }

    /// A session allows what its key allows, as long as that key exists.
    async fn verify_session(&self, text: &str) -> Answer<(Arc<Key>, Credential)> {
        let ended = || Problem::new(Code::Unauthenticated, "this session has ended: sign in again");
        let presented = PresentedSecret::parse(sessions::TOKEN_PREFIX, text).ok_or_else(ended)?;
        let session = self.find_session(presented.id).await?;
        let session = session.filter(|session| session.is_opened_by(&presented)).ok_or_else(ended)?;
        let key = self.find(&session.key_id).await?.ok_or_else(ended)?;
        Ok((key, Credential::Session(session.id.clone())))
    }

    async fn find(&self, id: &str) -> Result<Option<Arc<Key>>, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        if let Some(key) = fresh(&self.lock().keys, id, now) {
            return Ok(key);
        }
        let key = keys::find(&*self.store, id).await?.map(Arc::new);
        let mut known = self.lock();
        if known.changes == changes {
            remember(&mut known.keys, id, key.clone(), now);
        }
        Ok(key)
    }

    /// The session with this id, unless it has expired.
    async fn find_session(&self, id: &str) -> Result<Option<Arc<Session>>, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        let cached = fresh(&self.lock().sessions, id, now);
        let session = match cached {
            Some(session) => session,
            None => {
                let session = sessions::find(&*self.store, id).await?.map(Arc::new);
                let mut known = self.lock();
                if known.changes == changes {
                    remember(&mut known.sessions, id, session.clone(), now);
                }
                session
            }
        };
        Ok(session.filter(|session| session.expires_at > api::now()))
    }

    async fn is_closed(&self) -> Result<bool, StoreError> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        {
            let known = self.lock();
            if known.closed || known.keyless_at.is_some_and(|read_at| now - read_at < KEY_TRUSTED) {
                return Ok(known.closed);
            }
        }
        let closed = keys::any_ever(&*self.store).await?;
        let mut known = self.lock();
        known.closed |= closed;
        if !closed && known.changes == changes {
            known.keyless_at = Some(now);
        }
        Ok(known.closed)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was read about `id` a moment ago.
fn fresh<T: Clone>(known: &HashMap<String, (T, Instant)>, id: &str, now: Instant) -> Option<T> {
    known.get(id).filter(|(_, read_at)| now - *read_at < KEY_TRUSTED).map(|(value, _)| value.clone())
}

fn remember<T>(known: &mut HashMap<String, (T, Instant)>, id: &str, value: T, now: Instant) {
    if known.len() >= KEYS_CACHED_MAX {
        known.clear();
    }
    known.insert(id.to_owned(), (value, now));
}

/// Whether the headers have a key or a session, known or not.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key")
}

/// The key in the headers, if there is one.
fn presented(headers: &HeaderMap) -> Answer<Option<&str>> {
    let unreadable = || Problem::new(Code::Unauthenticated, "the header Authorization must be: Bearer rdk_…");
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) =
            value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unreadable)?;
        return if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(key.trim())) } else { Err(unreadable()) };
    }
    headers.get("x-api-key").map(|value| value.to_str().map_err(|_| unreadable())).transpose()
}

/// The tenant for which a caller creates: their own, or the one that an unbound key names.
fn acts_for(headers: &HeaderMap, bound: Option<&Tenant>) -> Answer<Tenant> {
    let named = match headers.get(TENANT_HEADER) {
        None => return Ok(bound.cloned().unwrap_or_default()),
        Some(value) => value.to_str().map_err(|_| Problem::invalid(TENANT_HEADER, "must be plain text"))?,
    };
    match bound {
        Some(own) if own.as_str() != named => Err(Problem::new(
            Code::Forbidden,
            "your key is bound to another tenant than Redrive-Tenant names",
        )),
        Some(own) => Ok(own.clone()),
        None => Tenant::new(named).map_err(|invalid| Problem::invalid(TENANT_HEADER, invalid.problem)),
    }
}
