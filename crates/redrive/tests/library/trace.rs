//! The span of an enqueue and the one around the handler name the same trace.

use std::io::Write;
use std::sync::{Arc, Mutex};

use redrive::{Context, Enqueue, Error, Redrive};
use serde_json::Value;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::stage::{Add, job, open, work};

const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// What was written to a log, shared by its writers.
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
    /// The spans of a name, each as its trace's id, for one kind of job.
    fn traces(&self, span: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let spans = lines.map(|line| line["span"].clone()).filter(|found| found["name"] == span);
        spans.map(|found| found["trace_id"].as_str().unwrap_or("none").to_owned()).collect()
    }
}

/// Enqueues as told, runs what there is, and says which traces the spans named.
async fn traces(enqueue: impl Fn(Enqueue) -> Enqueue) -> (Redrive, redrive::JobId, Log) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_span_events(FmtSpan::NEW)
        .with_env_filter("redrive=info")
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
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
async fn a_job_without_a_trace_is_one_and_its_children_belong_to_it() {
    let (redrive, id, log) = traces(|enqueue| enqueue).await;
    let own = id.0.simple().to_string();
    assert_eq!(log.traces("enqueue"), [own.as_str(), own.as_str()]);
    assert_eq!(log.traces("handle"), [own.as_str()]);
    assert_eq!(job(&redrive, id).await.metadata, None, "it carries nothing for that");
}

#[tokio::test]
async fn a_trace_that_the_caller_gives_is_used() {
    let with_metadata = |enqueue: Enqueue| enqueue.metadata(r#"{"user":7}"#).traceparent(TEXT);
    let (redrive, id, log) = traces(with_metadata).await;
    assert_eq!((log.traces("enqueue"), log.traces("handle")), (vec![TRACE.into(); 2], vec![TRACE.into()]));
    let kept = format!(r#"{{"traceparent":"{TEXT}","user":7}}"#);
    assert_eq!(job(&redrive, id).await.metadata, Some(kept));

    let in_metadata = |enqueue: Enqueue| enqueue.metadata(format!(r#"{{"traceparent":"{TEXT}"}}"#));
    let (_, _, log) = traces(in_metadata).await;
    assert_eq!((log.traces("enqueue"), log.traces("handle")), (vec![TRACE.into(); 2], vec![TRACE.into()]));
}

#[tokio::test]
async fn metadata_that_cannot_carry_one_is_left_alone_and_said_so() {
    let redrive = open().await;
    let plain = redrive.enqueue(Add { a: 1, b: 0 }).metadata("my own words").await.unwrap().id();
    assert_eq!(job(&redrive, plain).await.metadata.as_deref(), Some("my own words"));
    let refused = redrive.enqueue(Add { a: 1, b: 0 }).metadata("my own words").traceparent(TEXT).await;
    match refused {
        Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "traceparent"),
        other => panic!("{other:?}"),
    }
}
