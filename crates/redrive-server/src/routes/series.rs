//! Counts over time, for charts.

use std::sync::Arc;

use axum::extract::State;

use crate::api::Api;
use crate::auth::{Reader, ReaderOfAll};
use crate::error::Answer;
use crate::extract::{Json, Query};
use redrive_wire::series::{OriginSeries, OriginSeriesQuery, Series, SeriesQuery};

/// The attempts of all nodes and the jobs in the store, over the last hour or day.
///
/// The newest minute of other nodes may be missing. The series covers all tenants: an API key that is bound to a tenant gets no points.
#[utoipa::path(get, operation_id = "getSeries", path = "/v1/series", tag = "service", params(SeriesQuery),
    responses((status = 200, description = "the series", body = Series)))]
pub(super) async fn of_service(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<SeriesQuery>,
) -> Answer<Json<Series>> {
    let span = query.span.unwrap_or_default();
    let points = match caller.tenant {
        None => api.series(span, api.store.stats().await?.now).await?,
        Some(_) => Vec::new(),
    };
    Ok(Json(Series { step_ms: span.step_ms(), points }))
}

/// The gate of an origin over the last hour or day, on all nodes.
#[utoipa::path(get, operation_id = "getOriginSeries", path = "/v1/origins/series", tag = "origins", params(OriginSeriesQuery),
    responses((status = 200, description = "the series", body = OriginSeries)))]
pub(super) async fn of_origin(
    _: ReaderOfAll,
    State(api): State<Arc<Api>>,
    Query(query): Query<OriginSeriesQuery>,
) -> Answer<Json<OriginSeries>> {
    let span = query.span.unwrap_or_default();
    let now = api.store.stats().await?.now;
    let points = api.origin_series(&query.origin, span, now).await?;
    Ok(Json(OriginSeries { step_ms: span.step_ms(), points }))
}
