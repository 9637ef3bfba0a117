//! Changes of state as they happen.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use redrive_core::JobId;

use crate::api::Api;
use crate::auth::Reader;
use crate::error::{Answer, Problem};
use crate::extract::Query;
use crate::wire::event::{EventsQuery, TaskEvent};

/// Server-sent events of what this node does.
///
/// Each has the new status as its `event` and a task event as its `data`. A reader that is too slow gets `lagged` and
/// goes on with what is new. The stream ends about a second after the key or session it was opened with.
#[utoipa::path(get, operation_id = "listenToEvents", path = "/events", tag = "events", params(EventsQuery),
    responses((status = 200, description = "events without end", body = TaskEvent, content_type = "text/event-stream")))]
pub(super) async fn listen(
    Reader(caller): Reader,
    State(api): State<Arc<Api>>,
    Query(query): Query<EventsQuery>,
) -> Answer<impl IntoResponse> {
    let task = query.task_id.as_deref().map(str::parse::<JobId>).transpose();
    let task = task.map_err(|invalid| Problem::invalid("taskId", invalid.problem))?;
    Ok(api.events.listen(caller, task, api.keyring.clone()))
}
