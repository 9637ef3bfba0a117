//! Puts the service at a glance together, within the time of one answer.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::records::PAUSED;
use redrive_core::store::{Filter, PageRequest, Stats};
use redrive_core::{State, Tenant};

use crate::api::Api;
use crate::auth::Caller;
use crate::error::Answer;
use crate::groups::{Dead, groups};
use crate::nodes::ClosedGate;
use crate::troubles;
use crate::walk::walk;
use crate::wire::filter::Wanted;
use crate::wire::overview::{AttemptRates, Overview, StartLag, Trouble};

/// How far back dead letters are told of.
const DEAD_WITHIN: Duration = Duration::from_secs(60 * 60);
/// How long dead letters are looked for, and running jobs.
const LOOK_FOR: Duration = Duration::from_millis(40);
/// Paused queues that are read.
const PAUSED_MAX: usize = 1_000;
/// Jobs of one tenant that are counted by state.
const TENANT_JOBS_MAX: usize = 2_000;

impl Api {
    /// The service at a glance, as far as the caller may see it.
    pub(crate) async fn overview(&self, caller: &Caller) -> Answer<Overview> {
        let stats = self.store.stats().await?;
        let mut overview = match &caller.tenant {
            None => self.whole(&stats).await?,
            Some(tenant) => self.of_tenant(tenant, &stats).await?,
        };
        overview.problems.extend(self.dead_of_late(caller, &stats).await?);
        overview.problems.sort_by_key(|trouble| trouble.severity);
        Ok(overview)
    }

    async fn whole(&self, stats: &Stats) -> Answer<Overview> {
        let lately = self.lately(stats.now).await?;
        let [succeeded, retried, exhausted, other] = lately.rates;
        let paused = self.store.scan(PAUSED, None, PAUSED_MAX).await?;
        let paused_queues: Vec<String> = paused.into_iter().map(|record| record.id).collect();
        let mut problems: Vec<Trouble> = troubles::of_gates(&self.all_closed_gates(stats).await?).collect();
        problems.extend(troubles::of_queues(stats, &paused_queues));
        let nodes = self.nodes(LOOK_FOR).await?;
        problems.extend(troubles::of_nodes(&nodes.items, stats.now));
        problems.extend(troubles::of_node_problems(&nodes.items, stats.now));
        let lags = &lately.counts.lags;
        Ok(Overview {
            now: stats.now.as_ms(),
            jobs: State::ALL.map(|state| (state.name().to_owned(), stats.in_state(state))).into(),
            oldest_due_ms: stats.oldest_due.map(|due| crate::wire::policy::ms(stats.now.since(due))),
            attempts_per_second: Some(AttemptRates { succeeded, retried, exhausted, other }),
            start_lag: StartLag { p50_ms: lags.quantile_ms(0.5), p99_ms: lags.quantile_ms(0.99) },
            success_rate: lately.counts.success_rate(),
            paused_queues,
            problems,
        })
    }

    async fn of_tenant(&self, tenant: &Tenant, stats: &Stats) -> Answer<Overview> {
        let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
        let wanted = Wanted { filter, text: None };
        let newest = walk(&*self.store, &wanted, PageRequest::first(TENANT_JOBS_MAX), LOOK_FOR).await?;
        let mut jobs: BTreeMap<String, u64> = State::ALL.map(|state| (state.name().to_owned(), 0)).into();
        for job in &newest.items {
            *jobs.entry(job.state.name().to_owned()).or_default() += 1;
        }
        Ok(Overview {
            now: stats.now.as_ms(),
            jobs,
            oldest_due_ms: None,
            attempts_per_second: None,
            start_lag: StartLag::default(),
            success_rate: None,
            paused_queues: Vec::new(),
            problems: Vec::new(),
        })
    }

    async fn dead_of_late(&self, caller: &Caller, stats: &Stats) -> Answer<Vec<Trouble>> {
        let since = Some(stats.now.before(DEAD_WITHIN));
        let dead = Dead { tenant: caller.tenant.clone(), since, patience: LOOK_FOR };
        Ok(troubles::of_dead_letters(&groups(&*self.store, &dead).await?.items).collect())
    }

    /// Gates that are closed here, or were at the last sign of life of another node.
    async fn all_closed_gates(&self, stats: &Stats) -> Answer<Vec<ClosedGate>> {
        let mut closed = self.closed_gates();
        for (node, beat) in self.beats().await? {
            let age = stats.now.as_ms() - beat.seen_at;
            if node == self.node.as_str() || age > 90_000 {
                continue;
            }
            for gate in beat.closed {
                if !closed.iter().any(|known| known.origin == gate.origin) {
                    let for_ms = gate.for_ms + u64::try_from(age).unwrap_or(0);
                    closed.push(ClosedGate { for_ms, ..gate });
                }
            }
        }
        Ok(closed)
    }
}
