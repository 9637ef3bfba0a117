//! Creates a paste in one transaction on the database, without a call to the object store.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::code::{AliasError, Code};
use crate::content::{CONTENT_BYTES_MAX, Content, ContentError};
use crate::database::{CreateResult, NewPaste};
use crate::site::Site;
use crate::token::{self, OwnerHash};
use crate::upload::Upload;
use crate::wire::{CreateRequest, CreatedPaste, Envelope, ErrorResponse, timestamp_text};

/// The largest request body. JSON escapes a control character with six bytes.
const REQUEST_BYTES_MAX: usize = 6 * CONTENT_BYTES_MAX + 4 * 1024;
/// The most bytes of requests in memory at once.
const BUFFERED_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;
/// How long a request body may take to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The most random codes that are tried. Collisions are so rare that more would not help.
const CODE_TRIES: usize = 10;

/// The site, and the limit of request bodies in memory.
pub(super) struct AppState {
    pub(super) site: Arc<Site>,
    body_bytes: Semaphore,
}

impl AppState {
    pub(super) fn new(site: Arc<Site>) -> Self {
        Self { site, body_bytes: Semaphore::new(BUFFERED_BYTES_MAX) }
    }
}

/// `POST /api/v1/pastes`.
pub(super) async fn create(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<(StatusCode, Json<Envelope<CreatedPaste>>), ErrorResponse> {
    let (parts, body) = request.into_parts();
    let _permit = reserve_bytes(&app, &parts.headers).await?;
    let read = tokio::time::timeout(REQUEST_TIMEOUT, read_body(body)).await;
    let too_slow = |_| {
        ErrorResponse::new(
            StatusCode::REQUEST_TIMEOUT,
            "TOO_SLOW",
            "the body of the request took too long to arrive",
        )
    };
    let body = read.map_err(too_slow)??;
    let paste: CreateRequest =
        serde_json::from_slice(&body).map_err(|error| ErrorResponse::bad_request("MALFORMED", error))?;
    drop(body);
    let created = add(&app.site, paste).await?;
    Ok((StatusCode::CREATED, Json(Envelope { data: Some(created), error: None })))
}

/// Waits until the body of the request fits into memory.
async fn reserve_bytes<'a>(
    app: &'a AppState,
    headers: &HeaderMap,
) -> Result<SemaphorePermit<'a>, ErrorResponse> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(REQUEST_BYTES_MAX);
    if length > REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    let permits = u32::try_from(length).unwrap_or(u32::MAX);
    app.body_bytes.acquire_many(permits).await.map_err(|_| ErrorResponse::unavailable(Duration::from_secs(1)))
}

async fn read_body(mut body: Body) -> Result<Bytes, ErrorResponse> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ErrorResponse::bad_request("MALFORMED", error))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > REQUEST_BYTES_MAX {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn too_large() -> ErrorResponse {
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", ContentError::TooLarge)
}

async fn add(site: &Site, paste: CreateRequest) -> Result<CreatedPaste, ErrorResponse> {
    if ![1, 7, 30].contains(&paste.expiry_days) {
        return Err(ErrorResponse::bad_request("EXPIRY", "expiryDays must be 1, 7 or 30"));
    }
    let alias = paste.custom_alias.filter(|alias| !alias.is_empty());
    let alias = alias.as_deref().map(Code::alias).transpose().map_err(|error| match error {
        AliasError::Malformed => ErrorResponse::bad_request("ALIAS", error),
        AliasError::Reserved => ErrorResponse::bad_request("ALIAS_RESERVED", error),
    })?;
    let content = Content::new(paste.content).map_err(|error| match error {
        ContentError::Empty => ErrorResponse::bad_request("EMPTY", error),
        ContentError::TooLarge => too_large(),
    })?;
    for _ in 0..CODE_TRIES {
        let code = alias.clone().map_or_else(Code::random, Ok)?;
        if let Some(created) = add_with_code(site, code, paste.expiry_days, content.clone()).await? {
            return Ok(created);
        }
        if alias.is_some() {
            let taken = "another paste has this alias; choose another one";
            return Err(ErrorResponse::new(StatusCode::CONFLICT, "ALIAS_TAKEN", taken));
        }
    }
    Err(ErrorResponse::unavailable(Duration::from_secs(1)))
}

/// Adds a paste under this code, with the job that uploads its content. Returns `None` if the code is taken.
async fn add_with_code(
    site: &Site,
    code: Code,
    expiry_days: i32,
    content: Content,
) -> Result<Option<CreatedPaste>, ErrorResponse> {
    let (owner_token, blob) = (token::random()?, Uuid::now_v7());
    let upload = site.redrive.enqueue(Upload { blob }).prepare().await?;
    let short_code = code.to_string();
    let owner = OwnerHash::new(&owner_token);
    let new_paste = NewPaste { code, expiry_days, owner, content, blob, upload };
    Ok(match site.database.create(new_paste).await? {
        CreateResult::Done { status, expires_at } => {
            Some(CreatedPaste { short_code, status, owner_token, expires_at: timestamp_text(expires_at) })
        }
        CreateResult::Taken => None,
    })
}
