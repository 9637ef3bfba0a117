//! Every size limit of the engine. The error for exceeding a limit states the limit.

use std::time::Duration;

use crate::invalid::Invalid;

/// Bytes of a job's payload: a body of 64 KiB, plus target and headers. Larger bodies belong in an object store.
pub const PAYLOAD_BYTES_MAX: usize = 96 * 1024;
/// Bytes of a handler's output.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a step's result, or of a signal.
pub const STEP_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the last error and of each attempt's error. Longer errors are truncated.
pub const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the name of a queue, kind, tenant, policy or worker.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a job's target.
pub const TARGET_BYTES_MAX: usize = 2048;
/// Bytes of the evidence kept with one attempt.
pub const DETAIL_BYTES_MAX: usize = 16 * 1024;
/// Jobs that one settlement may enqueue.
pub const FOLLOW_UPS_MAX: usize = 8;
/// Bytes of an idempotency key.
pub const KEY_BYTES_MAX: usize = 256;
/// Items in one call to `enqueue`, `claim`, `settle` or any other method that takes a batch.
pub const BATCH_ITEMS_MAX: usize = 1000;
/// Signals and fan-outs that one job may wait for at once.
pub const AWAITS_MAX: usize = 64;
/// Items on one page of a list.
pub const PAGE_ITEMS_MAX: usize = 1000;
/// Bytes of one record's value.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;
/// How far ahead a job may be scheduled, and the longest wait between two attempts.
pub const HORIZON: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The shortest lease that a job or policy may ask for. Heartbeats renew a lease three times in its length.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease. After a crash, no worker runs the job until its lease has run out.
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// Attempts that a policy may allow.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Bytes of all annotations of a policy.
pub const ANNOTATIONS_BYTES_MAX: usize = 8 * 1024;
/// Entries in a schedule backoff.
pub const DELAYS_ITEMS_MAX: usize = 100;

/// Rejects text with a NUL character, which Postgres cannot store.
pub(crate) fn check_text(field: &'static str, text: Option<&str>) -> Result<(), Invalid> {
    match text {
        Some(text) if text.contains('\0') => Err(Invalid::new(field, "must not contain a NUL character")),
        _ => Ok(()),
    }
}

/// Truncates `text` to [`ERROR_BYTES_MAX`] at a character boundary, and replaces NUL characters, which Postgres cannot store.
pub fn truncate_error(mut text: String) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    if text.len() > ERROR_BYTES_MAX {
        let mut end = ERROR_BYTES_MAX - "…".len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_truncated_at_a_character_boundary() {
        for filler in ["x", "é", "日", "🦀"] {
            let cut = truncate_error(filler.repeat(ERROR_BYTES_MAX + 1));
            assert!(
                cut.len() <= ERROR_BYTES_MAX && cut.len() > ERROR_BYTES_MAX - 8,
                "{filler}: {}",
                cut.len()
            );
            assert!(cut.ends_with('…'));
        }
        assert_eq!(truncate_error("short".into()), "short");
        assert_eq!(truncate_error("a\0b".into()), "a\u{fffd}b");
    }
}
