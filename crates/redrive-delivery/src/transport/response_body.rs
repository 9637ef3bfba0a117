//! Reads an answer's body: so much and no more, and keeps how it begins.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// Bytes of an answer that are read; beyond them the connection is dropped.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of an answer that are kept.
pub const EXCERPT_BYTES_MAX: usize = 4 * 1024;

/// What was read of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    start: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) ending: Ending,
}

/// How reading ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// At the end of the answer.
    Whole,
    /// At the limit.
    Cut,
    /// The connection broke first.
    Broken(hyper::Error),
}

impl Answer {
    /// Reads at most `bytes_max`. An answer that ends before leaves its connection fit for the next request; dropping
    /// one that does not closes it.
    pub(crate) async fn read(mut body: Incoming, bytes_max: usize) -> Self {
        let mut answer = Self { start: Vec::new(), trailers: None, ending: Ending::Whole };
        let mut seen = 0usize;
        while let Some(frame) = body.frame().await {
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(data)) => {
                    seen = seen.saturating_add(data.len());
                    answer.keep(&data);
                }
                Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
                Err(error) => {
                    answer.ending = Ending::Broken(error);
                    break;
                }
            }
            if seen > bytes_max {
                answer.ending = Ending::Cut;
                break;
            }
        }
        answer
    }

    /// How it begins, as text that is safe to show; none when there is nothing.
    pub(crate) fn excerpt(&self, skip: usize) -> Option<String> {
        let start = self.start.get(skip..).filter(|start| !start.is_empty())?;
        Some(harmless(start))
    }

    fn keep(&mut self, data: &Bytes) {
        let room = EXCERPT_BYTES_MAX.saturating_sub(self.start.len());
        self.start.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// Text that can do nothing to a terminal, a log or a page's layout: at most [`EXCERPT_BYTES_MAX`], no control
/// characters but line feed and tab, nothing that turns the reading direction.
pub(crate) fn harmless(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().min(EXCERPT_BYTES_MAX));
    for c in String::from_utf8_lossy(bytes).chars() {
        let c = match c {
            '\r' => continue,
            '\n' | '\t' => c,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                char::REPLACEMENT_CHARACTER
            }
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        };
        if text.len() + c.len_utf8() > EXCERPT_BYTES_MAX {
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_can_do_no_harm() {
        for (bytes, text) in [
            (&b"plain"[..], "plain"),
            (b"a\r\nb\tc", "a\nb\tc"),
            (b"\x1b[31mred\x07\x00", "\u{fffd}[31mred\u{fffd}\u{fffd}"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            ("\u{9b}31m".as_bytes(), "\u{fffd}31m"),
            ("abc\u{202e}cba".as_bytes(), "abc\u{fffd}cba"),
            ("a\u{2028}b".as_bytes(), "a\u{fffd}b"),
            ("日本".as_bytes(), "日本"),
        ] {
            assert_eq!(harmless(bytes), text, "{bytes:?}");
        }
    }

    #[test]
    fn an_excerpt_is_cut_at_a_character() {
        for filler in ["x", "é", "日", "🦀", "\0"] {
            let text = harmless(filler.repeat(EXCERPT_BYTES_MAX).as_bytes());
            assert!(text.len() <= EXCERPT_BYTES_MAX && text.len() > EXCERPT_BYTES_MAX - 4, "{}", text.len());
        }
    }
}
