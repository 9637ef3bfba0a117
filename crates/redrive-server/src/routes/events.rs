//! A stream of state changes.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use redrive_core::JobId;

use crate::api::Api;
use crate::auth::Reader;
use crate::error::{Answer, Problem};
use crate::extract::Query;
use redrive_wire::event::{EventsQuery, TaskEvent};

/// The state changes that this node makes, as server-sent events.
///
/// The `event` of each message is the new state, and its `data` is a task event. A reader that is too slow receives `lagged` and misses
/// some events. The stream ends about a second after its API key is revoked or its session ends.
#[utoipa::path(get, operation_id = "listenToEvents", path = "/v1/events", tag = "events", params(EventsQuery),
    responses((status = 200, description = "a stream of events", body = TaskEvent, content_type = "text/event-stream")))]
pub(super) async fn listen(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<EventsQuery>,
) -> Answer<impl IntoResponse> {
    let task = query.task_id.as_deref().map(str::parse::<JobId>).transpose();
    let task = task.map_err(|invalid| Problem::invalid("taskId", invalid.problem))?;
    Ok(api.events.subscribe(caller, task, api.keyring.clone()))
}
