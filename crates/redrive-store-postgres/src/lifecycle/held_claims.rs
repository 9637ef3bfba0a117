//! The leases that this process holds, by claim.
//!
//! A settlement of a job that is listed here needs no read: its lane and attempt are known. A claim is removed with its last job, and a
//! heartbeat renews a claim as a whole if it names all jobs that are left. Nothing here decides whether a lease holds: the row of the
//! claim does. A lease that is not listed, because another process got it, takes the longer way through the tables.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use redrive_core::{Lease, Order};
use uuid::Uuid;

use crate::row::JobRow;

/// Claims that were not renewed for this long, apart from their lease, are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Forgotten claims are looked for when there are more claims than this.
const CLAIMS_BEFORE_CLEANUP: usize = 256;

/// The number of the claim of an epoch.
pub(crate) fn claim_number(epoch: u64) -> i64 {
    (epoch >> redrive_core::LEASE_COUNT_BITS) as i64
}

/// The claims of this process.
#[derive(Debug, Default)]
pub(crate) struct HeldClaims {
    claims: HashMap<i64, HeldClaim>,
    /// Claims whose jobs are all settled, and whose row is still there.
    finished: Vec<i64>,
}

#[derive(Debug)]
struct HeldClaim {
    jobs: HashMap<Uuid, HeldJob>,
    expires: Instant,
}

/// A job under a lease of this process.
#[derive(Debug, Clone)]
pub(crate) struct HeldJob {
    pub(crate) epoch: u64,
    pub(crate) lane: i32,
    pub(crate) attempt: i32,
    /// The partition whose slot the job occupies.
    pub(crate) partition: Option<String>,
    /// Whether the job has neither a parent nor a strict order.
    is_simple: bool,
    /// Whether a call settles it now.
    is_settling: bool,
}

impl HeldClaims {
    /// Adds the jobs of a claim.
    pub(crate) fn add(&mut self, rows: &[JobRow], lease: Duration) {
        let now = Instant::now();
        if self.claims.len() > CLAIMS_BEFORE_CLEANUP {
            self.claims.retain(|_, claim| claim.expires > now);
        }
        for row in rows {
            let (lease_of_job, job) = match &row.job {
                Ok(job) => {
                    let is_strict = job.partition.as_ref().is_some_and(|each| each.order == Order::Strict);
                    let held = HeldJob {
                        epoch: job.epoch,
                        lane: row.lane,
                        attempt: i32::try_from(job.attempt).unwrap_or(i32::MAX),
                        partition: job.partition.as_ref().map(|partition| partition.scope(&job.queue)),
                        is_simple: job.parent.is_none() && !is_strict,
                        is_settling: false,
                    };
                    (job.lease.unwrap_or(lease), held)
                }
                Err(unreadable) => {
                    let epoch = unreadable.lease.epoch;
                    let held = HeldJob {
                        epoch,
                        lane: row.lane,
                        attempt: 0,
                        partition: None,
                        is_simple: false,
                        is_settling: false,
                    };
                    (lease, held)
                }
            };
            let expires = now + 2 * lease_of_job + FORGOTTEN_AFTER;
            let new = || HeldClaim { jobs: HashMap::new(), expires };
            self.claims.entry(claim_number(job.epoch)).or_insert_with(new).jobs.insert(row.id.0, job);
        }
    }

    /// The jobs of these leases, if all are held, simple, and not being settled. They are being settled from now on: call
    /// [`Self::settled`] or [`Self::not_settled`] afterwards.
    pub(crate) fn start_simple(&mut self, leases: &[Lease]) -> Option<Vec<HeldJob>> {
        let of = |lease: &Lease| self.job(*lease).filter(|job| job.is_simple && !job.is_settling).cloned();
        let jobs: Vec<HeldJob> = leases.iter().map(of).collect::<Option<_>>()?;
        self.start(leases);
        Some(jobs)
    }

    /// Marks these leases as being settled.
    pub(crate) fn start(&mut self, leases: &[Lease]) {
        for lease in leases {
            if let Some(job) = self.job_mut(*lease) {
                job.is_settling = true;
            }
        }
    }

