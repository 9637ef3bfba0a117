//! Content in memory, the least recently read going first. A blob never changes, so that nothing in here can be stale:
//! whether a paste may be shown is asked of the database each time.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use uuid::Uuid;

/// Bytes of a content that is worth keeping.
pub const ITEM_BYTES_MAX: usize = 1024 * 1024;

/// Contents by their blob, within a number of bytes.
#[derive(Debug)]
pub struct Cache {
    bytes_max: usize,
    bytes: usize,
    tick: u64,
    contents: HashMap<Uuid, (u64, Bytes)>,
    by_use: BTreeMap<u64, Uuid>,
}

impl Cache {
    /// An empty one.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, tick: 0, contents: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// A content, used just now.
    pub fn get(&mut self, blob: Uuid) -> Option<Bytes> {
        let (used, bytes) = self.contents.get_mut(&blob)?;
        self.tick += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.tick, blob);
        *used = self.tick;
        Some(bytes.clone())
    }

    /// Keeps a content if it is small enough, in place of those that were not used for longest.
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
            let gone = self.contents.remove(&oldest).map_or(0, |(_, content)| content.len());
            self.bytes -= gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_read_for_longest_makes_room() {
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
            "what would not fit spoils nothing"
        );
        cache.put(id(3), Bytes::from_static(b"0123456789"));
        assert_eq!((cache.bytes, cache.contents.len(), cache.by_use.len()), (30, 3, 3));
    }
}
