//! List: newest first, filtered, page by page without gaps or repeats.

use std::collections::BTreeSet;

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, Filter, PageRequest};
use redrive_core::{Job, JobId, NewJob, Reason, State, Verdict};

use super::chapter;
use super::fixture::{StoreFixture, ids, key, kind, ms, policy, queue, rejected, tenant};
use crate::pages::search_all;

chapter!("list":
    shows_the_newest_first_with_every_field,
    sorts_by_id_and_not_by_arrival,
    filters_by_each_field,
    filters_by_all_fields_together,
    filters_by_creation_time_to_the_millisecond,
    pages_follow_each_other,
    the_last_page_has_no_cursor,
    pages_of_a_filter_hold_matching_jobs_only,
    pages_have_no_gap_or_repeat_while_jobs_change,
    a_cursor_outlives_its_job,
    a_cursor_of_another_list_is_refused,
    a_limit_out_of_range_is_refused,
    searches_of_any_size_add_up_to_the_list,
    a_search_examines_no_more_than_it_may,
    a_search_accepts_the_same_pages_as_a_list,
);

async fn shows_the_newest_first_with_every_field(fixture: StoreFixture) {
    let mut expected: Vec<Job> = Vec::new();
    for state in State::ALL {
        let job = fixture.in_state(state).await;
        fixture.clock.advance(ms(1));
        expected.insert(0, job);
    }
    assert_eq!(list(&fixture, Filter::default()).await, expected);
}

async fn sorts_by_id_and_not_by_arrival(fixture: StoreFixture) {
    let mut jobs: Vec<NewJob> = (0..6).map(|_| fixture.new_job()).collect();
    jobs.swap(0, 4);
    jobs.swap(2, 5);
    let mut expected: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    expected.sort_unstable();
    expected.reverse();
    for job in jobs {
        fixture.enqueue(job).await;
    }
    assert_eq!(pages(&fixture, &Filter::default(), 4).await.concat(), expected);
}

