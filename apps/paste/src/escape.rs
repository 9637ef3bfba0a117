//! Escapes content for JSON and HTML, chunk by chunk. Only ASCII bytes are escaped, so that a chunk may end in the middle of a
//! character.

use bytes::Bytes;

/// Escapes a chunk of a JSON string.
pub fn json(chunk: &Bytes) -> Bytes {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut out = Vec::with_capacity(chunk.len() + chunk.len() / 8);
    for byte in chunk {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
            other => out.push(*other),
        }
    }
    out.into()
}

/// Escapes a chunk of text in an HTML page.
pub fn html(chunk: &Bytes) -> Bytes {
    let mut out = Vec::with_capacity(chunk.len() + chunk.len() / 8);
    for byte in chunk {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            other => out.push(*other),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_parses_to_the_original_in_chunks_of_any_size() {
        let text: String =
            (0..0x250).filter_map(char::from_u32).chain("\"\\</pre>😀\u{2028}".chars()).collect();
        let bytes = Bytes::from(text.clone());
        for size in [1, 2, 3, 7, bytes.len()] {
            let escaped: Vec<u8> =
                bytes.chunks(size).flat_map(|chunk| json(&Bytes::copy_from_slice(chunk))).collect();
            let quoted = [b"\"", &escaped[..], b"\""].concat();
            assert_eq!(serde_json::from_slice::<String>(&quoted).unwrap(), text, "in chunks of {size}");
        }
    }

    #[test]
    fn escaped_html_cannot_close_its_element() {
        let escaped = html(&Bytes::from_static(b"</pre><script>alert('&\"')</script>"));
        assert!(!escaped.iter().any(|byte| b"<>'\"".contains(byte)), "{escaped:?}");
    }
}
