//! The trace that links a job's enqueue to its attempts.
//!
//! A job carries a W3C `traceparent` as the member of that name in its metadata, where the retry service keeps it too.
//! One without belongs to a trace of its own, whose id is the job's, so that most jobs carry nothing.

use std::fmt;

use redrive_core::{Invalid, Job, JobId, NewJob};
use serde::Deserialize;
use tracing::Span;

/// The member of a job's metadata.
const MEMBER: &str = "traceparent";

/// A place in a trace; as text a W3C `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    id: u128,
    parent: u64,
    flags: u8,
}

impl Trace {
    /// The trace of a job.
    pub(crate) fn of(id: JobId, metadata: Option<&str>) -> Self {
        metadata.and_then(carried).unwrap_or_else(|| Self::own(id))
    }

    /// The trace of a job that came without one: a version 7 UUID is as unique and as random as a trace id must be.
    fn own(JobId(id): JobId) -> Self {
        Self { id: id.as_u128(), parent: id.as_u64_pair().1, flags: 1 }
    }

    /// Reads a `traceparent`.
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        read(text).ok_or_else(|| {
            let form = "00-<32 hex digits>-<16 hex digits>-<2 hex digits>";
            Invalid::new(MEMBER, format!("must be {form}, all in lower case, is {text:?}"))
        })
    }

    /// Its id, as spans name it.
    pub(crate) fn id(self) -> String {
        format!("{:032x}", self.id)
    }

    /// Metadata that carries this. What the caller has put there stays as it is.
    pub(crate) fn carry(self, metadata: Option<String>) -> Result<String, Invalid> {
        let member = format!("{{\"{MEMBER}\":\"{self}\"");
        let Some(text) = metadata else { return Ok(member + "}") };
        let object: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).ok();
        match (object, text.trim_start().strip_prefix('{')) {
            (Some(object), _) if object.contains_key(MEMBER) => {
                Err(Invalid::new(MEMBER, "is in the metadata already; leave it out there or here"))
            }
            (Some(object), Some(rest)) => {
                Ok(format!("{member}{}{rest}", if object.is_empty() { "" } else { "," }))
            }
            (None, _) | (_, None) => Err(Invalid::new(
                MEMBER,
                "is carried in the metadata, which must be a JSON object then, or be left out",
            )),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.id, self.parent, self.flags)
    }
}

/// The span of an enqueue. For a job that was there before under the same key it names the trace that was asked for.
pub(crate) fn enqueue_span(job: &NewJob) -> Span {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::info_span!("enqueue", job = %job.id, kind = job.kind.as_str(), trace_id = trace.id())
}

/// Names one job of many that are enqueued together, and its trace.
pub(crate) fn tell_of(job: &NewJob) {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::debug!(job = %job.id, kind = job.kind.as_str(), trace_id = trace.id(), "enqueue");
}

/// The span around a handler and its middleware.
pub(crate) fn handle_span(job: &Job) -> Span {
    let trace = Trace::of(job.id, job.metadata.as_deref());
    tracing::info_span!("handle", job = %job.id, kind = job.kind.as_str(), trace_id = trace.id())
}

/// What metadata carries, whatever else is in it.
fn carried(metadata: &str) -> Option<Trace> {
    #[derive(Deserialize)]
    struct Carrier {
        traceparent: String,
    }
    // Most metadata has none; looking for the word is cheaper than reading all of it.
    let carrier = metadata.contains(MEMBER).then(|| serde_json::from_str::<Carrier>(metadata).ok())?;
    read(&carrier?.traceparent)
}

/// Takes version 00 and, as the standard asks, the known part of later ones.
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
    fn metadata_carries_it_and_keeps_what_it_had() {
        let trace = Trace::parse(TEXT).unwrap();
        for (before, after) in [
            (None, format!(r#"{{"traceparent":"{TEXT}"}}"#)),
            (Some("{}"), format!(r#"{{"traceparent":"{TEXT}"}}"#)),
            (Some(r#" {"b": 1,  "a":2}"#), format!(r#"{{"traceparent":"{TEXT}","b": 1,  "a":2}}"#)),
        ] {
            let carries = trace.carry(before.map(str::to_owned)).unwrap();
            assert_eq!(carries, after);
            assert_eq!(Trace::of(JobId(uuid::Uuid::max()), Some(&carries)), trace);
        }
        let has_one = format!(r#"{{"traceparent":"{TEXT}"}}"#);
        for unfit in ["plain text", "[1]", "\"{\"", has_one.as_str()] {
            assert_eq!(trace.carry(Some(unfit.to_owned())).unwrap_err().field, "traceparent", "{unfit}");
        }
    }

    #[test]
    fn a_job_without_one_has_a_trace_of_its_own() {
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
