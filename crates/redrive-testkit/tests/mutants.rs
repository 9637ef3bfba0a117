//! The conformance suite and the model test go red for stores that each break one guarantee.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use redrive_testkit::exercise::{behaviours, broken};
use redrive_testkit::mutant::{Flaw, Mutant};
use redrive_testkit::{ModelStore, check_against_model};

/// Each flaw with the behaviour that must name it.
const FLAWS: [(Flaw, &str); 85] = [
    (Flaw::EnqueueForgets, "claim::takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id"),
    (Flaw::KeyIgnored, "enqueue::the_same_key_finds_the_first_job"),
    (Flaw::FingerprintIgnored, "enqueue::the_same_key_with_another_request_is_a_conflict"),
    (Flaw::FindBlind, "enqueue::a_find_answers_as_an_enqueue_would"),
    (Flaw::BatchHalfApplied, "enqueue::an_illegal_job_refuses_the_whole_batch"),
    (Flaw::ClaimFree, "claim::takes_lease_attempt_and_epoch_in_one_write"),
    (Flaw::ClaimKeepsEpoch, "settle::an_older_epoch_changes_nothing"),
    (Flaw::ClaimEarly, "claim::takes_a_job_at_its_millisecond_and_not_before"),
    (Flaw::ClaimUnordered, "claim::takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id"),
    (Flaw::ClaimOverLimit, "claim::never_takes_more_than_the_limit"),
    (Flaw::ClaimShared, "claim::sixteen_claimers_take_each_job_once"),
    (Flaw::PauseIgnored, "pause::a_paused_queue_is_not_claimed_from_until_it_resumes"),
    (Flaw::QuotaIgnored, "limits::a_queue_runs_no_more_than_its_quota"),
    (Flaw::OrderIgnored, "limits::strict_order_holds_through_retries"),
    (Flaw::TurnLost, "limits::an_end_makes_room_for_the_next_in_order"),
    (Flaw::NextDueForgotten, "claim::says_when_the_next_job_is_due"),
    (Flaw::SettleUnfenced, "settle::an_older_epoch_changes_nothing"),
    (Flaw::SettleAgain, "settle::a_lease_settles_once"),
    (Flaw::SettleRefusesLate, "settle::a_lease_that_ran_out_still_settles_until_it_is_taken_over"),
    (Flaw::LostLeaseLeavesError, "settle::an_older_epoch_changes_nothing"),
    (Flaw::LogLost, "settle::the_log_holds_what_the_worker_said"),
    (Flaw::LostLeaseLeavesLog, "settle::a_lost_lease_leaves_no_log"),
    (Flaw::RefundForgotten, "settle::snooze_refunds_the_attempt_and_stops_the_budget"),
    (Flaw::ExtendUnfenced, "extend::a_lease_that_was_taken_over_is_lost"),
    (Flaw::ExtendHidesCancel, "extend::tells_of_a_cancel_and_renews"),
    (Flaw::ReclaimKeepsEpoch, "reclaim::shuts_out_the_old_holder"),
    (Flaw::ReclaimCharges, "reclaim::raises_the_epoch_and_charges_no_attempt"),
    (Flaw::ReclaimEarly, "reclaim::takes_over_at_the_millisecond_and_not_before"),
    (Flaw::ReclaimNever, "reclaim::takes_over_at_the_millisecond_and_not_before"),
    (Flaw::CancelPretends, "cancel::ends_what_is_not_running_at_once"),
    (Flaw::CancelForgotten, "cancel::a_retry_becomes_cancelled"),
    (Flaw::RedriveTwice, "redrive::sixteen_at_once_drive_it_once"),
    (Flaw::RedriveKeepsAttempts, "redrive::gives_a_dead_job_a_fresh_run"),
    (Flaw::RedriveForgetsLog, "redrive::the_log_keeps_the_earlier_runs"),
    (Flaw::RunNowPretends, "run_now::makes_a_retry_due_and_keeps_its_run"),
    (Flaw::RunNowKeepsBudget, "run_now::makes_a_delayed_job_due_with_its_budget"),
    (Flaw::FollowUpsLost, "follow_ups::come_with_the_settlement"),
    (Flaw::LostLeaseFollowsUp, "follow_ups::do_not_come_under_a_lost_lease"),
    (Flaw::StatusLost, "settle::the_last_answer_stays_on_the_row"),
    (Flaw::ReclaimAnyKind, "reclaim::takes_only_the_kinds_it_was_told"),
    (Flaw::ReclaimTakesOwn, "reclaim::leaves_alone_what_its_caller_holds"),
    (Flaw::ReclaimSparesLost, "reclaim::a_lease_that_was_lost_protects_nothing"),
    (Flaw::OwnLeaseIgnored, "claim::a_job_may_ask_for_a_lease_of_its_own"),
    (Flaw::ListIgnoresSubject, "list::narrows_by_each_part_of_a_filter"),
    (Flaw::DiscardAnything, "discard::removes_nothing_that_is_not_dead"),
    (Flaw::ListSkips, "list::pages_follow_each_other"),
    (Flaw::LookUnbounded, "list::a_look_sees_no_more_than_it_may"),
    (Flaw::LookEndsEarly, "list::looks_of_any_size_add_up_to_the_list"),
    (Flaw::PruneEarly, "prune::removes_each_state_at_its_millisecond_and_not_before"),
    (Flaw::UniqueIgnored, "unique::finds_a_job_that_has_not_ended"),
    (Flaw::CancelLeavesChildren, "cancel::ends_everything_below"),
    (Flaw::ChildrenDespiteCancel, "steps::children_do_not_come_once_a_cancel_is_requested"),
    (Flaw::DeathLeavesChildren, "cancel::a_death_ends_everything_below"),
    (Flaw::DetachedEnded, "cancel::leaves_detached_children"),
    (Flaw::FailureLeavesSiblings, "resume::a_failure_too_many_ends_the_other_children"),
    (Flaw::ParentBehindChildren, "resume::a_parent_goes_before_its_children"),
    (Flaw::OnlyFirstAwaited, "resume::any_of_several_signals_ends_a_wait"),
    (Flaw::SetAsideUnfenced, "signals::are_not_set_aside_under_a_lost_lease"),
    (Flaw::CancelUnheard, "cancel::wakes_workers_that_run_a_job"),
    (Flaw::ReclaimRenames, "reclaim::the_log_names_the_worker_that_was_lost"),
    (Flaw::PruneTakesChildren, "prune::keeps_children_until_their_parent_has_ended"),
    (Flaw::StepUnfenced, "steps::are_not_remembered_under_a_lost_lease"),
    (Flaw::StepOverwritten, "steps::are_remembered_once"),
    (Flaw::ChildrenLost, "steps::children_come_with_their_step"),
    (Flaw::SignalTakenTwice, "signals::are_taken_in_the_order_they_came"),
    (Flaw::SignalRepeats, "signals::are_kept_once_under_an_id"),
    (Flaw::ResumeEarly, "resume::a_signal_by_another_name_does_not"),
    (Flaw::ResumeNever, "resume::the_last_child_ends_a_wait"),
    (Flaw::HoldPretends, "resume::a_hold_sets_aside_what_waits_for_its_time"),
    (Flaw::ForgetPretends, "steps::are_forgotten_of_dead_jobs_alone"),
    (Flaw::WakeLost, "wait::does_not_miss_what_came_before_it_waits"),
    (Flaw::WakeAlways, "wait::stays_asleep_while_nothing_happens"),
    (Flaw::StatsHideDue, "stats::knows_how_long_the_oldest_job_has_been_due"),
    (Flaw::RecordsUnfenced, "records::a_version_takes_effect_only_if_it_is_current"),
    (Flaw::VersionsRestart, "records::versions_grow_across_a_removal"),
    (Flaw::SealIgnored, "transfer::a_seal_stops_claims_and_reclaims"),
    (Flaw::SealLetsReclaim, "transfer::a_seal_stops_claims_and_reclaims"),
    (Flaw::ExportDropsSteps, "transfer::an_export_has_all_that_a_job_is"),
    (Flaw::ExportDropsTaken, "transfer::an_export_has_all_that_a_job_is"),
    (Flaw::ImportDropsUnique, "transfer::a_repeat_under_an_imported_key_is_known"),
    (Flaw::ImportOverwrites, "transfer::an_open_store_keeps_what_it_has"),
    (Flaw::ImportNeverReplaces, "transfer::a_store_that_is_filled_takes_the_parcel"),
    (Flaw::ImportIgnoresKeys, "transfer::a_taken_idempotency_key_is_a_conflict_of_its_own"),
    (Flaw::RemovedRecordsLost, "transfer::records_come_with_their_versions_and_removals"),
    (Flaw::RecordsGoBack, "transfer::an_import_of_records_never_goes_back"),
];

