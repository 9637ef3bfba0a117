//! `redrive task create`: a task, with its body from the command line, a file or standard input.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use redrive_wire::origin::UploadedBody;
use redrive_wire::task::{Task, TaskRequest};
use serde_json::value::RawValue;

use super::{TASKS, watch};
use crate::client::{Client, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options::{self, DueTime, as_ms, integer, parse_duration, parse_future};
use crate::output;

/// The largest body within a request. A larger one is uploaded first.
const INLINE_BYTES_MAX: usize = 64 * 1024;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The address to deliver to: http, https, grpc or grpcs
    #[arg(value_name = "URL")]
    target: String,
    /// The HTTP method [default: POST]
    #[arg(long, short = 'X')]
    method: Option<String>,
    /// A header to send; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// The body: text, @FILE, or - for standard input
    #[arg(long, short = 'd', value_name = "BODY", conflicts_with = "body_json")]
    body: Option<String>,
    /// The body, sent as application/json: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    body_json: Option<String>,
    /// The name of a policy [default: default]
    #[arg(long, conflicts_with = "policy_file")]
    policy: Option<String>,
    /// A JSON file with a policy for this task only
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,
    /// The idempotency key: a repeated create returns the first task. It is sent with every attempt
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The time before the first attempt: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "at")]
    delay: Option<Duration>,
    /// The time of the first attempt: 2h (in two hours), or 2026-05-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_future)]
    at: Option<DueTime>,
    /// 0 to 9; a higher priority is delivered first [default: 5]
    #[arg(long, value_name = "N", value_parser = integer::<u8>(0..=9, 5))]
    priority: Option<u8>,
    /// The time limit of one attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// The callback for a task that succeeds
    #[arg(long, value_name = "URL")]
    on_success: Option<String>,
    /// The callback for a task that is dead
    #[arg(long, value_name = "URL")]
    on_failure: Option<String>,
    /// The name of the signing secret
    #[arg(long, value_name = "NAME")]
    signing_secret: Option<String>,
    /// The tenant of the task, for an API key without a tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Wait until the task ends. The exit code is 0 if it succeeds, and 6 otherwise
    #[arg(long)]
    wait: bool,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let invalid = || format!("invalid header {text:?}: write NAME: VALUE, for example 'x-order: 7'");
    let (name, value) = text.split_once(':').ok_or_else(invalid)?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) async fn run(
    options: &ServiceOptions,
    client: Client,
    arguments: Arguments,
) -> anyhow::Result<ExitStatus> {
    let client = client.acting_for(arguments.tenant.as_deref())?;
    let wait = arguments.wait;
    let request = arguments.request(&client).await?;
    let answer = client.post(&[TASKS], &request).await?;
    let task: Task = answer.read()?;
    if answer.status != http::StatusCode::CREATED {
        output::note("this task already exists: an earlier request with the same key created it");
    }
    if !wait {
        if options.json {
            output::text(&output::one_line(&answer.raw()))?;
        } else {
            output::line(&task.task_id)?;
            output::note(&format!("`redrive task watch {}` shows its attempts", task.task_id));
        }
        return Ok(ExitStatus::Success);
    }
    if !options.json {
        output::line(&task.task_id)?;
    }
    watch::watch(options, &client, &task.task_id).await
}

impl Arguments {
    async fn request(self, client: &Client) -> anyhow::Result<TaskRequest> {
        let policy = self.policy_file.as_deref().map(options::read_policy).transpose();
        let policy = policy.context("--policy-file")?;
        let body = body(self.body, self.body_json, client).await?;
        let headers: BTreeMap<String, String> = self.headers.into_iter().collect();
        // A delay is relative to the clock of the service, so a wrong clock of this machine does not matter.
        let (delay, run_at) = match self.at {
            Some(DueTime::In(delay)) => (Some(delay), None),
            Some(DueTime::At(at)) => (None, Some(at)),
            None => (self.delay, None),
        };
        Ok(TaskRequest {
            target: self.target,
            method: self.method,
            headers: Some(headers).filter(|headers| !headers.is_empty()),
            body: body.text,
            body_json: body.json,
            body_base64: body.base64,
            body_ref: body.stored,
            policy_id: self.policy,
            policy,
            idempotency_key: self.key,
            delay_ms: delay.map(as_ms),
            run_at,
            priority: self.priority,
            timeout_ms: self.timeout.map(as_ms),
            on_success_url: self.on_success,
            on_failure_url: self.on_failure,
            signing_secret: self.signing_secret,
        })
    }
}

/// A body in one of the four forms that the API takes.
#[derive(Default)]
struct Body {
    text: Option<String>,
    json: Option<Box<RawValue>>,
    base64: Option<String>,
    stored: Option<String>,
}

async fn body(plain: Option<String>, json: Option<String>, client: &Client) -> anyhow::Result<Body> {
    if let Some(value) = json {
        let text = String::from_utf8(read_body(value)?).ok();
        let json = text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
        return match json {
            Some(json) => Ok(Body { json: Some(json), ..Body::default() }),
            None => {
                let text = "--body-json: the body is not JSON: write for example '{\"order\": 7}', or use --body for other text";
                Err(ExitStatus::Usage.error(text))
            }
        };
    }
    let Some(value) = plain else { return Ok(Body::default()) };
    let bytes = read_body(value)?;
    if bytes.len() > INLINE_BYTES_MAX {
        let uploaded: UploadedBody = client.upload(&["bodies"], Bytes::from(bytes)).await?.read()?;
        return Ok(Body { stored: Some(uploaded.body_ref), ..Body::default() });
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => Body { text: Some(text), ..Body::default() },
        Err(binary) => Body { base64: Some(BASE64_STANDARD.encode(binary.as_bytes())), ..Body::default() },
    })
}

/// Returns the bytes of the value itself, of the file after `@`, or of standard input for `-`.
fn read_body(value: String) -> anyhow::Result<Vec<u8>> {
    match value.strip_prefix('@') {
        _ if value == "-" => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
            Ok(bytes)
        }
        Some(path) => options::read_file(Path::new(path)).context("--body"),
        None => Ok(value.into_bytes()),
    }
}
