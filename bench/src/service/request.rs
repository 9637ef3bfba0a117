//! The task of every measurement: a small webhook.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The body, about 200 bytes.
pub const BODY: &str = r#"{"event":"order.paid","order":{"id":"ord_01J9ZQ3V5T","customer":"cus_000123","currency":"EUR","total":12999,"lines":[{"sku":"A-100","quantity":2},{"sku":"B-7","quantity":1}]},"livemode":true}"#;

/// The header with the due time of a call in epoch ms, for the sink.
pub const DUE: HeaderName = HeaderName::from_static("x-due-ms");

/// The headers of the task.
const HEADERS: [(&str, &str); 2] = [("x-event", "order.paid"), ("x-source", "checkout")];

/// When a task is due.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// At once.
    Now,
    /// In an hour, so that nothing is delivered during the measurement.
    InAnHour,
    /// At this time in epoch ms, which is also sent to the sink.
    At(i64),
}

/// A task as JSON.
pub fn task(target: &str, key: &str, when: When) -> String {
    let (due, start) = match when {
        When::Now => (String::new(), String::new()),
        When::InAnHour => (String::new(), r#","delayMs":3600000"#.to_owned()),
        When::At(at) => (format!(r#","{DUE}":"{at}""#), format!(r#","runAt":{at}"#)),
    };
    let [(event, paid), (source, checkout)] = HEADERS;
    format!(
        r#"{{"target":"{target}","headers":{{"{event}":"{paid}","{source}":"{checkout}"{due}}},"bodyJson":{BODY},"idempotencyKey":"{key}"{start}}}"#
    )
}

/// Many tasks as the JSON of a batch.
pub fn batch(tasks: impl Iterator<Item = String>) -> Bytes {
    let tasks: Vec<String> = tasks.collect();
    format!(r#"{{"items":[{}]}}"#, tasks.join(",")).into()
}

/// The headers of a delivery, for a client without the service.
pub fn headers(key: &str, due: Option<i64>) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert("idempotency-key", HeaderValue::from_str(key)?);
    headers.insert("redrive-task-id", HeaderValue::from_str(&uuid::Uuid::now_v7().to_string())?);
    headers.insert("redrive-attempt", HeaderValue::from(1));
    if let Some(due) = due {
        headers.insert(DUE, HeaderValue::from(due));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_wire::task::TaskRequest;

    #[test]
    fn the_service_accepts_the_task() {
        for (when, delay_ms, run_at) in
            [(When::Now, None, None), (When::InAnHour, Some(3_600_000), None), (When::At(7), None, Some(7))]
        {
            let task: TaskRequest = serde_json::from_str(&task("http://127.0.0.1:9/x", "k", when)).unwrap();
            assert_eq!((task.delay_ms, task.run_at), (delay_ms, run_at));
            assert_eq!(task.headers.unwrap().contains_key(DUE.as_str()), run_at.is_some());
            assert_eq!(task.body_json.unwrap().get(), BODY);
        }
    }
}