// Paused time makes a lost wake-up show at once.
#[tokio::test(start_paused = true)]
async fn the_suite_names_the_behaviour_that_each_flaw_breaks() {
    let known = behaviours();
    let mut missed = Vec::new();
    expect_panics(true);
    for (flaw, behaviour) in FLAWS {
        let broken = broken("", |clock| async move { Mutant::new(ModelStore::new(clock), flaw) }).await;
        let names: Vec<&str> = broken.iter().map(|broken| broken.behaviour.as_str()).collect();
        println!("{flaw:?}: {} of {} behaviours fail", names.len(), known.len());
        if !names.contains(&behaviour) {
            missed.push(format!("{flaw:?} breaks {names:?} and not {behaviour}"));
        }
    }
    expect_panics(false);
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn the_model_test_notices_each_flaw() {
    let mut missed = Vec::new();
    expect_panics(true);
    // Wake-ups are each store's own: the model test leaves them out. That a parent waits for two children of which one has
    // failed and one runs is too rare for random calls.
    let left_out = |flaw: &Flaw| {
        matches!(flaw, Flaw::WakeLost | Flaw::WakeAlways | Flaw::CancelUnheard | Flaw::FailureLeavesSiblings)
    };
    for (flaw, _) in FLAWS.iter().filter(|(flaw, _)| !left_out(flaw)) {
        let noticed = catch_unwind(AssertUnwindSafe(|| {
            check_against_model(1_000, |clock| async { Mutant::new(ModelStore::new(clock), *flaw) });
        }));
        if noticed.is_ok() {
            missed.push(flaw);
        }
    }
    expect_panics(false);
    assert!(missed.is_empty(), "these go unnoticed: {missed:?}");
}

#[test]
fn the_suite_says_which_behaviours_failed() {
    expect_panics(true);
    let panic = catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let open = |clock| async { Mutant::new(ModelStore::new(clock), Flaw::WakeAlways) };
        runtime.block_on(redrive_testkit::exercise::exercise_only("wait::", open));
    });
    expect_panics(false);
    let message = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(message.starts_with("1 behaviours failed:\n  wait::stays_asleep_while_nothing_happens: woke up"));
}

thread_local! {
    static PANICS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the panics that mutants cause, hundreds of them, off the screen.
fn expect_panics(expected: bool) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PANICS_EXPECTED.get() {
                default(info);
            }
        }));
    });
    PANICS_EXPECTED.set(expected);
}
