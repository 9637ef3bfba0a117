//! Builds a service from addresses and options.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use redrive::Redrive;
use redrive_core::StoreError;
use redrive_core::store::Backend;
use redrive_delivery::bodies::{Bodies, OpenError};
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{KeyError, SecretKey, Vault};
use redrive_delivery::{DeliveryParts, Guard, Transport, TransportError, TransportSettings};

use crate::identity::{self, AcceptNew, IdentityError, secret_key};
use crate::service::{Config, Service, StartError};

/// The addresses and options of a service.
#[derive(Clone)]
pub struct Setup {
    /// Listen address, roles, limits and worker settings.
    pub config: Config,
    /// The address of the store.
    pub store: String,
    /// The address of the location of large bodies.
    pub bodies: String,
    /// The key that encrypts signing secrets and credentials in headers.
    pub secret_key: KeySource,
    /// Which values of this node may differ from those that earlier nodes recorded in a shared store.
    pub accept_new: AcceptNew,
    /// Special address ranges that targets may be in, for example private networks.
    pub allow: Vec<IpNet>,
    /// Address ranges that targets must not be in.
    pub deny: Vec<IpNet>,
    /// The maximum number of concurrent calls to one origin.
    pub origin_concurrency: u32,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("config", &self.config)
            .field("store", &redrive::mask_password(&self.store))
            .field("bodies", &redrive::mask_password(&self.bodies))
            .finish_non_exhaustive()
    }
}

/// Where to read the secret key from.
#[derive(Clone)]
pub enum KeySource {
    /// A file that only its owner can read. If it does not exist, it is created.
    File(PathBuf),
    /// 32 bytes as base64.
    Text(String),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(…)"),
        }
    }
}

/// Why a service could not be built.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] redrive::Error),
    /// The object store cannot be opened.
    #[error(transparent)]
    Bodies(#[from] OpenError),
    /// The key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The secret key or the location of bodies differs from those of the other nodes.
    #[error(transparent)]
    Identity(IdentityError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<IdentityError> for AssembleError {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Key(error) => error.into(),
            IdentityError::Bodies(error) => error.into(),
            IdentityError::Store(error) => error.into(),
            mismatch @ IdentityError::Mismatch(_) => Self::Identity(mismatch),
        }
    }
}

impl From<StoreError> for AssembleError {
    fn from(error: StoreError) -> Self {
        StartError::from(error).into()
    }
}

/// Opens the store, the secret key and the location of bodies, and starts to listen.
pub async fn assemble(setup: Setup) -> Result<Service, AssembleError> {
    let store = Redrive::open(&setup.store).await?.backend().clone();
    let (key, bodies) = key_and_bodies(&setup, &*store).await?;
    let parts = DeliveryParts {
        gates: Arc::new(Gates::new(GateRules::default().with_origin_concurrency(setup.origin_concurrency))),
        bodies,
        vault: Arc::new(Vault::new(&key)),
    };
    let settings = TransportSettings {
        guard: guard(&setup),
        // One idle connection for each concurrent call. With fewer, connections would be closed and opened again between calls.
        idle_per_origin_max: setup.origin_concurrency as usize,
        ..TransportSettings::default()
    };
    let transport = Transport::new(settings)?;
    let service = Service::start(setup.config, store, parts, transport.clone()).await?;
    Ok(service.with_loopback_guard(transport).await)
}

/// Opens the secret key and the location of bodies. On a shared store they must be those of the other nodes. This is checked before
/// a key file or a folder is created.
async fn key_and_bodies(setup: &Setup, store: &dyn Backend) -> Result<(SecretKey, Bodies), AssembleError> {
    let shared = redrive::is_shared(&setup.store)?;
    loop {
        if shared {
            identity::check(store, &setup.secret_key, &setup.bodies, setup.accept_new).await?;
        }
        let (key, bodies) = (secret_key(&setup.secret_key)?, Bodies::open(&setup.bodies)?);
        if !shared || identity::record(store, &key, &bodies, setup.accept_new).await? {
            return Ok((key, bodies));
        }
        // Another node recorded its values in the meantime: compare with those.
    }
}

/// The guard with the ranges of the options. Access to loopback addresses also depends on the API keys, and changes with them.
fn guard(setup: &Setup) -> Guard {
    let guard = setup.allow.iter().fold(Guard::public_only(), |guard, range| guard.allow(*range));
    setup.deny.iter().fold(guard, |guard, range| guard.deny(*range))
}