async fn filters_by_each_field(fixture: StoreFixture) {
    let plain = fixture.enqueue(fixture.own_job()).await;
    let special = fixture.enqueue(special(&fixture)).await;
    let plain_queue = fixture.job(plain).await.queue;
    fixture.bring_to(plain, State::Dead).await;
    let cases = [
        (filter(|f| f.states = vec![State::Dead]), vec![plain]),
        (filter(|f| f.states = vec![State::Pending]), vec![special]),
        (filter(|f| f.states = vec![State::Dead, State::Pending]), vec![special, plain]),
        (filter(|f| f.states = vec![State::Running]), vec![]),
        (filter(|f| f.tenant = Some(tenant("acme"))), vec![special]),
        (filter(|f| f.tenant = Some(tenant(""))), vec![plain]),
        (filter(|f| f.queue = Some(queue("mail"))), vec![special]),
        (filter(|f| f.queue = Some(plain_queue)), vec![plain]),
        (filter(|f| f.kind = Some(kind("send"))), vec![special]),
        (filter(|f| f.policy = Some(policy("strict"))), vec![special]),
        (filter(|f| f.policy = Some("strict@2".parse().expect("a reference"))), vec![]),
        (filter(|f| f.policy_name = Some("strict".parse().expect("a name"))), vec![special]),
        (filter(|f| f.policy_name = Some("default".parse().expect("a name"))), vec![plain]),
        (filter(|f| f.policy_name = Some("stric".parse().expect("a name"))), vec![]),
        (filter(|f| f.policy_name = Some("strict@1".parse().expect("a name"))), vec![]),
        (filter(|f| f.target = Some("https://a.test/".to_owned())), vec![special]),
        (filter(|f| f.target = Some("https://A.test/".to_owned())), vec![]),
        (filter(|f| f.target = Some("https://%".to_owned())), vec![]),
        (filter(|f| f.reason = Some(Reason::AttemptsExhausted)), vec![plain]),
        (filter(|f| f.reason = Some(Reason::BodyLost)), vec![]),
        (filter(|f| f.finished_from = Some(fixture.now())), vec![plain]),
        (filter(|f| f.finished_from = Some(fixture.now().after(ms(1)))), vec![]),
        (filter(|f| f.finished_before = Some(fixture.now().after(ms(1)))), vec![plain]),
        (filter(|f| f.finished_before = Some(fixture.now())), vec![]),
        (filter(|f| f.key = Some(key("k"))), vec![special]),
        (filter(|f| f.key = Some(key("K"))), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(ids(&list(&fixture, filter.clone()).await), expected, "{filter:?}");
    }
}

async fn filters_by_all_fields_together(fixture: StoreFixture) {
    let id = fixture.enqueue(special(&fixture)).await;
    let exact = Filter {
        states: vec![State::Dead, State::Pending],
        tenant: Some(tenant("acme")),
        queue: Some(queue("mail")),
        kind: Some(kind("send")),
        policy: Some(policy("strict")),
        policy_name: Some("strict".parse().expect("a name")),
        target: Some("https://a.test/hook".to_owned()),
        reason: None,
        finished_from: None,
        finished_before: None,
        key: Some(key("k")),
        created_from: Some(fixture.now()),
        created_before: Some(fixture.now().after(ms(1))),
    };
    assert_eq!(ids(&list(&fixture, exact.clone()).await), [id]);
    let misses = [
        Filter { states: vec![State::Dead], ..exact.clone() },
        Filter { tenant: Some(tenant("other")), ..exact.clone() },
        Filter { queue: Some(queue("other")), ..exact.clone() },
        Filter { kind: Some(kind("other")), ..exact.clone() },
        Filter { policy: Some(policy("other")), ..exact.clone() },
        Filter { key: Some(key("other")), ..exact.clone() },
        Filter { target: Some("https://b".to_owned()), ..exact.clone() },
        Filter { reason: Some(Reason::NotRetryable), ..exact.clone() },
        Filter { finished_from: Some(fixture.now()), ..exact.clone() },
        Filter { created_from: Some(fixture.now().after(ms(1))), ..exact.clone() },
        Filter { created_before: Some(fixture.now()), ..exact },
    ];
    for miss in misses {
        assert_eq!(list(&fixture, miss.clone()).await, [], "{miss:?}");
    }
}

async fn filters_by_creation_time_to_the_millisecond(fixture: StoreFixture) {
    let mut enqueued = Vec::new();
    let start = fixture.now();
    for _ in 0..4 {
        enqueued.push(fixture.enqueue(fixture.new_job()).await);
        fixture.clock.advance(ms(1));
    }
    let between = Filter {
        created_from: Some(start.after(ms(1))),
        created_before: Some(start.after(ms(3))),
        ..Filter::default()
    };
    assert_eq!(ids(&list(&fixture, between).await), [enqueued[2], enqueued[1]]);
}

async fn pages_follow_each_other(fixture: StoreFixture) {
    let mut enqueued = fixture.enqueue_some(10).await;
    enqueued.reverse();
    for limit in [1, 3, 5, 10, 11] {
        let pages = pages(&fixture, &Filter::default(), limit).await;
        assert!(pages[..pages.len() - 1].iter().all(|page| page.len() == limit), "{limit}");
        assert_eq!(pages.concat(), enqueued, "{limit}");
    }
}

async fn the_last_page_has_no_cursor(fixture: StoreFixture) {
    let empty = fixture.store.list(Filter::default(), PageRequest::first(5)).await.expect("list");
    assert_eq!((empty.items, empty.next), (Vec::new(), None));
    let enqueued = fixture.enqueue_some(4).await;
    let exact = fixture.store.list(Filter::default(), PageRequest::first(4)).await.expect("list");
    assert_eq!((exact.items.len(), exact.next), (4, None));
    let cut = fixture.store.list(Filter::default(), PageRequest::first(3)).await.expect("list");
    assert_eq!((cut.items.len(), cut.next), (3, Some(Cursor::Job(enqueued[1]))));
}

async fn pages_of_a_filter_hold_matching_jobs_only(fixture: StoreFixture) {
    let mut matching = Vec::new();
    for n in 0..9 {
        let job = NewJob { queue: queue(if n % 3 == 0 { "a" } else { "b" }), ..fixture.new_job() };
        let id = fixture.enqueue(job).await;
        if n % 3 == 0 {
            matching.insert(0, id);
        }
    }
    let filter = filter(|f| f.queue = Some(queue("a")));
    assert_eq!(pages(&fixture, &filter, 2).await, [matching[..2].to_vec(), matching[2..].to_vec()]);
}

async fn pages_have_no_gap_or_repeat_while_jobs_change(fixture: StoreFixture) {
    let existing: BTreeSet<JobId> = fixture.enqueue_some(12).await.into_iter().collect();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = PageRequest { after, limit: 2 };
        let page = fixture.store.list(Filter::default(), page).await.expect("list");
        seen.extend(page.items.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
        fixture.enqueue(fixture.new_job()).await;
        let job = fixture.claim(1).await.remove(0);
        fixture.settle(job.lease(), Verdict::Complete(None)).await;
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), existing);
}

async fn a_cursor_outlives_its_job(fixture: StoreFixture) {
    let older = fixture.enqueue(fixture.new_job()).await;
    let id = fixture.enqueue(fixture.own_job()).await;
    fixture.claim_and_settle(id, Verdict::DeadLetter(Reason::NotRetryable)).await;
    fixture.enqueue(fixture.new_job()).await;
    fixture.store.discard(vec![id]).await.expect("discard");
    let page = PageRequest { after: Some(Cursor::Job(id)), limit: 10 };
    let rest = fixture.store.list(Filter::default(), page).await.expect("list");
    assert_eq!(ids(&rest.items), [older]);
}

