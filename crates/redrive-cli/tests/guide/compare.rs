//! Output as the guide shows it against output as it came: `…` stands for anything.

/// Whether `told` is what `shown` says. A line of `…` alone stands for any lines, `…` within a line for any text.
pub(crate) fn matches(shown: &str, told: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
    };
    lines_match(&lines(shown), &lines(told))
}

/// The same where numbers, ids and the widths of columns differ each time.
pub(crate) fn matches_about(shown: &str, told: &str) -> bool {
    let about = |text: &str| text.lines().map(without_numbers).collect::<Vec<_>>().join("\n");
    matches(&about(shown), &about(told))
}

fn without_numbers(line: &str) -> String {
    let is_id = |word: &&str| word.len() == 36 && word.matches('-').count() == 4;
    let words = line.split_whitespace().map(|word| {
        if is_id(&word) {
            return "#".to_owned();
        }
        let parts = word.split(|c: char| c.is_ascii_digit());
        let mut kept: Vec<&str> = parts.collect();
        // Neighbouring digits leave empty parts between them: one mark stands for all of them.
        let ends = (kept.len() > 1).then(|| (kept.remove(0), kept.pop().unwrap_or_default()));
        match ends {
            None => word.to_owned(),
            Some((first, last)) => {
                kept.retain(|part| !part.is_empty());
                let middle: String = kept.iter().map(|part| format!("{part}#")).collect();
                format!("{first}#{middle}{last}")
            }
        }
    });
    words.collect::<Vec<_>>().join(" ")
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

#[test]
fn numbers_ids_and_widths_may_differ_and_words_may_not() {
    let shown = "01a1e39f-892e-72ed-aff0-ddfe9d92b0a3\n09:04:49.2  attempt 1 took 7 ms";
    for (told, same) in [
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt 12   took 1234 ms", true),
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt 12   took 1234 s", false),
        ("no id\n10:14:09.277 attempt 12   took 1234 ms", false),
        ("01b2e39f-0000-72ed-aff0-ddfe9d92b0a3\n10:14:09.277 attempt a took 1234 ms", false),
    ] {
        assert_eq!(matches_about(shown, told), same, "{told}");
    }
    assert_eq!(without_numbers("a1b22c333 x 4"), "a#b#c# x #");
}
