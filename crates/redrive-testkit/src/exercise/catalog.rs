//! The policy catalog: versions never change, and one of them is current.

use redrive_core::catalog::{RegisterResult, content, latest, put, put_inline, register};
use redrive_core::policy::presets;
use redrive_core::{Policy, PolicyName, PolicyRef};

use super::chapter;
use super::fixture::{StoreFixture, concurrently};

chapter!("catalog":
    a_new_name_is_created_in_version_one,
    the_same_content_is_unchanged,
    other_content_under_a_name_is_a_conflict,
    a_put_makes_a_new_version_and_keeps_the_old_one,
    the_same_put_changes_nothing,
    an_inline_policy_is_found_by_its_content,
    names_do_not_mix,
    sixteen_registrations_create_one_version,
    sixteen_puts_leave_whole_versions,
);

async fn a_new_name_is_created_in_version_one(fixture: StoreFixture) {
    let records = &*fixture.store;
    assert_eq!(latest(records, &name("n")).await.expect("latest"), None);
    let created = register(records, &name("n"), &presets::upload()).await.expect("register");
    let first = PolicyRef::first(name("n"));
    assert_eq!(created, RegisterResult::Created(first.clone()));
    assert_eq!(latest(records, &name("n")).await.expect("latest"), Some(first.clone()));
    assert_eq!(content(records, &first).await.expect("content"), Some(presets::upload()));
}

async fn the_same_content_is_unchanged(fixture: StoreFixture) {
    let records = &*fixture.store;
    register(records, &name("n"), &presets::once()).await.expect("register");
    let again = register(records, &name("n"), &presets::once()).await.expect("register");
    assert_eq!(again, RegisterResult::Existing(PolicyRef::first(name("n"))));
}

async fn other_content_under_a_name_is_a_conflict(fixture: StoreFixture) {
    let records = &*fixture.store;
    register(records, &name("n"), &presets::once()).await.expect("register");
    let other = register(records, &name("n"), &presets::upload()).await.expect("register");
    let first = PolicyRef::first(name("n"));
    assert_eq!(other, RegisterResult::Conflict(first.clone()));
    assert_eq!(content(records, &first).await.expect("content"), Some(presets::once()));
}

async fn a_put_makes_a_new_version_and_keeps_the_old_one(fixture: StoreFixture) {
    let records = &*fixture.store;
    let policies = [presets::once(), presets::upload(), presets::once()];
    let mut references = Vec::new();
    for policy in &policies {
        references.push(put(records, &name("n"), policy).await.expect("put"));
    }
    let texts: Vec<String> = references.iter().map(PolicyRef::to_string).collect();
    assert_eq!(texts, ["n@1", "n@2", "n@3"]);
    for (reference, policy) in references.iter().zip(&policies) {
        assert_eq!(content(records, reference).await.expect("content").as_ref(), Some(policy));
    }
    assert_eq!(latest(records, &name("n")).await.expect("latest").as_ref(), references.last());
}

async fn the_same_put_changes_nothing(fixture: StoreFixture) {
    let records = &*fixture.store;
    let first = put(records, &name("n"), &presets::once()).await.expect("put");
    let again = put(records, &name("n"), &presets::once()).await.expect("put");
    assert_eq!(first, again);
}

async fn an_inline_policy_is_found_by_its_content(fixture: StoreFixture) {
    let records = &*fixture.store;
    let reference = put_inline(records, &presets::quadratic(), redrive_core::Timestamp::default())
        .await
        .expect("put_inline");
    assert_eq!(
        put_inline(records, &presets::quadratic(), redrive_core::Timestamp::default())
            .await
            .expect("put_inline"),
        reference
    );
    assert_eq!(content(records, &reference).await.expect("content"), Some(presets::quadratic()));
    assert_eq!(content(records, &PolicyRef::inline(&presets::once())).await.expect("content"), None);
}

async fn names_do_not_mix(fixture: StoreFixture) {
    let records = &*fixture.store;
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

async fn sixteen_registrations_create_one_version(fixture: StoreFixture) {
    let answers = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move { register(&*store, &name("n"), &presets::once()).await.expect("register") }
    })
    .await;
    let first = PolicyRef::first(name("n"));
    let created = answers.iter().filter(|a| **a == RegisterResult::Created(first.clone())).count();
    let existing = answers.iter().filter(|a| **a == RegisterResult::Existing(first.clone())).count();
    assert_eq!((created, existing), (1, 15), "{answers:?}");
}

async fn sixteen_puts_leave_whole_versions(fixture: StoreFixture) {
    let references = concurrently(16, |n| {
        let store = fixture.store.clone();
        async move { put(&*store, &name("n"), &with_attempts(n)).await.expect("put") }
    })
    .await;
    for (n, reference) in references.iter().enumerate() {
        let found = content(&*fixture.store, reference).await.expect("content");
        assert_eq!(found, Some(with_attempts(n)), "{reference}");
    }
    let current = latest(&*fixture.store, &name("n")).await.expect("latest").expect("a version");
    assert!(references.contains(&current), "{current}");
}

fn with_attempts(n: usize) -> Policy {
    presets::upload().with_max_attempts(n as u32 + 1).expect("a legal number")
}

fn name(text: &str) -> PolicyName {
    PolicyName::new(text).expect("a legal name")
}
