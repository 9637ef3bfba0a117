//! The parts of the delivery that routes look at: large bodies, gates, signing secrets.

use redrive_core::{Job, JobId, Tenant};
use redrive_delivery::bodies::{ClaimError, PutError, claim_for, release};
use redrive_delivery::gate::{HoldKind, OriginState, OriginStatus};
use redrive_delivery::secrets::VaultError;
use redrive_delivery::{BodyRef, Target};
use tokio::time::Instant;

use crate::api::Api;
use crate::error::{Answer, Code, Problem};
use crate::metrics::GateNumbers;
use crate::request_body::BodyFault;

/// A gate that holds a task back.
pub(crate) struct GateHold {
    pub(crate) origin: String,
    pub(crate) detail: String,
    pub(crate) opens_in: std::time::Duration,
}

impl Api {
    /// Puts a large body into the object store for a task that is about to be.
    pub(crate) async fn keep_body(&self, task: JobId, tenant: &Tenant, bytes: Vec<u8>) -> Answer<BodyRef> {
        let now = crate::api::now();
        let body = self.parts.bodies.put_bytes(&*self.store, tenant, bytes, now).await?;
        claim_for(&*self.store, &body, tenant, task, now).await?;
        Ok(body)
    }

    /// Lets a task that is about to be use a body that its tenant has uploaded.
    pub(crate) async fn use_body(&self, task: JobId, tenant: &Tenant, body: &BodyRef) -> Answer<()> {
        Ok(claim_for(&*self.store, body, tenant, task, crate::api::now()).await?)
    }

    /// Takes back what [`Api::keep_body`] or [`Api::use_body`] did for a task that an enqueue found to be a repeat: another
    /// request was faster. What cannot be taken back now is left to the collector.
    pub(crate) async fn release_body(&self, task: JobId, tenant: &Tenant, body: &BodyRef) {
        if let Err(error) = release(&*self.store, body, tenant, task).await {
            tracing::debug!(%task, %error, "the claim of a body for a repeated request could not be taken back");
        }
    }

    /// Refuses the name of a secret that the tenant does not have.
    pub(crate) async fn check_secret(&self, tenant: &Tenant, name: &str) -> Answer<()> {
        match self.parts.vault.keys_for(&*self.store, tenant, name).await {
            // A secret that only another key can decrypt is there: the task waits for a node with that key.
            Ok(_) | Err(VaultError::WrongKey) => Ok(()),
            Err(VaultError::NotFound) => {
                let detail =
                    format!("there is no signing secret {name:?}; PUT /signing-secrets/{name} makes it");
                Err(Problem::invalid("signingSecret", detail))
            }
            Err(VaultError::Invalid(invalid)) => Err(Problem::invalid("signingSecret", invalid.problem)),
            Err(error) => Err(error.into()),
        }
    }

    /// What the gates of this node show.
    pub(crate) fn gate_numbers(&self) -> Vec<GateNumbers> {
        self.parts.gates.status(Instant::now()).into_iter().map(numbers).collect()
    }

    /// The gate that holds a task back, as seen from this node.
    pub(crate) fn gate_hold(&self, job: &Job) -> Option<GateHold> {
        let origin = Target::parse(job.subject.as_deref()?).ok()?.origin().to_string();
        let hold = self.parts.gates.hold(&origin, Instant::now())?;
        let detail = format!("the gate of {origin} holds calls back: {}", words(hold.kind));
        Some(GateHold { detail, opens_in: hold.opens_in, origin })
    }
}

fn words(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::Closed => "the origin failed too often and is left alone for a while",
        HoldKind::RetryAfter => "the origin asked to be left alone",
        HoldKind::Full => "as many calls as it bears are under way",
        HoldKind::Probing => "one call is finding out whether it works again",
        HoldKind::RetriesYield => "first attempts are waiting, and retries have their half",
    }
}

fn numbers(status: OriginStatus) -> GateNumbers {
    let state = match status.state {
        OriginState::Open => 0,
        OriginState::Held | OriginState::Probing => 1,
        OriginState::Closed => 2,
    };
    let (limit, in_flight) = (i64::from(status.limit), i64::from(status.in_flight));
    GateNumbers { origin: status.origin, state, limit, in_flight }
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Self {
        match error {
            PutError::TooLarge => Self::new(Code::BodyTooLarge, error.to_string()),
            PutError::Broken(ref cause) => match BodyFault::behind(&**cause) {
                Some(fault) => fault.into(),
                None => Self::new(Code::BrokenBody, error.to_string()),
            },
            PutError::Store(cause) => {
                tracing::warn!(%cause, "a body could not be stored");
                Self::new(Code::Unavailable, "the body could not be stored; try again in a second")
            }
        }
    }
}

impl From<ClaimError> for Problem {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Gone => Self::invalid("bodyRef", error.to_string()).with_code(Code::UnknownBody),
            ClaimError::TooManyTasks => Self::invalid("bodyRef", error.to_string()),
            ClaimError::Contended => Self::new(Code::Unavailable, error.to_string()),
            ClaimError::Store(error) => error.into(),
        }
    }
}

impl From<VaultError> for Problem {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::NotFound => Self::new(Code::NotFound, error.to_string()),
            VaultError::Invalid(invalid) => invalid.into(),
            VaultError::Store(error) => error.into(),
            VaultError::Contended | VaultError::Exists => Self::new(Code::Unavailable, error.to_string()),
            VaultError::WrongKey => Self::internal(&error),
        }
    }
}
