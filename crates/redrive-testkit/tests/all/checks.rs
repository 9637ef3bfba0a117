//! Each check accepts a sound history and rejects the violation that it is made for.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{
    Epoch, Job, JobId, Kind, LEASE_COUNT_BITS, Lease, NewJob, PolicyRef, Priority, Queue, State, Store,
    Tenant, Timestamp, WorkerId, catalog, lease_count,
};
use redrive_testkit::checks::{
    ATTEMPTS_BOUNDED, FinalState, NO_WEDGE, NOTHING_LOST, ONE_OUTCOME, STALE_SHUT_OUT, check_all, violations,
};
use redrive_testkit::clock::START;
use redrive_testkit::history::{GrantedLease, HistoryEvent, LeaseSource, SettledAttempt};
use redrive_testkit::{History, ManualClock, ModelStore, RecordingStore};
use uuid::Uuid;

const ID: JobId = JobId(Uuid::from_u128(1));
const OTHER: JobId = JobId(Uuid::from_u128(2));
const WAIT_MAX: Duration = Duration::from_secs(1);

#[test]
fn a_sound_history_has_no_violation() {
    use LeaseSource::{Claim, Reclaim};
    let life = [
        HistoryEvent::Acknowledged(ID),
        HistoryEvent::Acknowledged(ID),
        leased(1, Claim, 1, 1),
        started(1),
        leased(2, Reclaim, 1, 1),
        HistoryEvent::LeaseLost(Lease { id: ID, epoch: 1 }),
        settled(2, State::Retrying),
        leased(3, Claim, 1, 2),
        started(3),
        settled(3, State::Pending),
        leased(4, Claim, 1, 2),
        settled(4, State::Dead),
        HistoryEvent::Redriven(ID),
        leased(5, Claim, 2, 1),
        settled(5, State::Succeeded),
    ];
    check(life.clone(), &end([row(State::Succeeded, 2, 5)]), &[]);
    check(life.into_iter().chain([HistoryEvent::Pruned(1)]), &end([]), &[]);
}

#[test]
fn lost_answers_are_no_violation() {
    // The second lease and its settlement were not recorded, and the events are out of order.
    let life = [
        leased(3, LeaseSource::Claim, 1, 3),
        settled(1, State::Retrying),
        leased(1, LeaseSource::Claim, 1, 1),
        HistoryEvent::Acknowledged(ID),
    ];
    check(life, &end([row(State::Succeeded, 1, 4)]), &[]);
    // The claim between the settlement and the reclaim was not recorded.
    let life = [
        leased(1, LeaseSource::Claim, 1, 1),
        settled(1, State::Retrying),
        leased(3, LeaseSource::Reclaim, 1, 2),
    ];
    check(life, &end([row(State::Succeeded, 1, 3)]), &[]);
}

#[test]
fn nothing_lost_notices_missing_jobs_and_log_entries() {
    check([HistoryEvent::Acknowledged(ID)], &end([]), &[NOTHING_LOST]);
    let retried =
        [HistoryEvent::Acknowledged(ID), leased(1, LeaseSource::Claim, 1, 1), settled(1, State::Retrying)];
    check(retried.into_iter().chain([HistoryEvent::Pruned(1)]), &end([]), &[NOTHING_LOST]);
    let ended =
        [HistoryEvent::Acknowledged(ID), leased(1, LeaseSource::Claim, 1, 1), settled(1, State::Dead)];
    check(ended.clone(), &end([]), &[NOTHING_LOST]);
    check(ended.into_iter().chain([HistoryEvent::Discarded(ID)]), &end([]), &[]);
    check([HistoryEvent::Cancelled(ID), HistoryEvent::Pruned(1)], &end([]), &[]);
    let with_log = [leased(1, LeaseSource::Claim, 1, 1), logged(1, State::Dead)];
    let mut kept = end([row(State::Dead, 1, 1)]);
    check(with_log.clone(), &kept, &[NOTHING_LOST]);
    kept.logs.insert(ID, BTreeSet::from([1]));
    check(with_log, &kept, &[]);
}

#[test]
fn attempts_bounded_counts_attempts_itself() {
    let at = |epoch| end([row(State::Running, 1, epoch)]);
    let alive = |mut end: FinalState| {
        end.jobs.values_mut().for_each(|job| job.lease_until = Some(START));
        end
    };
    let check = |life: Vec<HistoryEvent>, epoch, broken: &[&str]| check(life, &alive(at(epoch)), broken);
    let retry = |epoch| settled(epoch, State::Retrying);
    let claim = |epoch, attempt| leased(epoch, LeaseSource::Claim, 1, attempt);
    check(vec![claim(1, 0)], 1, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 2)], 1, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 1), retry(1), claim(2, 1)], 2, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 1), leased(2, LeaseSource::Reclaim, 1, 2)], 2, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 1), settled(1, State::Pending), claim(2, 2)], 2, &[ATTEMPTS_BOUNDED]);
    let four = (1..=4).flat_map(|n| [claim(n, n as u32), retry(n)]).collect();
    check(four, 4, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 1), started(1), started(1)], 1, &[ATTEMPTS_BOUNDED]);
    check(vec![claim(1, 1), leased(2, LeaseSource::Reclaim, 1, 1), started(2)], 2, &[ATTEMPTS_BOUNDED]);
}

