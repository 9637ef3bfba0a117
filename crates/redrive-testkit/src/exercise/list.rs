//! List: newest first, narrowed as asked, page by page without gap or double.

use std::collections::BTreeSet;

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, Filter, PageRequest};
use redrive_core::{Job, JobId, NewJob, Reason, State, Verdict};

use super::chapter;
use super::stage::{Stage, ids, key, kind, ms, policy, queue, refused, tenant};
use crate::look_through::look_through;

chapter!("list":
    shows_the_newest_first_with_every_column,
    sorts_by_id_and_not_by_arrival,
    narrows_by_each_part_of_a_filter,
    narrows_by_all_parts_together,
    narrows_by_creation_to_the_millisecond,
    pages_follow_each_other,
    the_last_page_says_so,
    pages_of_a_filter_hold_matching_jobs_only,
    pages_have_no_gap_or_double_while_jobs_come_and_change,
    a_cursor_outlives_its_job,
    a_cursor_of_another_list_is_refused,
    a_limit_out_of_range_is_refused,
    looks_of_any_size_add_up_to_the_list,
    a_look_sees_no_more_than_it_may,
    a_look_takes_what_a_list_takes,
);

async fn shows_the_newest_first_with_every_column(stage: Stage) {
    let mut expected: Vec<Job> = Vec::new();
    for state in State::ALL {
        let job = stage.in_state(state).await;
        stage.clock.advance(ms(1));
        expected.insert(0, job);
    }
    assert_eq!(list(&stage, Filter::default()).await, expected);
}

async fn sorts_by_id_and_not_by_arrival(stage: Stage) {
    let mut jobs: Vec<NewJob> = (0..6).map(|_| stage.new_job()).collect();
    jobs.swap(0, 4);
    jobs.swap(2, 5);
    let mut expected: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    expected.sort_unstable();
    expected.reverse();
    for job in jobs {
        stage.enqueue(job).await;
    }
    assert_eq!(pages(&stage, &Filter::default(), 4).await.concat(), expected);
}

async fn narrows_by_each_part_of_a_filter(stage: Stage) {
    let plain = stage.enqueue(stage.own_job()).await;
    let special = stage.enqueue(special(&stage)).await;
    let plain_queue = stage.job(plain).await.queue;
    stage.lead(plain, State::Dead).await;
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
        (filter(|f| f.subject = Some("https://a.test/".to_owned())), vec![special]),
        (filter(|f| f.subject = Some("https://A.test/".to_owned())), vec![]),
        (filter(|f| f.subject = Some("https://%".to_owned())), vec![]),
        (filter(|f| f.reason = Some(Reason::AttemptsExhausted)), vec![plain]),
        (filter(|f| f.reason = Some(Reason::BodyLost)), vec![]),
        (filter(|f| f.finished_from = Some(stage.now())), vec![plain]),
        (filter(|f| f.finished_from = Some(stage.now().after(ms(1)))), vec![]),
        (filter(|f| f.finished_before = Some(stage.now().after(ms(1)))), vec![plain]),
        (filter(|f| f.finished_before = Some(stage.now())), vec![]),
        (filter(|f| f.key = Some(key("k"))), vec![special]),
        (filter(|f| f.key = Some(key("K"))), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(ids(&list(&stage, filter.clone()).await), expected, "{filter:?}");
    }
}

