//! A bounded map that forgets what was not asked for lately.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Two generations: what is asked for moves to the young one; when that is full it becomes the old one, and the
/// old one is forgotten. At most twice `generation_items_max` entries, no bookkeeping per use.
pub(crate) struct Recent<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
    generation_items_max: usize,
}

impl<K: Ord, V> Recent<K, V> {
    pub(crate) fn new(generation_items_max: usize) -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new(), generation_items_max }
    }

    /// The value, which counts as asked for.
    pub(crate) fn get<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.young.contains_key(key)
            && let Some((key, value)) = self.old.remove_entry(key)
        {
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds or replaces a value.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.generation_items_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_bounded_and_keeps_what_is_asked_for() {
        let mut recent = Recent::new(4);
        recent.insert(0, "kept");
        for key in 1..100 {
            recent.insert(key, "passing");
            assert_eq!(recent.get(&0), Some(&mut "kept"), "after {key}");
            assert!(recent.young.len() + recent.old.len() <= 8);
        }
        assert_eq!(recent.get(&1), None);
    }
}
