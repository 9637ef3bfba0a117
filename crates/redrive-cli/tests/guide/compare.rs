//! Output as the guide shows it against output as it came: `…` stands for anything.

/// Whether `told` is what `shown` says. A line of `…` alone stands for any lines, `…` within a line for any text.
pub(crate) fn matches(shown: &str, told: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
    };
    lines_match(&lines(shown), &lines(told))
}

fn lines_match(shown: &[String], told: &[String]) -> bool {
    match (shown.split_first(), told.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "…" => {
            lines_match(rest, told) || told.split_first().is_some_and(|(_, later)| lines_match(shown, later))
        }
        (Some((first, rest)), Some((line, later))) => line_matches(first, line) && lines_match(rest, later),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn line_matches(shown: &str, told: &str) -> bool {
    let Some((before, after)) = shown.split_once('…') else { return shown == told };
    let Some(rest) = told.strip_prefix(before) else { return false };
    let places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    places.into_iter().any(|at| line_matches(after, &rest[at..]))
}

#[test]
fn an_ellipsis_stands_for_anything_and_nothing_else_does() {
    for (shown, told, same) in [
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
        assert_eq!(matches(shown, told), same, "{shown:?} {told:?}");
    }
}
