//! Builds the overview of the service, within the time of one answer.

mod problems;

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::records::QueuePause;
use redrive_core::store::{Filter, PageRequest, Stats};
use redrive_core::{Records, State, Tenant};

use crate::api::Api;
use crate::auth::Caller;
use crate::dead_letter_groups::group_dead_letters;
use crate::error::Answer;
use crate::job_search::search_jobs;
use crate::nodes::BlockedGate;
use crate::selection::JobSelection;
use redrive_wire::overview::{AttemptRates, CurrentProblem, Overview, StartLag};

/// The overview reports jobs that died within this time.
const DEAD_WITHIN: Duration = Duration::from_secs(60 * 60);
/// How long the overview searches for dead letters, and again for running jobs.
const SEARCH_TIME: Duration = Duration::from_millis(40);
/// Paused queues that are read.
const PAUSED_MAX: usize = 1_000;
/// Jobs of one tenant that are counted by state.
const TENANT_JOBS_MAX: usize = 2_000;

impl Api {
    /// The overview of what the caller may see.
    pub(crate) async fn overview(&self, caller: &Caller) -> Answer<Overview> {
        let stats = self.store.stats().await?;
        let mut overview = match &caller.tenant {
            None => self.service_overview(&stats).await?,
            Some(tenant) => self.tenant_overview(tenant, &stats).await?,
        };
        overview.problems.extend(self.recent_deaths(caller, &stats).await?);
        overview.problems.sort_by_key(|problem| problem.severity);
        Ok(overview)
    }

    async fn service_overview(&self, stats: &Stats) -> Answer<Overview> {
        let activity = self.recent_activity(stats.now).await?;
        let [succeeded, retried, dead, other] = activity.rates;
        let paused = Records::<QueuePause>::new(&*self.store).page("", None, PAUSED_MAX).await?;
        let paused_queues: Vec<String> = paused.items.into_iter().map(|record| record.id).collect();
        let mut problems: Vec<CurrentProblem> =
            problems::of_gates(&self.blocked_gates_of_all_nodes(stats).await?).collect();
        problems.extend(problems::of_queues(stats, &paused_queues));
        let nodes = self.nodes(SEARCH_TIME).await?;
        problems.extend(problems::of_silent_nodes(&nodes.items, stats.now));
        problems.extend(problems::of_paused_nodes(&nodes.items, stats.now));
        let lags = &activity.counts.lags;
        Ok(Overview {
            now: stats.now.as_ms(),
            jobs: State::ALL.map(|state| (state.name().to_owned(), stats.in_state(state))).into(),
            oldest_due_ms: stats.oldest_due.map(|due| redrive_wire::millis::ms(stats.now.since(due))),
            attempts_per_second: Some(AttemptRates { succeeded, retried, dead, other }),
            start_lag: StartLag { p50_ms: lags.quantile_ms(0.5), p99_ms: lags.quantile_ms(0.99) },
            success_rate: activity.counts.success_rate(),
            paused_queues,
            problems,
        })
    }

    async fn tenant_overview(&self, tenant: &Tenant, stats: &Stats) -> Answer<Overview> {
        let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
        let selection = JobSelection::from_store_filter(filter);
        let newest =
            search_jobs(&*self.store, &selection, PageRequest::first(TENANT_JOBS_MAX), SEARCH_TIME).await?;
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

    async fn recent_deaths(&self, caller: &Caller, stats: &Stats) -> Answer<Vec<CurrentProblem>> {
        let finished_from = Some(stats.now.before(DEAD_WITHIN));
        let recent = Filter { tenant: caller.tenant.clone(), finished_from, ..Filter::default() };
        let recent = JobSelection::from_store_filter(recent);
        let groups = group_dead_letters(&*self.store, &recent, SEARCH_TIME).await?;
        Ok(problems::of_dead_letters(&groups.items).collect())
    }

    /// The gates that are blocked on this node, or were blocked at the last heartbeat of another node.
    async fn blocked_gates_of_all_nodes(&self, stats: &Stats) -> Answer<Vec<BlockedGate>> {
        let mut blocked = self.blocked_gates();
        for (node, heartbeat) in self.last_heartbeats().await? {
            let age = stats.now.since(redrive_core::Timestamp::from_ms(heartbeat.seen_at));
            if node == self.node.as_str() || age > problems::SILENT_AFTER {
                continue;
            }
            for gate in heartbeat.blocked {
                if !blocked.iter().any(|known| known.origin == gate.origin) {
                    let for_ms = gate.for_ms + redrive_wire::millis::ms(age);
                    blocked.push(BlockedGate { for_ms, ..gate });
                }
            }
        }
        Ok(blocked)
    }
}
