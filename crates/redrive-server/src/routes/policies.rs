//! Retry policies: register, replace, show, remove, preview.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::catalog::{self, RegisterResult, RemoveResult};
use redrive_core::store::Filter;
use redrive_core::{Policy, PolicyName, PolicyRef};

use crate::api::Api;
use crate::auth::{AdminOfAll, Reader};
use crate::error::{Answer, Problem};
use crate::extract::{IfMatch, Json, PathParam, Query};
use crate::policies::parse_policy;
use crate::replay::ReplaySelection;
use redrive_wire::Code;
use redrive_wire::page::{Page, PageQuery};
use redrive_wire::policy::RetryPolicy;
use redrive_wire::preview::PolicyPreview;
use redrive_wire::replay::{Replay, ReplayRequest};

/// How many days back a replay looks for failures by default.
const REPLAY_DAYS: u32 = 7;
/// The maximum number of days that a replay can look back.
const REPLAY_DAYS_MAX: u32 = 30;

/// Register a policy.
///
/// A repeated registration with the same content changes nothing. With different content it is a conflict: use `PUT` for a new version.
#[utoipa::path(post, operation_id = "registerPolicy", path = "/v1/policies", tag = "policies", request_body = RetryPolicy,
    responses(
        (status = 201, description = "registered", body = RetryPolicy, headers(("Location" = String))),
        (status = 200, description = "the policy was registered before", body = RetryPolicy),
        (status = 409, description = "the policy has different content"),
    ))]
pub(super) async fn register(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    Json(wire): Json<RetryPolicy>,
) -> Answer<Response> {
    let id = wire.policy_id.as_deref().ok_or_else(|| Problem::invalid("policyId", "is missing"))?;
    let (name, policy) = (policy_name(id)?, parse_policy(&wire)?);
    let shown = RetryPolicy::show(&policy);
    match api.policies.register(&name, &policy).await? {
        RegisterResult::Created(created) => {
            let location = format!("/v1/policies/{name}");
            let headers = [(header::LOCATION, location)];
            Ok((StatusCode::CREATED, headers, Json(shown.with_name(&created))).into_response())
        }
        RegisterResult::Existing(existing) => Ok(Json(shown.with_name(&existing)).into_response()),
        RegisterResult::Conflict(other) => Err(conflict(&other)),
    }
}

/// Store a new version of a policy.
///
/// Existing tasks keep the version that they were created with. If the content is unchanged, there is no new version.
#[utoipa::path(put, operation_id = "putPolicy", path = "/v1/policies/{policyId}", tag = "policies", request_body = RetryPolicy,
    params(
        ("policyId" = String, Path, description = "the policy"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the version to replace, or *"),
    ),
    responses(
        (status = 200, description = "the current version", body = RetryPolicy, headers(("ETag" = String))),
        (status = 412, description = "If-Match does not name the current version"),
    ))]
pub(super) async fn put(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
    if_match: IfMatch,
    Json(wire): Json<RetryPolicy>,
) -> Answer<Response> {
    if wire.policy_id.as_ref().is_some_and(|named| *named != id) {
        return Err(Problem::invalid("policyId", "must be the policyId in the path, or absent"));
    }
    let (name, policy) = (policy_name(&id)?, parse_policy(&wire)?);
    let may_replace = |current: Option<&PolicyRef>| if_match.allows(current.map(etag).as_deref());
    let current = api.policies.put_if(&name, &policy, may_replace).await?.ok_or_else(IfMatch::failed)?;
    Ok(with_etag(&current, &policy))
}

/// The current version of a policy.
#[utoipa::path(get, operation_id = "getPolicy", path = "/v1/policies/{policyId}", tag = "policies",
    params(("policyId" = String, Path, description = "the policy")),
    responses((status = 200, description = "the policy", body = RetryPolicy, headers(("ETag" = String)))))]
pub(super) async fn get(
    _: Reader,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
) -> Answer<Response> {
    let current = api.policies.current(&id).await?.ok_or_else(|| Problem::not_found("policy", &id))?;
    Ok(with_etag(&current.reference, &current.policy))
}

/// The current version of each policy, by id.
#[utoipa::path(get, operation_id = "listPolicies", path = "/v1/policies", tag = "policies", params(PageQuery),
    responses((status = 200, description = "a page of policies", body = Page<RetryPolicy>)))]
