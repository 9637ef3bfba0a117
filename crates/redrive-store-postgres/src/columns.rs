//! Jobs as columns, so that one statement adds many.

use redrive_core::time::ceil_ms;
use redrive_core::{NewJob, Start, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::lanes::Lanes;
use crate::pool::Parameter;

/// The columns of new jobs, in the order of `enqueue.sql`.
#[derive(Debug, Default)]
pub(crate) struct Columns<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<Option<i64>>,
    pub(crate) after: Vec<i64>,
    pub(crate) timeouts: Vec<Option<i64>>,
    pub(crate) leases: Vec<Option<i64>>,
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) policies: Vec<String>,
    pub(crate) keys: Vec<Option<&'a str>>,
    pub(crate) fingerprints: Vec<Option<&'a [u8]>>,
    pub(crate) subjects: Vec<Option<&'a str>>,
    pub(crate) metadata: Vec<Option<&'a str>>,
    pub(crate) payloads: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    /// The columns of these jobs, whose lanes are known.
    pub(crate) fn new(jobs: impl IntoIterator<Item = &'a NewJob>, lanes: &Lanes) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        for job in jobs {
            let lane = lanes.number(job).ok_or_else(|| StoreError::Failed("a lane has no number".into()))?;
            columns.push(job, lane);
        }
        Ok(columns)
    }

    fn push(&mut self, job: &'a NewJob, lane: i32) {
        let (at, after) = match job.start {
            Start::Now => (None, 0),
            Start::After(wait) => (None, ceil_ms(wait)),
            Start::At(at) => (Some(at.as_ms()), 0),
        };
        self.ids.push(job.id.0);
        self.lanes.push(lane);
        self.at.push(at);
        self.after.push(after);
        self.timeouts.push(job.timeout.map(ceil_ms));
        self.leases.push(job.lease.map(ceil_ms));
        self.tenants.push(job.tenant.as_str());
        self.policies.push(job.policy.to_string());
        self.keys.push(job.idempotency.as_ref().map(|idempotency| idempotency.key.as_str()));
        self.fingerprints
            .push(job.idempotency.as_ref().map(|idempotency| idempotency.fingerprint.as_slice()));
        self.subjects.push(job.subject.as_deref());
        self.metadata.push(job.metadata.as_deref());
        self.payloads.push(&job.payload);
    }

    /// The columns as parameters.
    pub(crate) fn parameters(&self) -> [Parameter<'_>; 13] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.lanes, Type::INT4_ARRAY),
            (&self.at, Type::INT8_ARRAY),
            (&self.after, Type::INT8_ARRAY),
            (&self.timeouts, Type::INT8_ARRAY),
            (&self.leases, Type::INT8_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.policies, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (&self.metadata, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
        ]
    }
}
