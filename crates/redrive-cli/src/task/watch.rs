//! `redrive task watch`: prints the attempts of a task as they happen, until the task ends.

use std::time::Duration;

use redrive::shutdown_signal;
use redrive_wire::state::{DeadReason, JobState};
use redrive_wire::task::{Task, TaskAttempt};
use serde_json::value::RawValue;

use super::TASKS;
use crate::client::{Answer, Client, OutageTolerance, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::output::list::{Pages, Paging};
use crate::output::progress::Spinner;
use crate::output::table::{StateColour, coloured, without_controls};
use crate::output::{self, OutputStyle, time};

/// How often the task is read without an event. Another node may execute the task, and its events are not sent here.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches a task until it ends. Ctrl-C ends the command, not the task.
pub(crate) async fn watch(options: &ServiceOptions, client: &Client, id: &str) -> anyhow::Result<ExitStatus> {
    let mut watcher = TaskWatcher { options, client, id, last_attempt: None, spinner: Spinner::new() };
    tokio::select! {
        status = watcher.run() => status,
        () = shutdown_signal() => {
            output::note(&format!("the task continues; `redrive task watch {id}` watches it again"));
            Ok(ExitStatus::Interrupted)
        }
    }
}

struct TaskWatcher<'a> {
    options: &'a ServiceOptions,
    client: &'a Client,
    id: &'a str,
    /// The newest attempt that was printed.
    last_attempt: Option<Box<RawValue>>,
    spinner: Spinner,
}

impl TaskWatcher<'_> {
    async fn run(&mut self) -> anyhow::Result<ExitStatus> {
        // Subscribe before the first read, so that no event is missed between the two.
        let mut events = self.subscribe().await;
        let mut tolerance = OutageTolerance::default();
        loop {
            match self.refresh().await {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => tolerance.answered(),
                Err(error) => {
                    tolerance.tolerate(error)?;
                    self.spinner.set_message("the service does not answer; trying again");
                    events = None;
                }
            }
            if events.is_none() {
                tokio::time::sleep(POLL_INTERVAL).await;
                events = self.subscribe().await;
            } else if !wait_for_event(&mut events).await {
                events = None;
            }
        }
    }

    /// Subscribes to the events of this task. Without them the task is polled.
    async fn subscribe(&self) -> Option<reqwest::Response> {
        let query = vec![("taskId".to_owned(), self.id.to_owned())];
        self.client.stream(&["events"], &query).await.ok()
    }

    /// Prints new attempts. Returns the exit status once the task has ended.
    async fn refresh(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        // The task is read first, so that the attempt that ended it is in the log.
        let answer = self.client.get(&[TASKS, self.id], &Query::new()).await?;
        let task: Task = answer.read()?;
        self.show_attempts().await?;
        if !task.state.is_final() {
            self.spinner.set_message(&waiting_text(&task, answer.now));
            return Ok(None);
        }
        self.spinner.clear();
        self.show_end(&task, &answer)?;
        let succeeded = task.state == JobState::Succeeded;
        Ok(Some(if succeeded { ExitStatus::Success } else { ExitStatus::Unsuccessful }))
    }

    /// Prints the attempts since the last one that was printed, oldest first.
    async fn show_attempts(&mut self) -> anyhow::Result<()> {
        let path = [TASKS, self.id, "attempts"];
        let mut pages = Pages::new(self.client, &path, Query::new(), &Paging::all());
        let mut new: Vec<Box<RawValue>> = Vec::new();
        'pages: while let Some(page) = pages.read().await? {
            for attempt in page.items {
                if self.last_attempt.as_ref().is_some_and(|last| last.get() == attempt.get()) {
                    break 'pages;
                }
                new.push(attempt);
            }
        }
        let style = OutputStyle::of_stdout(pages.now);
        for attempt in new.iter().rev() {
            self.show_attempt(attempt, &style)?;
        }
        if let Some(newest) = new.into_iter().next() {
            self.last_attempt = Some(newest);
        }
        Ok(())
    }

    fn show_attempt(&self, raw: &RawValue, style: &OutputStyle) -> anyhow::Result<()> {
        if self.options.json {
            return Ok(self.spinner.suspend(|| output::text(&output::one_line(raw.get())))?);
        }
        let attempt: TaskAttempt = serde_json::from_str(raw.get())?;
        Ok(self.spinner.suspend(|| output::line(&attempt_text(&attempt, style)))?)
    }

    fn show_end(&self, task: &Task, answer: &Answer) -> anyhow::Result<()> {
        if self.options.json {
            return Ok(output::text(&output::one_line(&answer.raw()))?);
        }
        let attempts = match task.attempt_number {
            1 => "1 attempt".to_owned(),
            count => format!("{count} attempts"),
        };
        let reason =
            task.reason.map(DeadReason::name).map(|reason| format!(" ({reason})")).unwrap_or_default();
        let state = task.state.name();
        let state = coloured(state, StateColour::of(state), &answer.style());
        output::line(&format!("{state}{reason} after {attempts}"))?;
        if task.state == JobState::Dead {
            output::note(&format!("`redrive task redrive {}` gives it a new run", task.task_id));
        }
        Ok(())
    }
}