pub(super) async fn list(
    _: Reader,
    State(api): State<Arc<Api>>,
    Query(page): Query<PageQuery>,
) -> Answer<Json<Page<RetryPolicy>>> {
    let (limit, after) = (page.limit()?, page.after()?);
    let current = catalog::list_current(&*api.store, after.as_deref(), limit + 1).await?;
    let mut items = Vec::with_capacity(current.len());
    for reference in current {
        if let Some(policy) = api.policies.content(&reference).await? {
            items.push(RetryPolicy::show(&policy).with_name(&reference));
        }
    }
    Ok(Json(Page::from_items(items, limit, |policy| policy.policy_id.as_deref().unwrap_or_default())))
}

/// Remove a policy that no live task uses.
#[utoipa::path(delete, operation_id = "deletePolicy", path = "/v1/policies/{policyId}", tag = "policies",
    params(
        ("policyId" = String, Path, description = "the policy"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the version to remove, or *"),
    ),
    responses(
        (status = 204, description = "removed"),
        (status = 409, description = "live tasks use it"),
        (status = 412, description = "If-Match does not name the current version"),
    ))]
pub(super) async fn delete(
    _: AdminOfAll,
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam<String>,
    if_match: IfMatch,
) -> Answer<StatusCode> {
    if id == catalog::DEFAULT {
        let detail = "tasks without a policyId use the default policy, so it cannot be removed; PUT replaces its content";
        return Err(Problem::new(Code::PolicyInUse, detail));
    }
    let name = PolicyName::new(id.as_str()).map_err(|_| Problem::not_found("policy", &id))?;
    if api.policies.is_in_use(&name).await? {
        let detail = "tasks that have not ended use this policy; wait for them or cancel them first";
        return Err(Problem::new(Code::PolicyInUse, detail));
    }
    match api.policies.remove_if(&name, |current| if_match.allows(Some(&etag(current)))).await? {
        RemoveResult::Removed => Ok(StatusCode::NO_CONTENT),
        RemoveResult::Refused => Err(IfMatch::failed()),
        RemoveResult::NotFound => Err(Problem::not_found("policy", &id)),
    }
}

/// Preview the waits of a policy.
#[utoipa::path(post, operation_id = "previewPolicy", path = "/v1/policies/preview", tag = "policies", request_body = RetryPolicy,
    responses((status = 200, description = "the waits before each retry", body = PolicyPreview)))]
pub(super) async fn preview(_: Reader, Json(wire): Json<RetryPolicy>) -> Answer<Json<PolicyPreview>> {
    wire.policy_id.as_deref().map(policy_name).transpose()?;
    Ok(Json(PolicyPreview::from(&parse_policy(&wire)?.preview())))
}

/// Replay recent failures under another policy.
///
/// The replay simulates a sample of the tasks that needed more than one attempt. It assumes that a target works from the time of its
/// first success on, and never if no attempt succeeded.
#[utoipa::path(post, operation_id = "replayPolicy", path = "/v1/policies/replay", tag = "policies", request_body = ReplayRequest,
    responses((status = 200, description = "the results under both policies", body = Replay)))]
pub(super) async fn replay(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Json(request): Json<ReplayRequest>,
) -> Answer<Json<Replay>> {
    let policy = parse_policy(&request.policy).map_err(|problem| problem.within("policy"))?;
    let days = request.days.unwrap_or(REPLAY_DAYS);
    if !(1..=REPLAY_DAYS_MAX).contains(&days) {
        return Err(Problem::invalid("days", format!("must be from 1 to {REPLAY_DAYS_MAX}, is {days}")));
    }
    let policy_name = request.policy_id.as_deref().map(PolicyName::new).transpose()?;
    let filter = Filter { tenant: caller.tenant, policy_name, ..Filter::default() };
    Ok(Json(api.replay(&policy, ReplaySelection { filter, days }).await?))
}

/// The current version of a policy, with its ETag.
fn with_etag(current: &PolicyRef, policy: &Policy) -> Response {
    ([(header::ETAG, etag(current))], Json(RetryPolicy::show(policy).with_name(current))).into_response()
}

fn etag(current: &PolicyRef) -> String {
    format!("\"{}\"", current.version)
}

/// A name that is safe in a path, a label and a log line.
fn policy_name(id: &str) -> Answer<PolicyName> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if id.bytes().all(legal) && id.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
        return Ok(PolicyName::new(id)?);
    }
    let detail =
        "must contain only letters, digits, \".\", \"_\" and \"-\", and start with a letter or digit";
    Err(Problem::invalid("policyId", detail))
}

fn conflict(other: &PolicyRef) -> Problem {
    let detail = format!(
        "the policy {} exists with different content, in version {}; PUT /v1/policies/{} creates a new version",
        other.name, other.version, other.name
    );
    Problem::new(Code::PolicyConflict, detail)
}
