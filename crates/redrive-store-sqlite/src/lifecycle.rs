//! The life of a job: enqueue, claim, settle, extend, reclaim, prune.

pub(crate) mod claim;
pub(crate) mod enqueue;
pub(crate) mod lease_ranges;
pub(crate) mod leased_rows;
pub(crate) mod prune;
pub(crate) mod reclaim;
pub(crate) mod settle;
pub(crate) mod unique;

use std::ops::Range;

/// Divides `items`, which are sorted by row number, into the longest ranges of consecutive rows in which each item
/// `fits` the one before. One statement over a range of rows costs a fraction of one statement for each row.
fn consecutive_ranges<T>(
    items: &[T],
    seq: impl Fn(&T) -> i64,
    fits: impl Fn(&T, &T) -> bool,
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if seq(item) == seq(&items[at - 1]) + 1 && fits(&items[at - 1], item) => {
                range.end = at + 1;
            }
            Some(_) | None => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_repeat_and_an_item_that_does_not_fit_end_a_range() {
        let items = [(1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (4, 'b'), (6, 'b')];
        let ranges = consecutive_ranges(&items, |item| item.0, |before, item| before.1 == item.1);
        assert_eq!(ranges, [0..2, 2..4, 4..5, 5..6]);
        assert_eq!(consecutive_ranges::<i64>(&[], |seq| *seq, |_, _| true), []);
    }
}
