//! The catalog of policies over records: versions that never change, and one that is current.

use redrive_core::catalog::{Registered, content, latest, put, put_inline, register};
use redrive_core::policy::presets;
use redrive_core::{Policy, PolicyName, PolicyRef};

use super::chapter;
use super::stage::{Stage, at_once};

chapter!("catalog":
    a_new_name_is_created_in_version_one,
    the_same_content_is_there_already,
    other_content_under_a_name_is_a_conflict,
    a_put_makes_a_new_version_and_keeps_the_old_one,
    the_same_put_changes_nothing,
    an_inline_policy_is_found_by_its_content,
    names_do_not_mix,
    sixteen_registrations_create_one_version,
    sixteen_puts_leave_whole_versions,
);

async fn a_new_name_is_created_in_version_one(stage: Stage) {
    let records = &*stage.store;
    assert_eq!(latest(records, &name("n")).await.expect("latest"), None);
    let created = register(records, &name("n"), &presets::upload()).await.expect("register");
    let first = PolicyRef::first(name("n"));
    assert_eq!(created, Registered::Created(first.clone()));
    assert_eq!(latest(records, &name("n")).await.expect("latest"), Some(first.clone()));
    assert_eq!(content(records, &first).await.expect("content"), Some(presets::upload()));
}

async fn the_same_content_is_there_already(stage: Stage) {
    let records = &*stage.store;
    register(records, &name("n"), &presets::once()).await.expect("register");
    let again = register(records, &name("n"), &presets::once()).await.expect("register");
    assert_eq!(again, Registered::Existing(PolicyRef::first(name("n"))));
}

async fn other_content_under_a_name_is_a_conflict(stage: Stage) {
    let records = &*stage.store;
    register(records, &name("n"), &presets::once()).await.expect("register");
    let other = register(records, &name("n"), &presets::upload()).await.expect("register");
    let first = PolicyRef::first(name("n"));
    assert_eq!(other, Registered::Conflict(first.clone()));
    assert_eq!(content(records, &first).await.expect("content"), Some(presets::once()));
}

async fn a_put_makes_a_new_version_and_keeps_the_old_one(stage: Stage) {
    let records = &*stage.store;
    let policies = [presets::once(), presets::upload(), presets::once()];
    let mut made = Vec::new();
    for policy in &policies {
        made.push(put(records, &name("n"), policy).await.expect("put"));
    }
    let texts: Vec<String> = made.iter().map(PolicyRef::to_string).collect();
    assert_eq!(texts, ["n@1", "n@2", "n@3"]);
    for (reference, policy) in made.iter().zip(&policies) {
        assert_eq!(content(records, reference).await.expect("content").as_ref(), Some(policy));
    }
    assert_eq!(latest(records, &name("n")).await.expect("latest").as_ref(), made.last());
}

async fn the_same_put_changes_nothing(stage: Stage) {
    let records = &*stage.store;
    let first = put(records, &name("n"), &presets::once()).await.expect("put");
    let again = put(records, &name("n"), &presets::once()).await.expect("put");
    assert_eq!(first, again);
}

async fn an_inline_policy_is_found_by_its_content(stage: Stage) {
    let records = &*stage.store;
    let reference = put_inline(records, &presets::quadratic()).await.expect("put_inline");
    assert_eq!(put_inline(records, &presets::quadratic()).await.expect("put_inline"), reference);
    assert_eq!(content(records, &reference).await.expect("content"), Some(presets::quadratic()));
    assert_eq!(content(records, &PolicyRef::inline(&presets::once())).await.expect("content"), None);
}

async fn names_do_not_mix(stage: Stage) {
    let records = &*stage.store;
    for (text, policy) in [("n", presets::once()), ("n@1", presets::upload()), ("ñ 🦀", presets::standard())]
    {
        put(records, &name(text), &policy).await.expect("put");
    }
    for (text, policy) in [("n", presets::once()), ("n@1", presets::upload()), ("ñ 🦀", presets::standard())]
    {
        let reference = latest(records, &name(text)).await.expect("latest").expect("a version");
        assert_eq!(content(records, &reference).await.expect("content"), Some(policy));
    }
}

async fn sixteen_registrations_create_one_version(stage: Stage) {
    let answers = at_once(16, |_| {
        let store = stage.store.clone();
        async move { register(&*store, &name("n"), &presets::once()).await.expect("register") }
    })
    .await;
    let first = PolicyRef::first(name("n"));
    let created = answers.iter().filter(|a| **a == Registered::Created(first.clone())).count();
    let existing = answers.iter().filter(|a| **a == Registered::Existing(first.clone())).count();
    assert_eq!((created, existing), (1, 15), "{answers:?}");
}

async fn sixteen_puts_leave_whole_versions(stage: Stage) {
    let made = at_once(16, |n| {
        let store = stage.store.clone();
        async move { put(&*store, &name("n"), &numbered(n)).await.expect("put") }
    })
    .await;
    for (n, reference) in made.iter().enumerate() {
        let found = content(&*stage.store, reference).await.expect("content");
        assert_eq!(found, Some(numbered(n)), "{reference}");
    }
    let current = latest(&*stage.store, &name("n")).await.expect("latest").expect("a version");
    assert!(made.contains(&current), "{current}");
}

fn numbered(n: usize) -> Policy {
    presets::upload().with_max_attempts(n as u32 + 1).expect("a legal number")
}

fn name(text: &str) -> PolicyName {
    PolicyName::new(text).expect("a legal name")
}
