//! Retry policies: register, edit, look up, remove, preview.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::catalog::{self, Registered};
use redrive_core::store::Filter;
use redrive_core::{PolicyName, PolicyRef};

use crate::api::Api;
use crate::auth::{AdminOfAll, Reader};
use crate::error::{Answer, Code, Problem};
use crate::extract::{Json, Named, Query};
use crate::replay::Failures;
use crate::wire::page::{Page, PageQuery};
use crate::wire::policy::RetryPolicy;
use crate::wire::preview::PolicyPreview;
use crate::wire::replay::{Replay, ReplayRequest};

/// How far back failures are looked for when the caller does not say.
const REPLAY_DAYS: u32 = 7;
/// How far back they may be looked for.
const REPLAY_DAYS_MAX: u32 = 30;

/// Register a policy.
///
/// The same again changes nothing. The id with other content is a conflict: `PUT` makes a new version.
#[utoipa::path(post, operation_id = "registerPolicy", path = "/retry-policies", tag = "policies", request_body = RetryPolicy,
    responses(
        (status = 201, description = "registered", body = RetryPolicy, headers(("Location" = String))),
        (status = 200, description = "the same was registered before", body = RetryPolicy),
        (status = 409, description = "the id has other content"),
    ))]
pub(super) async fn register(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Json(wire): Json<RetryPolicy>,
) -> Answer<Response> {
    let id = wire.policy_id.as_deref().ok_or_else(|| Problem::invalid("policyId", "is missing"))?;
    let (name, policy) = (policy_name(id)?, wire.to_policy()?);
    let shown = RetryPolicy::show(&policy);
    match api.policies.register(&name, &policy).await? {
        Registered::Created(created) => {
            let location = format!("/retry-policies/{name}");
            let headers = [(header::LOCATION, location)];
            Ok((StatusCode::CREATED, headers, Json(shown.named(&created))).into_response())
        }
        Registered::Existing(existing) => Ok(Json(shown.named(&existing)).into_response()),
        Registered::Conflict(other) => Err(conflict(&other)),
    }
}

/// Make a new version of a policy.
///
/// Tasks that exist keep the version they were created with. The same content again makes no version.
#[utoipa::path(put, operation_id = "putPolicy", path = "/retry-policies/{policyId}", tag = "policies", request_body = RetryPolicy,
    params(("policyId" = String, Path, description = "the policy")),
    responses((status = 200, description = "the current version", body = RetryPolicy)))]
pub(super) async fn put(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
    Json(wire): Json<RetryPolicy>,
) -> Answer<Json<RetryPolicy>> {
    if wire.policy_id.as_ref().is_some_and(|named| *named != id) {
        return Err(Problem::invalid("policyId", "is not the one in the path; leave it out"));
    }
    let (name, policy) = (policy_name(&id)?, wire.to_policy()?);
    let current = api.policies.put(&name, &policy).await?;
    Ok(Json(RetryPolicy::show(&policy).named(&current)))
}

/// The current version of a policy.
#[utoipa::path(get, operation_id = "getPolicy", path = "/retry-policies/{policyId}", tag = "policies",
    params(("policyId" = String, Path, description = "the policy")),
    responses((status = 200, description = "the policy", body = RetryPolicy)))]
pub(super) async fn get(
    _: Reader,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
) -> Answer<Json<RetryPolicy>> {
    let current = api.policies.current(&id).await?.ok_or_else(|| Problem::not_found("policy", &id))?;
    Ok(Json(RetryPolicy::show(&current.policy).named(&current.reference)))
}

/// Every policy, by id.
#[utoipa::path(get, operation_id = "listPolicies", path = "/retry-policies", tag = "policies", params(PageQuery),
    responses((status = 200, description = "a page of policies", body = Page<RetryPolicy>)))]
pub(super) async fn list(
    _: Reader,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<RetryPolicy>>> {
    let (limit, after) = (page.limit()?, page.after()?);
    let current = catalog::current_all(&*api.store, after.as_deref(), limit + 1).await?;
    let mut items = Vec::with_capacity(current.len());
    for reference in current {
        if let Some(policy) = api.policies.content(&reference).await? {
            items.push(RetryPolicy::show(&policy).named(&reference));
        }
    }
    Ok(Json(Page::cut(items, limit, |policy| policy.policy_id.as_deref().unwrap_or_default())))
}

/// Remove a policy that no live task uses.
#[utoipa::path(delete, operation_id = "deletePolicy", path = "/retry-policies/{policyId}", tag = "policies",
    params(("policyId" = String, Path, description = "the policy")),
    responses(
        (status = 204, description = "removed"),
        (status = 409, description = "live tasks use it"),
    ))]
pub(super) async fn delete(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Named(id): Named<String>,
) -> Answer<StatusCode> {
    if id == catalog::DEFAULT {
        let detail = "tasks that name no policy use the default; PUT gives it other content";
        return Err(Problem::new(Code::PolicyInUse, detail));
    }
    let name = PolicyName::new(id.as_str()).map_err(|_| Problem::not_found("policy", &id))?;
    if api.policies.is_in_use(&name).await? {
        let detail = "tasks that have not ended use it; wait for them or cancel them first";
        return Err(Problem::new(Code::PolicyInUse, detail));
    }
    if api.policies.remove(&name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found("policy", &id))
    }
}

/// The schedule that a policy would give.
#[utoipa::path(post, operation_id = "previewPolicy", path = "/retry-policies/preview", tag = "policies", request_body = RetryPolicy,
    responses((status = 200, description = "the waits before each retry", body = PolicyPreview)))]
pub(super) async fn preview(_: Reader, Json(wire): Json<RetryPolicy>) -> Answer<Json<PolicyPreview>> {
    Ok(Json(PolicyPreview::from(&wire.to_policy()?.preview())))
}

/// What another policy would have made of the failures of the last days.
///
/// Tasks that have ended and needed more than one attempt, a bounded sample of them, are driven again on paper: the target
/// works from the instant at which it really answered, or never if it never did.
#[utoipa::path(post, operation_id = "replayPolicy", path = "/retry-policies/replay", tag = "policies", request_body = ReplayRequest,
    responses((status = 200, description = "what became of them, and what would have", body = Replay)))]
pub(super) async fn replay(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Json(request): Json<ReplayRequest>,
) -> Answer<Json<Replay>> {
    let policy = request.policy.to_policy().map_err(|problem| problem.within("policy"))?;
    let days = request.days.unwrap_or(REPLAY_DAYS);
    if !(1..=REPLAY_DAYS_MAX).contains(&days) {
        return Err(Problem::invalid("days", format!("must be from 1 to {REPLAY_DAYS_MAX}, is {days}")));
    }
    let policy_name = request.policy_id.as_deref().map(PolicyName::new).transpose()?;
    let filter = Filter { tenant: caller.tenant, policy_name, ..Filter::default() };
    Ok(Json(api.replay(&policy, Failures { filter, days }).await?))
}

/// A name that is safe in a path, a label and a log line.
fn policy_name(id: &str) -> Answer<PolicyName> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if id.bytes().all(legal) && id.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
        return Ok(PolicyName::new(id)?);
    }
    let detail = "must be letters, digits, \".\", \"_\" and \"-\", a letter or digit first";
    Err(Problem::invalid("policyId", detail))
}

fn conflict(other: &PolicyRef) -> Problem {
    let detail = format!(
        "{} has other content, in version {}; PUT /retry-policies/{} makes a new version",
        other.name, other.version, other.name
    );
    Problem::new(Code::PolicyConflict, detail)
}