#[test]
fn one_outcome_notices_a_run_that_ends_twice() {
    let (one, two) = (leased(1, LeaseSource::Claim, 1, 1), leased(2, LeaseSource::Claim, 1, 2));
    let twice = [one.clone(), settled(1, State::Dead), two.clone(), settled(2, State::Succeeded)];
    check(twice, &end([row(State::Succeeded, 1, 2)]), &[ONE_OUTCOME]);
    let again = [one.clone(), settled(1, State::Dead), two];
    check(again, &end([row(State::Dead, 1, 2)]), &[ONE_OUTCOME]);
    let changed = [one, settled(1, State::Dead)];
    check(changed, &end([row(State::Succeeded, 1, 1)]), &[ONE_OUTCOME]);
    check([HistoryEvent::Cancelled(ID)], &end([row(State::Succeeded, 1, 1)]), &[ONE_OUTCOME]);
}

#[test]
fn stale_shut_out_notices_a_write_under_an_old_epoch() {
    let claim = leased(1, LeaseSource::Claim, 1, 1);
    let done = |epoch| end([row(State::Succeeded, 1, epoch)]);
    check(
        [claim.clone(), leased(1, LeaseSource::Reclaim, 1, 1)],
        &done(1),
        &[ATTEMPTS_BOUNDED, STALE_SHUT_OUT],
    );
    let taken = [claim.clone(), leased(2, LeaseSource::Reclaim, 1, 1), settled(1, State::Retrying)];
    check(taken, &done(2), &[STALE_SHUT_OUT]);
    let twice = [claim.clone(), settled(1, State::Retrying), settled(1, State::Retrying)];
    check(twice, &done(1), &[STALE_SHUT_OUT]);
    check([settled(1, State::Retrying)], &done(1), &[STALE_SHUT_OUT]);
    check([claim], &done(0), &[STALE_SHUT_OUT]);
    let first = (1 << LEASE_COUNT_BITS) | 1;
    let second = (2 << LEASE_COUNT_BITS) | 1;
    let same_count = [leased(first, LeaseSource::Claim, 1, 1), leased(second, LeaseSource::Claim, 2, 1)];
    check(same_count, &done(second), &[STALE_SHUT_OUT]);
}

#[test]
fn no_wedge_notices_an_abandoned_job() {
    let late = |job: Job| FinalState { now: START.after(WAIT_MAX + Duration::from_millis(1)), ..end([job]) };
    let running = |until| Job { lease_until: until, ..row(State::Running, 1, 0) };
    check([], &late(running(Some(START))), &[NO_WEDGE]);
    check([], &late(running(None)), &[NO_WEDGE]);
    check([], &late(running(Some(START.after(WAIT_MAX)))), &[]);
    for state in [State::Pending, State::Retrying] {
        check([], &late(row(state, 1, 0)), &[NO_WEDGE]);
        check([], &late(Job { next_run_at: Timestamp::MAX, ..row(state, 1, 0) }), &[]);
        for name in ["default", "*"] {
            let paused = FinalState { paused: BTreeSet::from([name.to_owned()]), ..late(row(state, 1, 0)) };
            check([], &paused, &[]);
        }
    }
    for state in [State::Waiting, State::Succeeded, State::Dead, State::Cancelled] {
        check([], &late(row(state, 1, 0)), &[]);
    }
}

#[tokio::test]
async fn the_final_state_has_all_content() {
    let clock = ManualClock::new();
    let history = History::new(clock.clone());
    let store = RecordingStore::new(std::sync::Arc::new(ModelStore::new(clock.clone())), history.clone());
    let reference =
        catalog::put_inline(&store, &presets::upload(), redrive_core::Timestamp::default()).await.unwrap();
    let job = |id| NewJob::new(id, Kind::new("k").unwrap(), reference.clone(), Vec::new());
    store.enqueue(vec![job(ID), job(OTHER)]).await.unwrap();
    store.cancel(vec![OTHER]).await.unwrap();
    let backend: &dyn Backend = &store;
    let end = FinalState::read(backend, &history).await.unwrap();
    assert_eq!(end.now, clock.now());
    assert_eq!(end.jobs.keys().copied().collect::<Vec<_>>(), [ID, OTHER]);
    assert_eq!(end.max_attempts, [(reference, 6)].into());
    let recorded: Vec<HistoryEvent> = history.all().into_iter().map(|(_, event)| event).collect();
    let expected =
        [HistoryEvent::Acknowledged(ID), HistoryEvent::Acknowledged(OTHER), HistoryEvent::Cancelled(OTHER)];
    assert_eq!(recorded, expected);
    check_all(&history, &end, WAIT_MAX).unwrap();
}

