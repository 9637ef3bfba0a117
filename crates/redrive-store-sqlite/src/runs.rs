//! Rows that stand one after the other: a statement over a range of them costs a fraction of one for each.

use std::ops::Range;

/// Cuts `items`, sorted by their row's number, into the longest ranges whose numbers follow each other without a gap and
/// of which each may follow the one before.
pub(crate) fn runs<T>(
    items: &[T],
    seq: impl Fn(&T) -> i64,
    may_follow: impl Fn(&T, &T) -> bool,
) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if seq(item) == seq(&items[at - 1]) + 1 && may_follow(&items[at - 1], item) => {
                run.end = at + 1
            }
            Some(_) | None => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_double_and_a_stranger_end_a_run() {
        let items = [(1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (4, 'b'), (6, 'b')];
        assert_eq!(runs(&items, |item| item.0, |before, item| before.1 == item.1), [0..2, 2..4, 4..5, 5..6]);
        assert_eq!(runs::<i64>(&[], |seq| *seq, |_, _| true), []);
    }
}