    /// The claims that have no job left when these leases are settled, and those that have none by now.
    pub(crate) fn finished_with(&mut self, leases: &[Lease]) -> Vec<i64> {
        // A settlement under another lease of the same job does not end this one.
        let settled: HashSet<(Uuid, u64)> = leases.iter().map(|lease| (lease.id.0, lease.epoch)).collect();
        let numbers: HashSet<i64> = leases.iter().map(|lease| claim_number(lease.epoch)).collect();
        let ends = |number: &i64| {
            let claim = self.claims.get(number);
            claim.is_some_and(|claim| claim.jobs.iter().all(|(id, job)| settled.contains(&(*id, job.epoch))))
        };
        let mut finished: Vec<i64> = numbers.into_iter().filter(ends).collect();
        finished.append(&mut self.finished);
        finished
    }

    /// Removes leases that were settled or lost. `released` are claims whose row the settlement removed.
    pub(crate) fn settled(&mut self, leases: &[Lease], released: &[i64]) {
        for lease in leases {
            let number = claim_number(lease.epoch);
            if self.job(*lease).is_none() {
                continue;
            }
            let Some(claim) = self.claims.get_mut(&number) else { continue };
            claim.jobs.remove(&lease.id.0);
            if claim.jobs.is_empty() {
                self.claims.remove(&number);
                if !released.contains(&number) {
                    self.finished.push(number);
                }
            }
        }
    }

    /// Keeps leases whose settlement failed. `released` are claims whose row the settlement would have removed.
    pub(crate) fn not_settled(&mut self, leases: &[Lease], released: Vec<i64>) {
        for lease in leases {
            if let Some(job) = self.job_mut(*lease) {
                job.is_settling = false;
            }
        }
        let gone = released.into_iter().filter(|number| !self.claims.contains_key(number));
        self.finished.extend(gone.collect::<Vec<_>>());
    }

    /// Splits leases into those of claims that are named as a whole, as the numbers of these claims, and the others.
    pub(crate) fn whole_claims(&mut self, leases: &[Lease], duration: Duration) -> (Vec<i64>, Vec<Lease>) {
        let mut by_claim: HashMap<i64, Vec<Lease>> = HashMap::new();
        for lease in leases {
            by_claim.entry(claim_number(lease.epoch)).or_default().push(*lease);
        }
        let (mut whole, mut others) = (Vec::new(), Vec::new());
        for (number, leases) in by_claim {
            let are_held = leases.iter().all(|lease| self.job(*lease).is_some());
            match self.claims.get_mut(&number) {
                Some(claim) if are_held && claim.is_covered_by(&leases) => {
                    claim.expires = Instant::now() + 2 * duration + FORGOTTEN_AFTER;
                    whole.push(number);
                }
                Some(_) | None => others.extend(leases),
            }
        }
        whole.sort_unstable();
        (whole, others)
    }

    /// Forgets a claim, so that its leases take the longer way.
    pub(crate) fn forget(&mut self, number: i64) {
        self.claims.remove(&number);
    }

    fn job(&self, lease: Lease) -> Option<&HeldJob> {
        let job = self.claims.get(&claim_number(lease.epoch))?.jobs.get(&lease.id.0)?;
        (job.epoch == lease.epoch).then_some(job)
    }

    fn job_mut(&mut self, lease: Lease) -> Option<&mut HeldJob> {
        let job = self.claims.get_mut(&claim_number(lease.epoch))?.jobs.get_mut(&lease.id.0)?;
        (job.epoch == lease.epoch).then_some(job)
    }
}

impl HeldClaim {
    /// Whether these leases include every job that is not being settled.
    fn is_covered_by(&self, leases: &[Lease]) -> bool {
        let named: HashSet<Uuid> = leases.iter().map(|lease| lease.id.0).collect();
        self.jobs.iter().all(|(id, job)| job.is_settling || named.contains(id))
    }
}
