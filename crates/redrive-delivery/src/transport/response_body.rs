//! Reads the body of an answer up to a limit, and keeps its start.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// The most bytes of an answer that are read. The connection of a longer answer is closed.
pub const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of an answer that are stored.
pub const EXCERPT_BYTES_MAX: usize = 4 * 1024;

/// The part of an answer that was read.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    start: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: ReadEnd,
}

/// Where reading ended.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// At the end of the answer.
    Whole,
    /// At the limit of bytes.
    Cut,
    /// Where the connection broke.
    Broken(hyper::Error),
}

impl ResponseBody {
    /// Reads at most `bytes_max`. The connection of an answer that ends before the limit can be reused; otherwise it is closed.
    pub(crate) async fn read(mut body: Incoming, bytes_max: usize) -> Self {
        let mut answer = Self { start: Vec::new(), trailers: None, end: ReadEnd::Whole };
        let mut seen = 0usize;
        while let Some(frame) = body.frame().await {
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(data)) => {
                    seen = seen.saturating_add(data.len());
                    answer.keep(&data);
                }
                Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
                Err(error) => {
                    answer.end = ReadEnd::Broken(error);
                    break;
                }
            }
            if seen > bytes_max {
                answer.end = ReadEnd::Cut;
                break;
            }
        }
        answer
    }

    /// Its start as text that is safe to show; `None` if it is empty.
    pub(crate) fn excerpt(&self, skip: usize) -> Option<String> {
        let start = self.start.get(skip..).filter(|start| !start.is_empty())?;
        Some(sanitise(start))
    }

    fn keep(&mut self, data: &Bytes) {
        let room = EXCERPT_BYTES_MAX.saturating_sub(self.start.len());
        self.start.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// Text that cannot disturb a terminal, a log or a page: at most [`EXCERPT_BYTES_MAX`], no control characters except line feed and
/// tab, and no characters that change the reading direction.
pub(crate) fn sanitise(bytes: &[u8]) -> String {
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
    fn control_characters_in_an_excerpt_are_replaced() {
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
            assert_eq!(sanitise(bytes), text, "{bytes:?}");
        }
    }

    #[test]
    fn an_excerpt_is_cut_at_a_character() {
        for filler in ["x", "é", "日", "🦀", "\0"] {
            let text = sanitise(filler.repeat(EXCERPT_BYTES_MAX).as_bytes());
            assert!(text.len() <= EXCERPT_BYTES_MAX && text.len() > EXCERPT_BYTES_MAX - 4, "{}", text.len());
        }
    }
}
