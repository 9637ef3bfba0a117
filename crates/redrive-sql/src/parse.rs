//! Finds sections and placeholders in the text of a file, at compile time.

/// Starts the header of a statement.
pub(crate) const STATEMENT: &str = "-- name: ";
/// Starts the header of a fragment.
pub(crate) const FRAGMENT: &str = "-- fragment: ";

/// The text under the header `keyword` + `name`, without the comment lines that follow the header.
pub(crate) const fn section(text: &'static str, keyword: &str, name: &str) -> Option<&'static str> {
    let mut found = None;
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        if has_name(line.as_bytes(), keyword.as_bytes(), name.as_bytes()) {
            assert!(found.is_none(), "the file has a section with this name twice");
            found = Some(body(after));
        }
        rest = after;
    }
    found
}

/// The text from after a header up to the next one, without leading comment lines, and without a closing semicolon.
const fn body(text: &'static str) -> &'static str {
    let (first, after) = split_line(text);
    assert!(is_comment(first), "a section has no comment that says what it guarantees");
    let start = skip_comments(after);
    let mut rest = start;
    let mut length = 0;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        if starts_with(line.as_bytes(), STATEMENT.as_bytes())
            || starts_with(line.as_bytes(), FRAGMENT.as_bytes())
        {
            break;
        }
        length = start.len() - after.len();
        rest = after;
    }
    let (body, _) = start.split_at(length);
    let body = body.trim_ascii_end();
    match body.as_bytes() {
        [sql @ .., b';'] => body.split_at(sql.len()).0,
        _ => body,
    }
}

const fn skip_comments(text: &'static str) -> &'static str {
    let mut rest = text;
    loop {
        let (line, after) = split_line(rest);
        if !is_comment(line) {
            return rest;
        }
        rest = after;
    }
}

const fn is_comment(line: &str) -> bool {
    starts_with(line.as_bytes(), b"--")
        && !starts_with(line.as_bytes(), STATEMENT.as_bytes())
        && !starts_with(line.as_bytes(), FRAGMENT.as_bytes())
}

/// The first line of `text`, without its line break, and what follows it.
const fn split_line(text: &'static str) -> (&'static str, &'static str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        if bytes[end] == b'\n' {
            return (text.split_at(end).0, text.split_at(end + 1).1);
        }
        end += 1;
    }
    (text, "")
}

/// The first placeholder in `text`: what precedes it, its name, and what follows it. A name has lower-case letters and
/// underscores only, so that `'{}'` and JSON are not taken for placeholders.
pub(crate) const fn placeholder(text: &'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        if bytes[start] == b'{' {
            let mut end = start + 1;
            while end < bytes.len() && (bytes[end].is_ascii_lowercase() || bytes[end] == b'_') {
                end += 1;
            }
            if end > start + 1 && end < bytes.len() && bytes[end] == b'}' {
                let name = text.split_at(end).0.split_at(start + 1).1;
                return Some((text.split_at(start).0, name, text.split_at(end + 1).1));
            }
        }
        start += 1;
    }
    None
}

const fn has_name(line: &[u8], keyword: &[u8], name: &[u8]) -> bool {
    starts_with(line, keyword) && equal(line.split_at(keyword.len()).1, name)
}

const fn starts_with(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.len() >= prefix.len() && equal(bytes.split_at(prefix.len()).0, prefix)
}

pub(crate) const fn equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}