async fn narrows_by_all_parts_together(stage: Stage) {
    let id = stage.enqueue(special(&stage)).await;
    let exact = Filter {
        states: vec![State::Dead, State::Pending],
        tenant: Some(tenant("acme")),
        queue: Some(queue("mail")),
        kind: Some(kind("send")),
        policy: Some(policy("strict")),
        policy_name: Some("strict".parse().expect("a name")),
        subject: Some("https://a.test/hook".to_owned()),
        reason: None,
        finished_from: None,
        finished_before: None,
        key: Some(key("k")),
        created_from: Some(stage.now()),
        created_before: Some(stage.now().after(ms(1))),
    };
    assert_eq!(ids(&list(&stage, exact.clone()).await), [id]);
    let misses = [
        Filter { states: vec![State::Dead], ..exact.clone() },
        Filter { tenant: Some(tenant("other")), ..exact.clone() },
        Filter { queue: Some(queue("other")), ..exact.clone() },
        Filter { kind: Some(kind("other")), ..exact.clone() },
        Filter { policy: Some(policy("other")), ..exact.clone() },
        Filter { key: Some(key("other")), ..exact.clone() },
        Filter { subject: Some("https://b".to_owned()), ..exact.clone() },
        Filter { reason: Some(Reason::NotRetryable), ..exact.clone() },
        Filter { finished_from: Some(stage.now()), ..exact.clone() },
        Filter { created_from: Some(stage.now().after(ms(1))), ..exact.clone() },
        Filter { created_before: Some(stage.now()), ..exact },
    ];
    for miss in misses {
        assert_eq!(list(&stage, miss.clone()).await, [], "{miss:?}");
    }
}

async fn narrows_by_creation_to_the_millisecond(stage: Stage) {
    let mut made = Vec::new();
    let start = stage.now();
    for _ in 0..4 {
        made.push(stage.enqueue(stage.new_job()).await);
        stage.clock.advance(ms(1));
    }
    let between = Filter {
        created_from: Some(start.after(ms(1))),
        created_before: Some(start.after(ms(3))),
        ..Filter::default()
    };
    assert_eq!(ids(&list(&stage, between).await), [made[2], made[1]]);
}

async fn pages_follow_each_other(stage: Stage) {
    let mut made = stage.enqueue_some(10).await;
    made.reverse();
    for limit in [1, 3, 5, 10, 11] {
        let pages = pages(&stage, &Filter::default(), limit).await;
        assert!(pages[..pages.len() - 1].iter().all(|page| page.len() == limit), "{limit}");
        assert_eq!(pages.concat(), made, "{limit}");
    }
}

async fn the_last_page_says_so(stage: Stage) {
    let empty = stage.store.list(Filter::default(), PageRequest::first(5)).await.expect("list");
    assert_eq!((empty.items, empty.next), (Vec::new(), None));
    let made = stage.enqueue_some(4).await;
    let exact = stage.store.list(Filter::default(), PageRequest::first(4)).await.expect("list");
    assert_eq!((exact.items.len(), exact.next), (4, None));
    let cut = stage.store.list(Filter::default(), PageRequest::first(3)).await.expect("list");
    assert_eq!((cut.items.len(), cut.next), (3, Some(Cursor::Job(made[1]))));
}

async fn pages_of_a_filter_hold_matching_jobs_only(stage: Stage) {
    let mut wanted = Vec::new();
    for n in 0..9 {
        let job = NewJob { queue: queue(if n % 3 == 0 { "a" } else { "b" }), ..stage.new_job() };
        let id = stage.enqueue(job).await;
        if n % 3 == 0 {
            wanted.insert(0, id);
        }
    }
    let filter = filter(|f| f.queue = Some(queue("a")));
    assert_eq!(pages(&stage, &filter, 2).await, [wanted[..2].to_vec(), wanted[2..].to_vec()]);
}

async fn pages_have_no_gap_or_double_while_jobs_come_and_change(stage: Stage) {
    let there: BTreeSet<JobId> = stage.enqueue_some(12).await.into_iter().collect();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = PageRequest { after, limit: 2 };
        let page = stage.store.list(Filter::default(), page).await.expect("list");
        seen.extend(page.items.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
        stage.enqueue(stage.new_job()).await;
        let job = stage.claim(1).await.remove(0);
        stage.settle(job.lease(), Verdict::Complete(None)).await;
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), there);
}

async fn a_cursor_outlives_its_job(stage: Stage) {
    let older = stage.enqueue(stage.new_job()).await;
    let id = stage.enqueue(stage.own_job()).await;
    stage.claim_and_settle(id, Verdict::DeadLetter(Reason::NotRetryable)).await;
    stage.enqueue(stage.new_job()).await;
    stage.store.discard(vec![id]).await.expect("discard");
    let page = PageRequest { after: Some(Cursor::Job(id)), limit: 10 };
    let rest = stage.store.list(Filter::default(), page).await.expect("list");
    assert_eq!(ids(&rest.items), [older]);
}

