//! Log lines on standard error, and traces over OTLP if the environment names a collector.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use super::config::LogFormat;

/// The address of the collector, by the OpenTelemetry convention.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Below this level these libraries log data that passes through them, such as the parameters of a statement.
const QUIET: [&str; 2] = ["tokio_postgres=info", "h2=info"];

/// The running exporters. They must be flushed at the end.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts to log. `RUST_LOG` sets the level; the default is `info`.
    pub(crate) fn start(format: LogFormat) -> anyhow::Result<Self> {
        let traces = std::env::var_os(ENDPOINT).map(|_| exporter()).transpose()?;
        let spans = traces
            .as_ref()
            .map(|traces| tracing_opentelemetry::layer().with_tracer(traces.tracer("redrive")))
            .map(|layer| layer.with_filter(EnvFilter::new("info")));
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let filter = QUIET.iter().try_fold(filter, |filter, directive| {
            anyhow::Ok(filter.add_directive(directive.parse().context("invalid log directive")?))
        })?;
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
        let lines = match format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(lines.with_filter(filter))
            .with(spans)
            .try_init()
            .context("logging is already started")?;
        Ok(Self { traces })
    }

    /// Sends the remaining traces.
    pub(crate) fn end(self) {
        if let Some(traces) = self.traces
            && let Err(error) = traces.shutdown()
        {
            eprintln!("cannot send the last traces: {error}");
        }
    }
}

/// Sends spans in batches over HTTP, from a thread of its own.
fn exporter() -> anyhow::Result<SdkTracerProvider> {
    // The HTTP client panics without a crypto provider. This does nothing if one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .build()
        .with_context(|| format!("cannot send traces to the collector in {ENDPOINT}"))?;
    let resource = Resource::builder().with_service_name("redrive").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
