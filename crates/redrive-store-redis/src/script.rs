//! The Lua scripts. A file in `lua/` holds the scripts of one concern; `lua/lib/` holds the functions that they share.

mod arguments;
pub(crate) mod reply;

use std::sync::OnceLock;

pub(crate) use arguments::{Arguments, Fields};
use redrive_sql::{SqlFile, Statement};

/// A script, and the hash by which a server that has cached it knows it.
pub(crate) struct Script {
    text: Statement,
    hash: OnceLock<String>,
}

impl Script {
    const fn new(text: Statement) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    pub(crate) fn text(&self) -> &str {
        self.text.text()
    }

    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text()).get_hash().to_owned())
    }
}

/// A script starts with the libraries that it uses: `{job} {lease}` stands for `lua/lib/job.lua` and `lua/lib/lease.lua`.
const LIBRARIES: &[(&str, &str)] = &[
    ("add", include_str!("../lua/lib/add.lua")),
    ("job_tree", include_str!("../lua/lib/job_tree.lua")),
    ("job", include_str!("../lua/lib/job.lua")),
    ("lease", include_str!("../lua/lib/lease.lua")),
    ("make_due", include_str!("../lua/lib/make_due.lua")),
    ("remove", include_str!("../lua/lib/remove.lua")),
    ("take_signal", include_str!("../lua/lib/take_signal.lua")),
    ("waits", include_str!("../lua/lib/waits.lua")),
    ("walk", include_str!("../lua/lib/walk.lua")),
];

macro_rules! scripts {
    ($($file:literal { $($constant:ident: $name:literal;)+ })+) => {
        $($(pub(crate) static $constant: Script = Script::new(
            SqlFile::new(include_str!(concat!("../lua/", $file, ".lua")), LIBRARIES).statement($name),
        );)+)+
    };
}

scripts! {
    "lifecycle" {
        ENQUEUE: "enqueue";
        FIND: "find";
        LANE_HEADS: "lane_heads";
        CLAIM: "claim";
        SETTLE: "settle";
        SETTLE_SUCCESSES: "settle_successes";
        EXTEND: "extend";
        RECLAIM: "reclaim";
        PRUNE: "prune";
    }
    "limits" {
        LOCK: "lock";
        UNLOCK: "unlock";
        CANDIDATES: "candidates";
        APPLY_ADMISSIONS: "apply_admissions";
        SCOPE_STATE: "scope_state";
        GRANT_SLOTS: "grant_slots";
    }
    "operate" {
        CANCEL: "cancel";
        CANCEL_DESCENDANTS: "cancel_descendants";
        REDRIVE: "redrive";
        RUN_NOW: "run_now";
        DISCARD: "discard";
        PAUSE: "pause";
        UNPAUSE: "unpause";
    }
    "steps" {
        RECALL: "recall";
        REMEMBER: "remember";
        FORGET: "forget";
        SIGNAL: "signal";
        PENDING_SIGNALS: "pending_signals";
        SKIP_SIGNALS: "skip_signals";
        WAITING: "waiting";
        RESUME: "resume";
    }
    "read" {
        GET: "get";
        LIST: "list";
        ATTEMPTS: "attempts";
        STATS: "stats";
        LOCATE: "locate";
    }
    "records" {
        RECORD_WRITE: "write";
        RECORD_SCAN: "scan";
        RECORD_IMPORT: "import";
    }
    "transfer" {
        IDS: "ids";
        EXPORT: "export";
        IMPORT: "import";
        EXPORT_RESERVED_KEYS: "export_reserved_keys";
        IMPORT_RESERVED_KEYS: "import_reserved_keys";
        SEAL: "seal";
    }
}
