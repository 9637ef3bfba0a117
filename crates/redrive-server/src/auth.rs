//! Who is calling and what they may do. A route takes the extractor of the right it needs, so that none can forget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use redrive_core::store::Backend;
use redrive_core::{Job, Tenant};
use tokio::time::Instant;

use crate::api::Api;
use crate::auth_limit;
use crate::error::{Answer, Code, Problem};
use crate::keys::{self, Key, Presented, Scope};

/// How long a key that was read is trusted: another node's revocation holds after this.
pub const KEY_TRUSTED: Duration = Duration::from_secs(1);
/// Keys kept in memory.
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

/// The keys, read at most once a second each.
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
    any: Option<(bool, Instant)>,
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
        *known = Known { changes: known.changes + 1, ..Known::default() };
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

    /// Whether everyone may do everything, because there is no key.
    pub(crate) async fn is_open(&self) -> Answer<bool> {
        Ok(self.open && !self.any().await?)
    }

    /// Who sends these headers.
    pub(crate) async fn admit(&self, headers: &HeaderMap) -> Answer<Caller> {
        let (tenant, scope) = match presented(headers)? {
            Some(text) => self.verify(text).await?,
            None if self.is_open().await? => (None, Scope::Admin),
            None => {
                let detail = "send an API key in the header Authorization: Bearer rdk_…";
                return Err(Problem::new(Code::Unauthenticated, detail));
            }
        };
        let acts_for = acts_for(headers, tenant.as_ref())?;
        Ok(Caller { tenant, acts_for, scope })
    }

    async fn verify(&self, text: &str) -> Answer<(Option<Tenant>, Scope)> {
        let unknown = || Problem::new(Code::Unauthenticated, "this API key is not known, or was revoked");
        let presented = Presented::parse(text).ok_or_else(unknown)?;
        let key = self.find(presented.id).await?.filter(|key| presented.opens(key)).ok_or_else(unknown)?;
        Ok((key.tenant.clone(), key.scope))
    }

    async fn find(&self, id: &str) -> Answer<Option<Arc<Key>>> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        if let Some((key, read_at)) = self.lock().keys.get(id)
            && now - *read_at < KEY_TRUSTED
        {
            return Ok(key.clone());
        }
        let key = keys::find(&*self.store, id).await?.map(Arc::new);
        let mut known = self.lock();
        if known.keys.len() >= KEYS_CACHED_MAX {
            known.keys.clear();
        }
        if known.changes == changes {
            known.keys.insert(id.to_owned(), (key.clone(), now));
        }
        Ok(key)
    }

    async fn any(&self) -> Answer<bool> {
        let (now, changes) = (Instant::now(), self.lock().changes);
        if let Some((any, read_at)) = self.lock().any
            && now - read_at < KEY_TRUSTED
        {
            return Ok(any);
        }
        let any = keys::any_exist(&*self.store).await?;
        let mut known = self.lock();
        if known.changes == changes {
            known.any = Some((any, now));
        }
        Ok(any)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the headers have a key, known or not.
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