async fn a_cursor_of_another_list_is_refused(stage: Stage) {
    let page = PageRequest { after: Some(Cursor::Attempt(1)), limit: 10 };
    assert_eq!(refused(stage.store.list(Filter::default(), page).await).field, "cursor");
}

async fn a_limit_out_of_range_is_refused(stage: Stage) {
    for limit in [0, PAGE_ITEMS_MAX + 1] {
        let page = stage.store.list(Filter::default(), PageRequest::first(limit)).await;
        assert_eq!(refused(page).field, "limit");
    }
    let largest = stage.store.list(Filter::default(), PageRequest::first(PAGE_ITEMS_MAX)).await;
    assert_eq!(largest.expect("list").items, []);
}

async fn looks_of_any_size_add_up_to_the_list(stage: Stage) {
    for state in State::ALL.into_iter().cycle().take(21) {
        stage.in_state(state).await;
        stage.clock.advance(ms(1));
    }
    stage.enqueue(special(&stage)).await;
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
        filter(|f| (f.states, f.finished_from) = (vec![State::Dead], Some(stage.now().before(ms(10))))),
        filter(|f| (f.states, f.created_before) = (vec![State::Pending], Some(stage.now().before(ms(10))))),
        filter(|f| (f.states, f.queue) = (vec![State::Pending], Some(queue("mail")))),
    ]);
    for filter in filters {
        let expected = list(&stage, filter.clone()).await;
        for (limit, most) in [(1, 1), (2, 3), (3, 2), (5, 100), (1000, 1), (1000, 1000)] {
            let found = look_through(&*stage.store, &filter, limit, most).await.expect("look");
            assert_eq!(found, expected, "{filter:?} {limit} of {most}");
        }
    }
}

async fn a_look_sees_no_more_than_it_may(stage: Stage) {
    let made = stage.enqueue_some(6).await;
    let none = filter(|f| f.tenant = Some(tenant("nobody")));
    let first = stage.store.look(none.clone(), PageRequest::first(10), 4).await.expect("look");
    assert_eq!((first.page.items, first.looked_at), (Vec::new(), 4));
    assert_eq!(first.page.next, Some(Cursor::Job(made[2])));
    let rest = PageRequest { after: first.page.next, limit: 10 };
    let rest = stage.store.look(none, rest, 4).await.expect("look");
    assert_eq!((rest.page.items, rest.page.next, rest.looked_at), (Vec::new(), None, 2));
}

async fn a_look_takes_what_a_list_takes(stage: Stage) {
    let wrong = PageRequest { after: Some(Cursor::Attempt(1)), limit: 10 };
    assert_eq!(refused(stage.store.look(Filter::default(), wrong, 10).await).field, "cursor");
    let zero = stage.store.look(Filter::default(), PageRequest::first(0), 10).await;
    assert_eq!(refused(zero).field, "limit");
}

fn special(stage: &Stage) -> NewJob {
    NewJob {
        tenant: tenant("acme"),
        queue: queue("mail"),
        kind: kind("send"),
        policy: policy("strict"),
        subject: Some("https://a.test/hook?x=%41".to_owned()),
        ..stage.new_job()
    }
    .with_key(key("k"))
}

fn filter(narrow: impl FnOnce(&mut Filter)) -> Filter {
    let mut filter = Filter::default();
    narrow(&mut filter);
    filter
}

async fn list(stage: &Stage, filter: Filter) -> Vec<Job> {
    stage.store.list(filter, PageRequest::first(PAGE_ITEMS_MAX)).await.expect("list").items
}

async fn pages(stage: &Stage, filter: &Filter, limit: usize) -> Vec<Vec<JobId>> {
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = stage.store.list(filter.clone(), PageRequest { after, limit }).await.expect("list");
        pages.push(ids(&page.items));
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}