/// Waits for an event, or for the poll interval. Returns false if the stream has ended.
async fn wait_for_event(events: &mut Option<reqwest::Response>) -> bool {
    let Some(stream) = events else { return false };
    match tokio::time::timeout(POLL_INTERVAL, stream.chunk()).await {
        Ok(Ok(Some(_))) | Err(_) => true,
        Ok(Ok(None) | Err(_)) => false,
    }
}

fn waiting_text(task: &Task, now: i64) -> String {
    match (task.state, task.next_attempt_at) {
        (JobState::Running, _) => format!("attempt {} is running", task.attempt_number),
        (_, Some(at)) if at > now => format!("next attempt in {}", time::duration(at.abs_diff(now))),
        _ => "due".to_owned(),
    }
}

fn attempt_text(attempt: &TaskAttempt, style: &OutputStyle) -> String {
    let run = if attempt.run > 1 { format!("run {}, ", attempt.run) } else { String::new() };
    let outcome = coloured(&attempt.outcome, StateColour::of(&attempt.outcome), style);
    let answer = match (super::answer(attempt), &attempt.error_message) {
        (Some(status), _) => format!(" with {status}"),
        (None, Some(error)) => format!(": {},", without_controls(error)),
        (None, None) => String::new(),
    };
    let wait = attempt.wait_ms.map(|wait| format!("; next in {}", time::duration(wait))).unwrap_or_default();
    let (at, took) = (time::time_of_day(attempt.started_at), time::duration(attempt.duration_ms));
    format!("{at}  {run}attempt {} {outcome}{answer} after {took}{wait}", attempt.attempt_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_one_line() {
        let attempt = serde_json::json!({
            "attemptNumber": 2, "run": 1, "startedAt": 1500, "durationMs": 12, "responseStatus": 503,
            "errorMessage": "status 503", "outcome": "failed", "phase": "answered", "ledTo": "retrying",
            "waitMs": 1240, "nextAttemptAt": 2752, "responseExcerpt": null,
        });
        let mut attempt: TaskAttempt = serde_json::from_value(attempt).unwrap();
        let style = OutputStyle { colours: false, width: None, now: 0 };
        let line = attempt_text(&attempt, &style);
        assert_eq!(line, "00:00:01.500  attempt 2 failed with 503 after 12 ms; next in 1.2 s");
        (attempt.response_status, attempt.run, attempt.wait_ms) = (None, 3, None);
        attempt.error_message = Some("refused\x1b[2J".to_owned());
        let line = attempt_text(&attempt, &style);
        assert_eq!(line, "00:00:01.500  run 3, attempt 2 failed: refused [2J, after 12 ms");
    }
}
