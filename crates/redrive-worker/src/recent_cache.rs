//! A bounded cache that evicts entries which were not used recently.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// A cache with two generations. A use moves an entry to the young generation. When the young generation is full it becomes
/// the old one, and the previous old one is dropped. The cache holds at most twice `generation_items_max` entries and keeps no
/// record of single uses.
pub(crate) struct RecentCache<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
    generation_items_max: usize,
}

impl<K: Ord, V> RecentCache<K, V> {
    pub(crate) fn new(generation_items_max: usize) -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new(), generation_items_max }
    }

    /// Returns the value and marks it as used.
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
    fn the_cache_stays_bounded_and_keeps_entries_in_use() {
        let mut cache = RecentCache::new(4);
        cache.insert(0, "in use");
        for key in 1..100 {
            cache.insert(key, "unused");
            assert_eq!(cache.get(&0), Some(&mut "in use"), "after {key}");
            assert!(cache.young.len() + cache.old.len() <= 8);
        }
        assert_eq!(cache.get(&1), None);
    }
}