/// Asserts that the events and the final state violate exactly these checks, however the store numbers its epochs.
fn check(events: impl IntoIterator<Item = HistoryEvent>, end: &FinalState, broken: &[&str]) {
    let events: Vec<HistoryEvent> = events.into_iter().collect();
    check_history(events.clone(), end, broken);
    let mut end = end.clone();
    end.jobs.values_mut().for_each(|job| job.epoch = add_claim_number(job.epoch));
    for log in end.logs.values_mut() {
        *log = log.iter().copied().map(add_claim_number).collect();
    }
    check_history(events.into_iter().map(with_claim_number), &end, broken);
}

/// The epoch of a store that puts the number of the claim above the count of leases.
fn add_claim_number(epoch: Epoch) -> Epoch {
    if epoch == 0 { 0 } else { ((7 + 3 * epoch) << LEASE_COUNT_BITS) | u64::from(lease_count(epoch)) }
}

fn with_claim_number(mut event: HistoryEvent) -> HistoryEvent {
    let lease = match &mut event {
        HistoryEvent::Leased(leased) => &mut leased.lease,
        HistoryEvent::Settled(settled) => &mut settled.lease,
        HistoryEvent::Started(lease) | HistoryEvent::LeaseLost(lease) => lease,
        HistoryEvent::Acknowledged(_)
        | HistoryEvent::Cancelled(_)
        | HistoryEvent::CancelRequested(_)
        | HistoryEvent::Redriven(_)
        | HistoryEvent::Discarded(_)
        | HistoryEvent::Pruned(_) => return event,
    };
    lease.epoch = add_claim_number(lease.epoch);
    event
}

fn check_history(events: impl IntoIterator<Item = HistoryEvent>, end: &FinalState, broken: &[&str]) {
    let history = history(events);
    let found: Vec<&str> =
        violations(&history, end, WAIT_MAX).iter().map(|violation| violation.check).collect();
    assert_eq!(found, broken, "{:?}", history.all());
    assert_eq!(check_all(&history, end, WAIT_MAX).err().map(|v| v.check), broken.first().copied());
}

fn policy() -> PolicyRef {
    PolicyRef::inline(&presets::upload())
}

fn leased(epoch: u64, source: LeaseSource, run: u32, attempt: u32) -> HistoryEvent {
    let worker = WorkerId::new("w").ok();
    HistoryEvent::Leased(GrantedLease {
        lease: Lease { id: ID, epoch },
        source,
        worker,
        run,
        attempt,
        policy: policy(),
    })
}

fn settled(epoch: u64, led_to: State) -> HistoryEvent {
    let refund = u32::from(led_to == State::Pending);
    HistoryEvent::Settled(SettledAttempt { lease: Lease { id: ID, epoch }, led_to, refund, logged: false })
}

fn logged(epoch: u64, led_to: State) -> HistoryEvent {
    HistoryEvent::Settled(SettledAttempt { lease: Lease { id: ID, epoch }, led_to, refund: 0, logged: true })
}

fn started(epoch: u64) -> HistoryEvent {
    HistoryEvent::Started(Lease { id: ID, epoch })
}

fn row(state: State, run: u32, epoch: u64) -> Job {
    Job {
        target: None,
        lease: None,
        partition: None,
        parent: None,
        awaits: None,
        paused: false,
        last_status: None,
        id: ID,
        tenant: Tenant::default(),
        queue: Queue::default(),
        kind: Kind::new("k").expect("a legal name"),
        state,
        priority: Priority::default(),
        policy: policy(),
        payload: Vec::new(),
        key: None,
        metadata: None,
        timeout: None,
        run,
        attempt: 1,
        epoch,
        created_at: START,
        began_at: START,
        next_run_at: START,
        started_at: None,
        lease_until: None,
        worker: None,
        wait: None,
        cancel_requested: false,
        finished_at: None,
        output: None,
        last_error: None,
        reason: None,
    }
}

fn end(jobs: impl IntoIterator<Item = Job>) -> FinalState {
    FinalState {
        now: START,
        jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
        max_attempts: [(policy(), 3)].into(),
        ..FinalState::default()
    }
}

fn history(events: impl IntoIterator<Item = HistoryEvent>) -> History {
    let history = History::new(ManualClock::new());
    events.into_iter().for_each(|event| history.add(event));
    history
}
