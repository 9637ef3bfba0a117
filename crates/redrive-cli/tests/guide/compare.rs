//! Compares the output that a page shows with the actual output. `…` stands for any text.

/// Whether `actual` matches `expected`. A line with only `…` stands for any number of lines, `…` within a line for any text.
pub(crate) fn matches(expected: &str, actual: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
    };
    lines_match(&lines(expected), &lines(actual))
}

/// The same, but numbers, ids and column widths may differ.
pub(crate) fn matches_approximately(expected: &str, actual: &str) -> bool {
    let normalize = |text: &str| text.lines().map(mask_numbers).collect::<Vec<_>>().join("\n");
    matches(&normalize(expected), &normalize(actual))
}

/// Replaces ids and each sequence of digits by `#`, and each gap by one space.
fn mask_numbers(line: &str) -> String {
    let is_id = |word: &str| word.len() == 36 && word.matches('-').count() == 4;
    let mask = |word: &str| if is_id(word) { "#".to_owned() } else { mask_digits(word) };
    line.split_whitespace().map(mask).collect::<Vec<_>>().join(" ")
}

fn mask_digits(word: &str) -> String {
    let mut masked = String::new();
    let mut in_number = false;
    for c in word.chars() {
        let is_digit = c.is_ascii_digit();
        if !is_digit {
            masked.push(c);
        } else if !in_number {
            masked.push('#');
        }
        in_number = is_digit;
    }
    masked
}

fn lines_match(expected: &[String], actual: &[String]) -> bool {
    match (expected.split_first(), actual.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "…" => {
            lines_match(rest, actual)
                || actual.split_first().is_some_and(|(_, later)| lines_match(expected, later))
        }
        (Some((first, rest)), Some((line, later))) => line_matches(first, line) && lines_match(rest, later),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn line_matches(expected: &str, actual: &str) -> bool {
    let Some((before, after)) = expected.split_once('…') else { return expected == actual };
    let Some(rest) = actual.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| line_matches(after, &rest[at..]))
}

#[test]
fn only_an_ellipsis_stands_for_any_text() {
    for (expected, actual, same) in [
        ("a\nb\n", "a\nb", true),
        ("a\nb", "a\nc", false),
        ("a", "a\nb", false),
        ("a … c", "a b c", true),
        ("a … c", "a b d", false),
        ("{\"id\":\"…\",\"n\":…}", "{\"id\":\"x-1\",\"n\":7}", true),
        ("…\nlast", "one\ntwo\nlast", true),
        ("first\n…", "first", true),
        ("first\n…\nlast", "first\nother", false),
    ] {
        assert_eq!(matches(expected, actual), same, "{expected:?} {actual:?}");
    }
}

#[test]
fn numbers_ids_and_widths_may_differ_but_words_may_not() {
    let expected = "01a1e39f-892e-72ed-aff0-ddfe9d92b0a3\n09:04:49.2  attempt 1 took 7 ms";
    for (actual, same) in [
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt 12   took 1234 ms", true),
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt 12   took 1234 s", false),
        ("no id\n10:14:09.277 attempt 12   took 1234 ms", false),
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt a took 1234 ms", false),
    ] {
        assert_eq!(matches_approximately(expected, actual), same, "{actual}");
    }
    assert_eq!(mask_numbers("a1b22c333 x 4"), "a#b#c# x #");
}
