//! Takes a paste: one transaction on the database, and nothing of the object store.

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
use crate::database::{Created, NewPaste};
use crate::site::Site;
use crate::token::{self, OwnerHash};
use crate::upload::Upload;
use crate::wire::{Ask, Envelope, Made, Refusal, instant};

/// A content of control characters alone is six times as long in JSON.
const REQUEST_BYTES_MAX: usize = 6 * CONTENT_BYTES_MAX + 4 * 1024;
/// Bytes of requests that are held in memory at once.
const INTAKE_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;
/// How long a request may take to come in.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Codes that are drawn before something must be wrong with the lot.
const DRAWS: usize = 10;

/// The site, and how much of what is pasted may be in memory at once.
pub(super) struct Intake {
    pub(super) site: Arc<Site>,
    room: Semaphore,
}

impl Intake {
    pub(super) fn new(site: Arc<Site>) -> Self {
        Self { site, room: Semaphore::new(INTAKE_BYTES_MAX) }
    }
}

/// `POST /api/v1/pastes`.
pub(super) async fn create(
    State(intake): State<Arc<Intake>>,
    request: Request,
) -> Result<(StatusCode, Json<Envelope<Made>>), Refusal> {
    let (parts, body) = request.into_parts();
    let _room = make_room(&intake, &parts.headers).await?;
    let read = tokio::time::timeout(REQUEST_TIME, whole(body)).await;
    let too_slow =
        |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "TOO_SLOW", "the request took too long to come in");
    let body = read.map_err(too_slow)??;
    let ask: Ask = serde_json::from_slice(&body).map_err(|error| Refusal::bad("MALFORMED", error))?;
    drop(body);
    let made = add(&intake.site, ask).await?;
    Ok((StatusCode::CREATED, Json(Envelope { data: Some(made), error: None })))
}

/// Waits until what the request says to bring has room.
async fn make_room<'a>(intake: &'a Intake, headers: &HeaderMap) -> Result<SemaphorePermit<'a>, Refusal> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(REQUEST_BYTES_MAX);
    if length > REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    let permits = u32::try_from(length).unwrap_or(u32::MAX);
    intake.room.acquire_many(permits).await.map_err(|_| Refusal::unavailable(Duration::from_secs(1)))
}

async fn whole(mut body: Body) -> Result<Bytes, Refusal> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::bad("MALFORMED", error))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > REQUEST_BYTES_MAX {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn too_large() -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", ContentError::TooLarge)
}

async fn add(site: &Site, ask: Ask) -> Result<Made, Refusal> {
    if ![1, 7, 30].contains(&ask.expiry_days) {
        return Err(Refusal::bad("EXPIRY", "expiryDays must be 1, 7 or 30"));
    }
    let alias = ask.custom_alias.filter(|alias| !alias.is_empty());
    let alias = alias.as_deref().map(Code::alias).transpose().map_err(|error| match error {
        AliasError::Malformed => Refusal::bad("ALIAS", error),
        AliasError::Reserved => Refusal::bad("ALIAS_RESERVED", error),
    })?;
    let content = Content::new(ask.content).map_err(|error| match error {
        ContentError::Empty => Refusal::bad("EMPTY", error),
        ContentError::TooLarge => too_large(),
    })?;
    for _ in 0..DRAWS {
        let code = alias.clone().map_or_else(Code::draw, Ok)?;
        if let Some(made) = add_as(site, code, ask.expiry_days, content.clone()).await? {
            return Ok(made);
        }
        if alias.is_some() {
            let taken = "another paste has this alias; choose another one";
            return Err(Refusal::new(StatusCode::CONFLICT, "ALIAS_TAKEN", taken));
        }
    }
    Err(Refusal::unavailable(Duration::from_secs(1)))
}

/// Adds a paste with its upload under a code; none if that is taken.
async fn add_as(
    site: &Site,
    code: Code,
    expiry_days: i32,
    content: Content,
) -> Result<Option<Made>, Refusal> {
    let (owner_token, blob) = (token::draw()?, Uuid::now_v7());
    let upload = site.redrive.enqueue(Upload { blob }).prepare().await?;
    let short_code = code.to_string();
    let owner = OwnerHash::of(&owner_token);
    let paste = NewPaste { code, expiry_days, owner, content, blob, upload };
    Ok(match site.database.create(paste).await? {
        Created::Done { status, expires_at } => {
            Some(Made { short_code, status, owner_token, expires_at: instant(expires_at) })
        }
        Created::Taken => None,
    })
}
