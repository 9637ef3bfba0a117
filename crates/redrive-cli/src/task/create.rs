//! `redrive task create`: a call, with its body from the command line, a file or standard input.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use redrive_server::wire::origin::UploadedBody;
use redrive_server::wire::policy::RetryPolicy;
use redrive_server::wire::task::{Task, TaskRequest};
use serde_json::value::RawValue;

use super::{TASKS, watch};
use crate::call::{Reach, Service};
use crate::exit::Exit;
use crate::print;
use crate::values::{self, whole};
use crate::when::{Due, parse_future, parse_span};

/// Bytes that go within the request; a larger body is uploaded before it.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// A call to deliver.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Where it goes: http, https, grpc or grpcs
    #[arg(value_name = "URL")]
    target: String,
    /// The HTTP method [default: POST]
    #[arg(long, short = 'X')]
    method: Option<String>,
    /// A header to send; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The body: text, @FILE, or - for standard input
    #[arg(long, short = 'd', value_name = "BODY", conflicts_with = "body_json")]
    body: Option<String>,
    /// The body, sent as application/json: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    body_json: Option<String>,
    /// A policy of the service [default: default]
    #[arg(long, conflicts_with = "policy_file")]
    policy: Option<String>,
    /// A policy for this task alone, as JSON in a file
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,
    /// Makes the creation repeatable, and is sent with every attempt
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Wait so long before the first attempt: 30s, 5m, 2h
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Make the first attempt at this time: 2h (in two hours), or 2026-05-01T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_future)]
    at: Option<Due>,
    /// From 0 to 9, higher ones first [default: 5]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(0..=9, 5))]
    priority: Option<u8>,
    /// How long one attempt may take
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    timeout: Option<Duration>,
    /// Where the outcome is delivered when it succeeds
    #[arg(long, value_name = "URL")]
    on_success: Option<String>,
    /// Where the outcome is delivered when it is exhausted
    #[arg(long, value_name = "URL")]
    on_exhausted: Option<String>,
    /// The name of the secret that signs each attempt
    #[arg(long, value_name = "NAME")]
    signing_secret: Option<String>,
    /// Whose task it is, for a key that sees all
    #[arg(long)]
    tenant: Option<String>,
    /// Follow it to its end: 0 when it succeeds, 6 when it does not
    #[arg(long)]
    wait: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is no header; write NAME: VALUE"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) async fn run(reach: &Reach, service: Service, arguments: Arguments) -> anyhow::Result<Exit> {
    let service = service.acting_for(arguments.tenant.as_deref())?;
    let wait = arguments.wait;
    let request = arguments.request(&service).await?;
    let answer = service.post(&[TASKS], &request).await?;
    let task: Task = answer.read()?;
    let before = answer.status != http::StatusCode::CREATED;
    if before {
        print::note("the same request created this task before");
    }
    if !wait {
        tell(reach, &task, &answer.raw())?;
        return Ok(Exit::Done);
    }
    if !reach.json {
        print::line(&task.task_id)?;
    }
    watch::follow(reach, &service, &task.task_id).await
}

fn tell(reach: &Reach, task: &Task, raw: &str) -> anyhow::Result<()> {
    if reach.json {
        return Ok(print::text(&print::one_line(raw))?);
    }
    print::line(&task.task_id)?;
    print::note(&format!("`redrive task watch {}` follows it", task.task_id));
    Ok(())
}

impl Arguments {
    async fn request(self, service: &Service) -> anyhow::Result<TaskRequest> {
        let policy = self.policy_file.as_deref().map(values::read_policy::<RetryPolicy>).transpose();
        let policy = policy.context("--policy-file")?;
        let body = body(self.body, self.body_json, service).await?;
        let headers: BTreeMap<String, String> = self.headers.into_iter().collect();
        // A duration goes by the service's clock, whatever this machine's says.
        let (delay, run_at) = match self.at {
            Some(Due::In(delay)) => (Some(delay), None),
            Some(Due::At(at)) => (None, Some(at)),
            None => (self.delay, None),
        };
        Ok(TaskRequest {
            target_url: self.target,
            method: self.method,
            headers: Some(headers).filter(|headers| !headers.is_empty()),
            body: body.text,
            body_json: body.json,
            body_base64: body.base64,
            body_ref: body.stored,
            policy_id: self.policy,
            policy,
            idempotency_key: self.key,
            delay_ms: delay.map(ms),
            run_at,
            priority: self.priority,
            timeout_ms: self.timeout.map(ms),
            on_success_url: self.on_success,
            on_exhausted_url: self.on_exhausted,
            signing_secret: self.signing_secret,
        })
    }
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A body in the one of its forms that fits.
#[derive(Default)]
struct Body {
    text: Option<String>,
    json: Option<Box<RawValue>>,
    base64: Option<String>,
    stored: Option<String>,
}

async fn body(plain: Option<String>, json: Option<String>, service: &Service) -> anyhow::Result<Body> {
    if let Some(given) = json {
        let text = String::from_utf8(bytes_of(given)?).ok();
        let json = text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
        return match json {
            Some(json) => Ok(Body { json: Some(json), ..Body::default() }),
            None => {
                let text = "--body-json: the body is not JSON: write it like '{\"order\": 7}', or send any text with --body";
                Err(Exit::Usage.because(text))
            }
        };
    }
    let Some(given) = plain else { return Ok(Body::default()) };
    let bytes = bytes_of(given)?;
    if bytes.len() > INLINE_BYTES_MAX {
        let kept: UploadedBody = service.upload(&["bodies"], Bytes::from(bytes)).await?.read()?;
        return Ok(Body { stored: Some(kept.body_ref), ..Body::default() });
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => Body { text: Some(text), ..Body::default() },
        Err(binary) => Body { base64: Some(BASE64_STANDARD.encode(binary.as_bytes())), ..Body::default() },
    })
}

/// What is given itself, or the file or stream that it names.
fn bytes_of(given: String) -> anyhow::Result<Vec<u8>> {
    match given.strip_prefix('@') {
        _ if given == "-" => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("standard input cannot be read")?;
            Ok(bytes)
        }
        Some(path) => values::read_file(Path::new(path)).context("--body"),
        None => Ok(given.into_bytes()),
    }
}
