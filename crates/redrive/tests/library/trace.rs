//! The spans of an enqueue and of its handler have the same trace id.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use redrive::{Context, Enqueue, Error, Redrive};
use serde_json::Value;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::fixture::{Add, job, open, work};

/// A `traceparent` that no other test uses, and its trace's id.
fn new_traceparent() -> (String, String) {
    let id = uuid::Uuid::now_v7().simple().to_string();
    (format!("00-{id}-b7ad6b7169203331-01"), id)
}

/// The text of a log, shared by its writers.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of this process. There is only one, because tracing caches for all threads whether a span is enabled.
    fn shared() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .json()
                .with_span_events(FmtSpan::NEW)
                .with_env_filter("redrive=debug")
                .with_writer(move || writer.clone())
                .init();
            log
        })
    }

    /// The number of spans with this name that belong to a trace.
    fn count(&self, span: &str, trace: &str) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let new = lines.filter(|line| line["fields"]["message"] == "new").map(|line| line["span"].clone());
        new.filter(|new| new["name"] == span && new["trace_id"] == trace).count()
    }
}

/// Enqueues a task with the options of `enqueue`, and runs its job.
async fn run(enqueue: impl Fn(Enqueue) -> Enqueue) -> (Redrive, redrive::JobId, &'static Log) {
    let log = Log::shared();
    let redrive = open().await;
    let id = enqueue(redrive.enqueue(Add { a: 1, b: 0 })).await.unwrap().id();
    let worker = redrive.worker().queues(["default"]).on(|add: Add, cx: Context| async move {
        cx.redrive().enqueue(Add { a: 2, b: 2 }).queue("later").key("child").await?;
        assert!(cx.traceparent().starts_with("00-"), "{}", cx.traceparent());
        Ok(add.a)
    });
    work(&redrive, worker, &[id]).await;
    (redrive, id, log)
}

#[tokio::test]
async fn a_job_without_a_trace_starts_one_that_the_jobs_of_its_handler_join() {
    let (redrive, id, log) = run(|enqueue| enqueue).await;
    let own = id.0.simple().to_string();
    assert_eq!((log.count("enqueue", &own), log.count("handle", &own)), (2, 1));
    assert_eq!(job(&redrive, id).await.metadata, None, "the trace is not stored");
}

#[tokio::test]
async fn the_trace_of_the_caller_is_used() {
    let (text, trace) = new_traceparent();
    let with_metadata = |enqueue: Enqueue| enqueue.metadata(r#"{"user":7}"#).traceparent(&text);
    let (redrive, id, log) = run(with_metadata).await;
    assert_eq!((log.count("enqueue", &trace), log.count("handle", &trace)), (2, 1));
    let kept = format!(r#"{{"traceparent":"{text}","user":7}}"#);
    assert_eq!(job(&redrive, id).await.metadata, Some(kept));

    let (text, trace) = new_traceparent();
    let in_metadata = |enqueue: Enqueue| enqueue.metadata(format!(r#"{{"traceparent":"{text}"}}"#));
    let (_, _, log) = run(in_metadata).await;
    assert_eq!((log.count("enqueue", &trace), log.count("handle", &trace)), (2, 1));
}

#[tokio::test]
async fn each_job_of_a_batch_is_logged_with_its_trace() {
    let log = Log::shared();
    let redrive = open().await;
    let (text, trace) = new_traceparent();
    redrive.enqueue_all([redrive.enqueue(Add { a: 1, b: 0 }).traceparent(&text)]).await.unwrap();
    let lines = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let named = lines.lines().filter(|line| line.contains(&trace)).count();
    assert_eq!(named, 1, "{lines}");
}

#[tokio::test]
async fn a_trace_cannot_be_added_to_metadata_that_is_not_json() {
    let redrive = open().await;
    let plain = redrive.enqueue(Add { a: 1, b: 0 }).metadata("my own words").await.unwrap().id();
    assert_eq!(job(&redrive, plain).await.metadata.as_deref(), Some("my own words"));
    let refused =
        redrive.enqueue(Add { a: 1, b: 0 }).metadata("my own words").traceparent(&new_traceparent().0).await;
    match refused {
        Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "traceparent"),
        other => panic!("{other:?}"),
    }
}
