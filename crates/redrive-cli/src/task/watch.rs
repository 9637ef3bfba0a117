//! `redrive task watch`: a task's attempts and waits as they happen, until it has ended.

use std::time::Duration;

use redrive::shutdown_signal;
use redrive_server::wire::status::Status;
use redrive_server::wire::task::{Task, TaskAttempt};
use serde_json::value::RawValue;

use super::{TASKS, has_ended};
use crate::call::{Answer, Query, Reach, Service};
use crate::exit::Exit;
use crate::list::{PAGE_ITEMS_MAX, RawPage};
use crate::patience::Patience;
use crate::print::{self, Look};
use crate::progress::Spinner;
use crate::table::{harmless, painted, tone_of};
use crate::when;

/// How often to look without being told: another node may be the one that works on the task, and tells nobody here.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Follows a task to its end; Ctrl-C leaves it alone.
pub(crate) async fn follow(reach: &Reach, service: &Service, id: &str) -> anyhow::Result<Exit> {
    let mut watch = Watch { reach, service, id, log: Log::default(), spinner: Spinner::new() };
    tokio::select! {
        exit = watch.run() => exit,
        () = shutdown_signal() => {
            print::note(&format!("the task goes on; `redrive task watch {id}` follows it again"));
            Ok(Exit::Interrupted)
        }
    }
}

struct Watch<'a> {
    reach: &'a Reach,
    service: &'a Service,
    id: &'a str,
    log: Log,
    spinner: Spinner,
}

/// How far the attempts were shown.
#[derive(Default)]
struct Log {
    cursor: Option<String>,
    shown: usize,
}

impl Watch<'_> {
    async fn run(&mut self) -> anyhow::Result<Exit> {
        // Before the first look, so that nothing is missed between the two.
        let mut events = self.listen().await;
        let mut patience = Patience::default();
        loop {
            match self.look().await {
                Ok(Some(exit)) => return Ok(exit),
                Ok(None) => patience.answered(),
                Err(error) => {
                    patience.bear(error)?;
                    self.spinner.say("the service does not answer; still trying");
                    events = None;
                }
            }
            if events.is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
                events = self.listen().await;
            } else if !heard(&mut events).await {
                events = None;
            }
        }
    }

    /// Events of this task on the node that answers; without them there is still looking.
    async fn listen(&self) -> Option<reqwest::Response> {
        let query = vec![("taskId".to_owned(), self.id.to_owned())];
        self.service.stream(&["events"], &query).await.ok()
    }

    /// Shows what is new; the exit code once the task has ended.
    async fn look(&mut self) -> anyhow::Result<Option<Exit>> {
        // The task first: attempts that ended it are then in the log.
        let answer = self.service.get(&[TASKS, self.id], &Query::new()).await?;
        let task: Task = answer.read()?;
        self.show_attempts().await?;
        let Some(status) = task.status.filter(|status| has_ended(*status)) else {
            self.spinner.say(&waiting(&task, answer.now));
            return Ok(None);
        };
        self.spinner.end();
        self.show_end(&task, status, &answer)?;
        Ok(Some(if status == Status::Succeeded { Exit::Done } else { Exit::Unsuccessful }))
    }

    async fn show_attempts(&mut self) -> anyhow::Result<()> {
        loop {
            let mut query = vec![("limit".to_owned(), PAGE_ITEMS_MAX.to_string())];
            query.extend(self.log.cursor.clone().map(|cursor| ("cursor".to_owned(), cursor)));
            let answer = self.service.get(&[TASKS, self.id, "attempts"], &query).await?;
            let page: RawPage = answer.read()?;
            for attempt in page.items.iter().skip(self.log.shown) {
                self.show_attempt(attempt, &answer.look())?;
            }
            self.log.shown = page.items.len();
            match page.next_cursor {
                Some(cursor) => self.log = Log { cursor: Some(cursor), shown: 0 },
                None => return Ok(()),
            }
        }
    }

    fn show_attempt(&self, raw: &RawValue, look: &Look) -> anyhow::Result<()> {
        if self.reach.json {
            return Ok(self.spinner.aside(|| print::text(&print::one_line(raw.get())))?);
        }
        let attempt: TaskAttempt = serde_json::from_str(raw.get())?;
        Ok(self.spinner.aside(|| print::line(&in_words(&attempt, look)))?)
    }

    fn show_end(&self, task: &Task, status: Status, answer: &Answer) -> anyhow::Result<()> {
        if self.reach.json {
            return Ok(print::text(&print::one_line(&answer.raw()))?);
        }
        let attempts = match task.attempt_number {
            1 => "1 attempt".to_owned(),
            many => format!("{many} attempts"),
        };
        let reason = task.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let name = painted(status.name(), tone_of(status.name()), &answer.look());
        print::line(&format!("{name}{reason} after {attempts}"))?;
        if status == Status::Exhausted {
            print::note(&format!("`redrive task redrive {}` drives it again", task.task_id));
        }
        Ok(())
    }
}

/// Whether the stream goes on; returns when something was heard or it is time to look anyway.
async fn heard(events: &mut Option<reqwest::Response>) -> bool {
    let Some(stream) = events else { return false };
    match tokio::time::timeout(LOOK_EVERY, stream.chunk()).await {
        Ok(Ok(Some(_))) | Err(_) => true,
        Ok(Ok(None) | Err(_)) => false,
    }
}

fn waiting(task: &Task, now: i64) -> String {
    match (task.status, task.next_attempt_at) {
        (Some(Status::InFlight), _) => format!("attempt {} is under way", task.attempt_number),
        (_, Some(at)) if at > now => format!("next attempt in {}", when::span(at.abs_diff(now))),
        _ => "due".to_owned(),
    }
}

fn in_words(attempt: &TaskAttempt, look: &Look) -> String {
    let run = if attempt.run > 1 { format!("run {}, ", attempt.run) } else { String::new() };
    let outcome = painted(&attempt.outcome, tone_of(&attempt.outcome), look);
    let answer = match (super::answer(attempt), &attempt.error_message) {
        (Some(status), _) => format!(" with {status}"),
        (None, Some(error)) => format!(": {},", harmless(error)),
        (None, None) => String::new(),
    };
    let wait = attempt.wait_ms.map(|wait| format!("; next in {}", when::span(wait))).unwrap_or_default();
    let (at, took) = (when::clock(attempt.started_at), when::span(attempt.duration_ms));
    format!("{at}  {run}attempt {} {outcome}{answer} after {took}{wait}", attempt.attempt_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_told_in_a_line() {
        let attempt = serde_json::json!({
            "attemptNumber": 2, "run": 1, "startedAt": 1500, "durationMs": 12, "responseStatus": 503,
            "errorMessage": "status 503", "outcome": "failed", "phase": "ANSWERED", "ledTo": "PENDING",
            "waitMs": 1240, "nextAttemptAt": 2752, "responseExcerpt": null,
        });
        let mut attempt: TaskAttempt = serde_json::from_value(attempt).unwrap();
        let look = Look { colours: false, width: None, now: 0 };
        let line = in_words(&attempt, &look);
        assert_eq!(line, "00:00:01.500  attempt 2 failed with 503 after 12 ms; next in 1.2 s");
        (attempt.response_status, attempt.run, attempt.wait_ms) = (None, 3, None);
        attempt.error_message = Some("refused\x1b[2J".to_owned());
        let line = in_words(&attempt, &look);
        assert_eq!(line, "00:00:01.500  run 3, attempt 2 failed: refused [2J, after 12 ms");
    }
}
