//! The scripts, each made of the parts it needs.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident: [$($part:literal),+];)+) => {
        $(pub(crate) static $name: LazyLock<Source> =
            LazyLock::new(|| Source::new(concat!($(include_str!(concat!("../lua/", $part, ".lua")), "\n"),+)));)+
    };
}

/// A script's text and the name that the server knows it by.
pub(crate) struct Source {
    pub(crate) text: &'static str,
    pub(crate) hash: String,
}

impl Source {
    fn new(text: &'static str) -> Self {
        Self { text, hash: Script::new(text).get_hash().to_owned() }
    }
}

scripts! {
    ATTEMPTS: ["shard", "attempts"];
    AWAITS: ["shard", "awaits"];
    CANCEL: ["shard", "closing", "cancel"];
    CLAIM: ["shard", "merge", "lease", "claim"];
    CLOSE: ["shard", "closing", "close"];
    COMPLETE: ["shard", "complete"];
    DISCARD: ["shard", "remove", "discard"];
    ENQUEUE: ["shard", "known", "add", "enqueue"];
    EXPORT: ["shard", "export"];
    EXTEND: ["shard", "extend"];
    FIND: ["shard", "known", "find"];
    FORGET: ["shard", "forget"];
    GET: ["shard", "get"];
    HEADS: ["shard", "heads"];
    HOLD: ["shard", "hold"];
    IDS: ["shard", "ids"];
    IMPORT: ["shard", "remove", "import"];
    LIST: ["shard", "list"];
    LOCATE: ["shard", "locate"];
    LOCK: ["lock"];
    LOOK: ["shard", "merge", "look"];
    PENDING_SIGNALS: ["shard", "pending_signals"];
    PROMISE: ["shard", "promise"];
    PROMISES: ["shard", "promises"];
    PRUNE: ["shard", "remove", "prune"];
    RECALL: ["shard", "recall"];
    RECLAIM: ["shard", "lease", "reclaim"];
    RECORD_IMPORT: ["record_import"];
    RECORD_SCAN: ["record_scan"];
    RECORD_WRITE: ["record_write"];
    REDRIVE: ["shard", "redrive"];
    REMEMBER: ["shard", "known", "add", "signals", "remember"];
    RESUME: ["shard", "closing", "go_on", "awaited", "resume"];
    RUN_NOW: ["shard", "run_now"];
    SEAL: ["shard", "seal"];
    SETTLE: ["shard", "known", "add", "closing", "settle"];
    SET_ASIDE: ["shard", "signals", "set_aside"];
    SIGNAL: ["shard", "signal"];
    STATS: ["shard", "stats"];
    TAKE: ["shard", "lease", "take"];
    TAKE_TURNS: ["shard", "go_on", "take_turns"];
    TURNS: ["shard", "turns"];
    UNHOLD: ["shard", "closing", "go_on", "awaited", "unhold"];
    UNLOCK: ["unlock"];
}
