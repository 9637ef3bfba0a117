//! A text that jobs are looked for by: in what their programs keep with them.

use redrive_core::Job;
use redrive_delivery::{Call, CallBody, KIND};

use crate::error::{Answer, Problem};

/// Characters of a text to look for.
const TEXT_CHARS_MAX: usize = 256;

/// A text to look for, whatever the case of its ASCII letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    /// In lower case.
    bytes: Vec<u8>,
    /// Whether payloads and metadata are looked through too.
    in_bodies: bool,
}

impl Text {
    /// None for an empty one, which everything has.
    pub(crate) fn new(text: Option<&str>) -> Answer<Option<Self>> {
        match text {
            Some(text) if text.chars().count() > TEXT_CHARS_MAX => {
                Err(Problem::invalid("text", format!("must have at most {TEXT_CHARS_MAX} characters")))
            }
            text => {
                let given = text.filter(|text| !text.is_empty());
                Ok(given.map(|text| Self { bytes: text.to_ascii_lowercase().into(), in_bodies: true }))
            }
        }
    }

    /// The same text for a caller who may not see bodies: a search must not tell what is in them.
    pub(crate) fn outside_bodies(self) -> Self {
        Self { in_bodies: false, ..self }
    }

    /// Whether a job has it in its last error, its target, its metadata or its payload.
    pub(crate) fn is_in(&self, job: &Job) -> bool {
        let metadata = job.metadata.as_deref().filter(|_| self.in_bodies);
        let noted = [job.last_error.as_deref(), metadata, job.subject.as_deref()];
        noted.into_iter().flatten().any(|text| self.is_within(text.as_bytes()))
            || (self.in_bodies && self.is_in_payload(job))
    }

    /// Of a delivery the body alone: its headers are where secrets are.
    fn is_in_payload(&self, job: &Job) -> bool {
        if job.kind.as_str() != KIND {
            return self.is_within(&job.payload);
        }
        match Call::decode(&job.payload).map(|call| call.body) {
            Ok(CallBody::Inline(body)) => self.is_within(&body),
            Ok(CallBody::None | CallBody::Stored(_)) | Err(_) => false,
        }
    }

    fn is_within(&self, bytes: &[u8]) -> bool {
        let (first, rest) = match self.bytes.split_first() {
            Some(parts) => parts,
            None => return true,
        };
        let begins = |window: &[u8]| {
            window[0].to_ascii_lowercase() == *first && window[1..].eq_ignore_ascii_case(rest)
        };
        bytes.windows(self.bytes.len()).any(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_in_any_case_of_its_letters() {
        for (text, within, found) in [
            ("Order-7", "the ORDER-7 of today", true),
            ("order-7", "order-8", false),
            ("é", "caf\u{e9}", true),
            ("É", "caf\u{e9}", false),
            ("abc", "ab", false),
            ("c", "abc", true),
        ] {
            let text = Text::new(Some(text)).unwrap().unwrap();
            assert_eq!(text.is_within(within.as_bytes()), found, "{text:?} in {within}");
        }
        assert_eq!(Text::new(Some("")).unwrap(), None);
        assert_eq!(Text::new(Some(&"x".repeat(257))).unwrap_err().field.as_deref(), Some("text"));
    }
}
