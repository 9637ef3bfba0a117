//! Caches content in memory, and evicts the least recently used first. A blob never changes, so no entry is ever stale. The site reads
//! from the database each time whether a paste may be shown.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use uuid::Uuid;

/// Larger content is not cached.
pub const ITEM_BYTES_MAX: usize = 1024 * 1024;

/// Contents by blob, up to a total size.
#[derive(Debug)]
pub struct Cache {
    bytes_max: usize,
    bytes: usize,
    tick: u64,
    contents: HashMap<Uuid, (u64, Bytes)>,
    by_use: BTreeMap<u64, Uuid>,
}

impl Cache {
    /// An empty cache.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, tick: 0, contents: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// Returns a content and marks it as used.
    pub fn get(&mut self, blob: Uuid) -> Option<Bytes> {
        let (used, bytes) = self.contents.get_mut(&blob)?;
        self.tick += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.tick, blob);
        *used = self.tick;
        Some(bytes.clone())
    }

    /// Adds a content if it is small enough, and evicts the least recently used ones if needed.
    pub fn put(&mut self, blob: Uuid, content: Bytes) {
        if content.len() > ITEM_BYTES_MAX.min(self.bytes_max) || self.get(blob).is_some() {
            return;
        }
        self.bytes += content.len();
        self.tick += 1;
        self.by_use.insert(self.tick, blob);
        self.contents.insert(blob, (self.tick, content));
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            let evicted = self.contents.remove(&oldest).map_or(0, |(_, content)| content.len());
            self.bytes -= evicted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_content_is_evicted() {
        let mut cache = Cache::new(30);
        let id = Uuid::from_u128;
        for n in 0..3 {
            cache.put(id(n), Bytes::from(vec![n as u8; 10]));
        }
        assert!(cache.get(id(0)).is_some());
        cache.put(id(3), Bytes::from_static(b"0123456789"));
        let kept: Vec<bool> = (0..4).map(|n| cache.get(id(n)).is_some()).collect();
        assert_eq!(kept, [true, false, true, true]);
        cache.put(id(9), Bytes::from(vec![0; 31]));
        assert!(
            cache.get(id(9)).is_none() && cache.get(id(3)).is_some(),
            "a content that does not fit evicts nothing"
        );
        cache.put(id(3), Bytes::from_static(b"0123456789"));
        assert_eq!((cache.bytes, cache.contents.len(), cache.by_use.len()), (30, 3, 3));
    }
}