async fn a_cursor_of_another_list_is_refused(fixture: StoreFixture) {
    let page = PageRequest { after: Some(Cursor::Attempt(1)), limit: 10 };
    assert_eq!(rejected(fixture.store.list(Filter::default(), page).await).field, "cursor");
}

async fn a_limit_out_of_range_is_refused(fixture: StoreFixture) {
    for limit in [0, PAGE_ITEMS_MAX + 1] {
        let page = fixture.store.list(Filter::default(), PageRequest::first(limit)).await;
        assert_eq!(rejected(page).field, "limit");
    }
    let largest = fixture.store.list(Filter::default(), PageRequest::first(PAGE_ITEMS_MAX)).await;
    assert_eq!(largest.expect("list").items, []);
}

async fn searches_of_any_size_add_up_to_the_list(fixture: StoreFixture) {
    for state in State::ALL.into_iter().cycle().take(21) {
        fixture.in_state(state).await;
        fixture.clock.advance(ms(1));
    }
    fixture.enqueue(special(&fixture)).await;
    let mut filters: Vec<Filter> = State::ALL.map(|state| filter(|f| f.states = vec![state])).into();
    filters.extend([
        Filter::default(),
        filter(|f| f.states = vec![State::Pending, State::Retrying, State::Waiting]),
        filter(|f| f.states = vec![State::Running, State::Succeeded, State::Dead, State::Cancelled]),
        filter(|f| f.queue = Some(queue("mail"))),
        filter(|f| f.kind = Some(kind("nothing"))),
        filter(|f| f.key = Some(key("k"))),
        filter(|f| (f.key, f.tenant) = (Some(key("k")), Some(tenant("acme")))),
        filter(|f| (f.key, f.queue) = (Some(key("k")), Some(queue("nothing")))),
        filter(|f| (f.key, f.states) = (Some(key("k")), vec![State::Pending, State::Dead])),
        filter(|f| f.tenant = Some(tenant("acme"))),
        filter(|f| f.reason = Some(Reason::AttemptsExhausted)),
        filter(|f| (f.states, f.finished_from) = (vec![State::Dead], Some(fixture.now().before(ms(10))))),
        filter(|f| (f.states, f.created_before) = (vec![State::Pending], Some(fixture.now().before(ms(10))))),
        filter(|f| (f.states, f.queue) = (vec![State::Pending], Some(queue("mail")))),
    ]);
    for filter in filters {
        let expected = list(&fixture, filter.clone()).await;
        for (limit, most) in [(1, 1), (2, 3), (3, 2), (5, 100), (1000, 1), (1000, 1000)] {
            let found = search_all(&*fixture.store, &filter, limit, most).await.expect("search");
            assert_eq!(found, expected, "{filter:?} {limit} of {most}");
        }
    }
}

async fn a_search_examines_no_more_than_it_may(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(6).await;
    let none = filter(|f| f.tenant = Some(tenant("nobody")));
    let first = fixture.store.search(none.clone(), PageRequest::first(10), 4).await.expect("search");
    assert_eq!((first.page.items, first.examined), (Vec::new(), 4));
    assert_eq!(first.page.next, Some(Cursor::Job(enqueued[2])));
    let rest = PageRequest { after: first.page.next, limit: 10 };
    let rest = fixture.store.search(none, rest, 4).await.expect("search");
    assert_eq!((rest.page.items, rest.page.next, rest.examined), (Vec::new(), None, 2));
}

async fn a_search_accepts_the_same_pages_as_a_list(fixture: StoreFixture) {
    let wrong = PageRequest { after: Some(Cursor::Attempt(1)), limit: 10 };
    assert_eq!(rejected(fixture.store.search(Filter::default(), wrong, 10).await).field, "cursor");
    let zero = fixture.store.search(Filter::default(), PageRequest::first(0), 10).await;
    assert_eq!(rejected(zero).field, "limit");
}

fn special(fixture: &StoreFixture) -> NewJob {
    NewJob {
        tenant: tenant("acme"),
        queue: queue("mail"),
        kind: kind("send"),
        policy: policy("strict"),
        target: Some("https://a.test/hook?x=%41".to_owned()),
        ..fixture.new_job()
    }
    .with_key(key("k"))
}

fn filter(narrow: impl FnOnce(&mut Filter)) -> Filter {
    let mut filter = Filter::default();
    narrow(&mut filter);
    filter
}

async fn list(fixture: &StoreFixture, filter: Filter) -> Vec<Job> {
    fixture.store.list(filter, PageRequest::first(PAGE_ITEMS_MAX)).await.expect("list").items
}

async fn pages(fixture: &StoreFixture, filter: &Filter, limit: usize) -> Vec<Vec<JobId>> {
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = fixture.store.list(filter.clone(), PageRequest { after, limit }).await.expect("list");
        pages.push(ids(&page.items));
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}
