//! The trace that links a job's enqueue to its attempts.
//!
//! A job stores a W3C `traceparent` as a member of that name in its metadata, like the retry service does. A job without one has
//! a trace of its own, whose id is the id of the job. So most jobs need to store nothing.

use std::fmt;

use redrive_core::{Invalid, Job, JobId, NewJob};
use serde::Deserialize;
use tracing::Span;

/// The member of a job's metadata.
const MEMBER: &str = "traceparent";

/// A position in a trace. Its text form is a W3C `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    id: u128,
    parent: u64,
    flags: u8,
}

impl Trace {
    /// The trace of a job.
    pub(crate) fn of(id: JobId, metadata: Option<&str>) -> Self {
        metadata.and_then(stored_trace).unwrap_or_else(|| Self::from_job_id(id))
    }

    /// The trace of a job that has none in its metadata. A version 7 UUID is unique and random enough for a trace id.
    fn from_job_id(JobId(id): JobId) -> Self {
        Self { id: id.as_u128(), parent: id.as_u64_pair().1, flags: 1 }
    }

    /// Reads a `traceparent`.
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        read(text).ok_or_else(|| {
            let form = "00-<32 hex digits>-<16 hex digits>-<2 hex digits>";
            Invalid::new(MEMBER, format!("must have the form {form} in lower case, but is {text:?}"))
        })
    }

    /// The trace id, for spans.
    pub(crate) fn id(self) -> String {
        format!("{:032x}", self.id)
    }

    /// Adds this trace to metadata, and leaves the rest of the metadata unchanged.
    pub(crate) fn add_to(self, metadata: Option<String>) -> Result<String, Invalid> {
        let member = format!("{{\"{MEMBER}\":\"{self}\"");
        let Some(text) = metadata else { return Ok(member + "}") };
        let object: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).ok();
        match (object, text.trim_start().strip_prefix('{')) {
            (Some(object), _) if object.contains_key(MEMBER) => {
                Err(Invalid::new(MEMBER, "is already in the metadata; set it only once"))
            }
            (Some(object), Some(rest)) => {
                Ok(format!("{member}{}{rest}", if object.is_empty() { "" } else { "," }))
            }
            (None, _) | (_, None) => Err(Invalid::new(
                MEMBER,
                "is stored in the metadata, so the metadata must be a JSON object or be left out",
            )),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.id, self.parent, self.flags)
    }
}

/// The span of an enqueue. If the enqueue finds an existing job, the span names the trace that the caller asked for.
pub(crate) fn enqueue_span(job: &NewJob) -> Span {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::info_span!("enqueue", job = %job.id, kind = job.kind.as_str(), trace_id = trace.id())
}

/// Logs one job of a batch, with its trace.
pub(crate) fn log_enqueue(job: &NewJob) {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::debug!(job = %job.id, kind = job.kind.as_str(), trace_id = trace.id(), "enqueue");
}

/// The span around a handler and its middleware.
pub(crate) fn handle_span(job: &Job) -> Span {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::info_span!("handle", job = %job.id, kind = job.kind.as_str(), trace_id = trace.id())
}

/// The trace that is stored in metadata.
fn stored_trace(metadata: &str) -> Option<Trace> {
    #[derive(Deserialize)]
    struct Carrier {
        traceparent: String,
    }
    // Most metadata has no trace, and searching for the word is cheaper than parsing all of it.
    let carrier = metadata.contains(MEMBER).then(|| serde_json::from_str::<Carrier>(metadata).ok())?;
    read(&carrier?.traceparent)
}

/// Accepts version 00 and, as the standard requires, the known part of later versions.
fn read(text: &str) -> Option<Trace> {
    let mut parts = text.split('-');
    let mut next = |digits: usize| {
        let part = parts.next().filter(|part| part.len() == digits)?;
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        part.bytes().all(lower).then_some(part)
    };
    let (version, id, parent, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let more = parts.next().is_some();
    let trace = Trace {
        id: u128::from_str_radix(id, 16).ok()?,
        parent: u64::from_str_radix(parent, 16).ok()?,
        flags: u8::from_str_radix(flags, 16).ok()?,
    };
    let legal = version != "ff" && !(version == "00" && more) && trace.id != 0 && trace.parent != 0;
    legal.then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        assert_eq!(Trace::parse(TEXT).unwrap().to_string(), TEXT);
        let later = TEXT.replacen("00", "01", 1) + "-more";
        assert_eq!(Trace::parse(&later).unwrap().to_string(), TEXT);
        for wrong in [
            "",
            "00",
            "00-aa-bb-01",
            &TEXT.to_uppercase(),
            &TEXT.replacen("00", "ff", 1),
            &format!("{TEXT}-more"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(Trace::parse(wrong).unwrap_err().field, "traceparent", "{wrong}");
        }
    }

    #[test]
    fn a_trace_is_added_to_metadata_and_the_rest_stays() {
        let trace = Trace::parse(TEXT).unwrap();
        for (before, after) in [
            (None, format!(r#"{{"traceparent":"{TEXT}"}}"#)),
            (Some("{}"), format!(r#"{{"traceparent":"{TEXT}"}}"#)),
            (Some(r#" {"b": 1,  "a":2}"#), format!(r#"{{"traceparent":"{TEXT}","b": 1,  "a":2}}"#)),
        ] {
            let with_trace = trace.add_to(before.map(str::to_owned)).unwrap();
            assert_eq!(with_trace, after);
            assert_eq!(Trace::of(JobId(uuid::Uuid::max()), Some(&with_trace)), trace);
        }
        let has_one = format!(r#"{{"traceparent":"{TEXT}"}}"#);
        for unfit in ["plain text", "[1]", "\"{\"", has_one.as_str()] {
            assert_eq!(trace.add_to(Some(unfit.to_owned())).unwrap_err().field, "traceparent", "{unfit}");
        }
    }

    #[test]
    fn a_job_without_a_stored_trace_has_a_trace_of_its_own() {
        let id = JobId(uuid::Uuid::now_v7());
        for metadata in
            [None, Some("traceparent"), Some(r#"{"traceparent":7}"#), Some(r#"{"traceparent":"x"}"#)]
        {
            let trace = Trace::of(id, metadata);
            assert_eq!(trace.id(), id.0.simple().to_string());
            assert_eq!(Trace::parse(&trace.to_string()).unwrap(), trace);
        }
    }
}
