//! What has just been done, said on the page that follows. The address carries a word and numbers, never a sentence, so
//! that nobody can make this console say something by a link.

use crate::form::Fields;
use crate::words;

/// A sentence at the top of a page.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) class: &'static str,
    pub(crate) text: String,
}

/// The notice that a query asks for.
pub(crate) fn of(query: &Fields) -> Option<Notice> {
    let done = query.get("done")?;
    if done == "selected" {
        return Some(of_selected(query));
    }
    let text = match done {
        "cancel" => {
            "Cancelled. One that was running is asked to end; an attempt that succeeds meanwhile counts."
        }
        "run-now" => "The wait is skipped: it is due now.",
        "redrive" | "redrive-afresh" => "Driven again: attempts and budget start anew.",
        "pause" => "Paused: no further attempt is made until it is resumed.",
        "resume" => "Resumed.",
        "discard" => "Removed for good.",
        "signal" => "The signal is sent.",
        "stopped" => "Stopped. What was done stays done.",
        "queue-paused" => "Paused: nothing is claimed until it is resumed; what is in flight goes on.",
        "queue-resumed" => "Resumed.",
        "limited" => "The quota holds from the next claim on, on every node.",
        "unlimited" => "Nothing bounds the queue any more.",
        "schedule-paused" => "Paused: no occurrence is enqueued until it is resumed.",
        "schedule-resumed" => "Resumed.",
        "schedule-run" => "A job of the schedule is enqueued now.",
        "saved" => "Saved. New tasks go by it; those under way keep the version they were created with.",
        "removed" => "Removed.",
        "revoked" => "Revoked. It holds at once on this node and within a second on others.",
        "signed-out" => "Signed out.",
        _ => return None,
    };
    Some(Notice { class: "good", text: text.to_owned() })
}

fn of_selected(query: &Fields) -> Notice {
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let (done, failed) = (number("count"), number("failed"));
    let said = words::counted(done, "job is", "jobs are");
    let what = match query.get("verb") {
        Some("cancel") => "cancelled",
        Some("run-now") => "due now",
        Some("redrive") => "driven again",
        Some("pause") => "paused",
        Some("resume") => "resumed",
        Some("discard") => "removed for good",
        _ => "done",
    };
    match failed {
        0 => Notice { class: "good", text: format!("{said} {what}.") },
        failed => {
            let left = words::counted(failed, "was", "were");
            let text =
                format!("{said} {what}; {left} left as before: not in a state in which that can be done.");
            Notice { class: "warn", text }
        }
    }
}
