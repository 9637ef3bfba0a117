//! The message about the last action, shown on the next page. The address contains a name and numbers, never a sentence, so
//! that a link on another site cannot choose the text of the message.

use crate::form::FormFields;
use crate::text;

/// A message at the top of a page.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) class: &'static str,
    pub(crate) text: String,
}

/// Returns the notice that the query names.
pub(crate) fn of(query: &FormFields) -> Option<Notice> {
    let done = query.get("done")?;
    if done == "selected" {
        return Some(of_selected(query));
    }
    let text = match done {
        "cancel" => {
            "Cancelled. A running job was asked to end; if its attempt succeeds first, the job counts as succeeded."
        }
        "run-now" => "The job is due now.",
        "redrive" | "redrive-afresh" => "The job has a new run: attempts and time budget start again.",
        "pause" => "Paused. No further attempt starts until the job is resumed.",
        "resume" => "Resumed.",
        "discard" => "The job was discarded.",
        "signal" => "The signal was sent.",
        "operation-cancelled" => {
            "The operation was cancelled. Jobs that it has already changed stay changed."
        }
        "queue-paused" => {
            "Paused. No job is claimed from the queue until it is resumed; running jobs continue."
        }
        "queue-resumed" => "Resumed.",
        "limited" => "The limits apply from the next claim, on every node.",
        "unlimited" => "The queue has no limits now.",
        "schedule-paused" => "Paused. The schedule enqueues no jobs until it is resumed.",
        "schedule-resumed" => "Resumed.",
        "schedule-run" => "The schedule has enqueued a job.",
        "saved" => {
            "Saved. New tasks use this version; existing tasks keep the version that they were created with."
        }
        "removed" => "The policy was removed.",
        "revoked" => "The key was revoked. Other nodes reject it within a second.",
        "signed-out" => "Signed out.",
        _ => return None,
    };
    Some(Notice { class: "good", text: text.to_owned() })
}

fn of_selected(query: &FormFields) -> Notice {
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let (done, failed) = (number("count"), number("failed"));
    let jobs = text::count_of(done, "job is", "jobs are");
    let result = match query.get("action") {
        Some("cancel") => "cancelled",
        Some("run-now") => "due now",
        Some("redrive") => "redriven",
        Some("pause") => "paused",
        Some("resume") => "resumed",
        Some("discard") => "discarded",
        _ => "done",
    };
    match failed {
        0 => Notice { class: "good", text: format!("{jobs} {result}.") },
        failed => {
            let unchanged = text::count_of(
                failed,
                "job was not changed, because its state does not allow it",
                "jobs were not changed, because their states do not allow it",
            );
            Notice { class: "warn", text: format!("{jobs} {result}; {unchanged}.") }
        }
    }
}
