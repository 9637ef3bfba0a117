//! `redrive doctor`: findings about a store and its service, the most severe first.

use anyhow::Context as _;
use redrive_core::{Finding, Severity};
use redrive_server::identity;
use redrive_wire::me::{LoopbackTargets, Me};
use redrive_wire::overview::{CurrentProblem, Overview, ProblemSeverity};

use crate::client::{Client, ClientError, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::output;
use crate::serve::config::{NodeFiles, StoreOption};
use crate::serve::name_option;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreOption,
    #[command(flatten)]
    files: NodeFiles,
    #[command(flatten)]
    options: ServiceOptions,
}

/// Prints the findings. Fails if one is critical.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<ExitStatus> {
    let (store, options) = (redrive::mask_password(arguments.store.checked()?), &arguments.options);
    let files = &arguments.files;
    identity::check_settings(&files.key(), files.bodies()).map_err(|error| name_option(error.into()))?;
    let examined = redrive::doctor(&arguments.store.store).await;
    let mut findings = examined.with_context(|| format!("cannot examine {store}"))?;
    findings.extend(identity::findings(&arguments.store.store, &files.key(), files.bodies()).await);
    Finding::sort(&mut findings);
    // Only a service that was named: a service at the default address may use another store.
    if options.url.is_some() {
        findings.extend(examine_service(&options.client()?).await);
        Finding::sort(&mut findings);
    }
    if options.json {
        output::json(&json(&store, &findings))?;
    } else {
        output::text(&text(&store, &findings))?;
    }
    Ok(if worst(&findings) == Severity::Critical { ExitStatus::Failed } else { ExitStatus::Success })
}

const SERVICE: &str = "service";

/// Checks whether a service and its store answer, and collects its problems.
async fn examine_service(client: &Client) -> Vec<Finding> {
    let url = client.address().to_owned();
    if let Err(error) = client.check_ready().await {
        let (what, remedy) = match &error {
            ClientError::Rejected { .. } => ("the service is not ready", "see its log, and check its store"),
            _ => (
                "the service does not answer",
                "start it with `redrive serve`, or correct --url or REDRIVE_URL",
            ),
        };
        return vec![Finding::new(Severity::Critical, SERVICE, what, error.to_string(), remedy)];
    }
    let ready = Finding::ok(SERVICE, "the service and its store answer", url.clone());
    let loopback = examine_loopback(client).await;
    let overview = match client.get(&["overview"], &Query::new()).await {
        Ok(answer) => answer.read::<Overview>(),
        Err(error) => Err(error),
    };
    let problems = match overview {
        Ok(overview) => overview.problems.into_iter().map(|problem| finding(problem, &url)).collect(),
        Err(error) => {
            let remedy = "set REDRIVE_API_KEY to a key of scope read";
            vec![Finding::new(Severity::Note, SERVICE, "cannot read the overview", error.to_string(), remedy)]
        }
    };
    [problems, vec![ready], loopback.into_iter().collect()].concat()
}

/// Checks whether tasks may call services on the machine of the service. `None` if the key may not know.
async fn examine_loopback(client: &Client) -> Option<Finding> {
    let me = client.get(&["me"], &Query::new()).await.ok()?.read::<Me>().ok()?;
    let LoopbackTargets { allowed, reason } = me.loopback_targets?;
    if !allowed {
        return Some(Finding::ok(
            SERVICE,
            "tasks may not call services on the machine of this service (loopback)",
            reason,
        ));
    }
    let remedy = "create an API key with `redrive key create`, or start it with `--deny-target 127.0.0.0/8 --deny-target ::1/128`";
    let what = "tasks may call services on the machine of this service (loopback)";
    Some(Finding::new(Severity::Note, SERVICE, what, reason, remedy))
}

fn finding(problem: CurrentProblem, url: &str) -> Finding {
    let severity = match problem.severity {
        ProblemSeverity::Bad => Severity::Warning,
        ProblemSeverity::Warn => Severity::Note,
    };
    let command = match problem.page.as_str() {
        "dead" => "redrive dead groups",
        "jobs" => "redrive job list",
        "queues" => "redrive queue list",
        "nodes" => "redrive node list",
        _ => "redrive top",
    };
    Finding::new(severity, SERVICE, problem.text, url, format!("`{command}` shows more"))
}

fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
}

fn json(store: &str, findings: &[Finding]) -> serde_json::Value {
    serde_json::json!({ "store": store, "severity": worst(findings), "findings": findings })
}

fn text(store: &str, findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        text += &format!("{:<8} {}: {}\n", finding.severity.name(), finding.check, finding.what);
        text += &format!("         {}\n", finding.evidence);
        if let Some(remedy) = &finding.remedy {
            text += &format!("      -> {remedy}\n");
        }
    }
    text + &format!("{store}: {}\n", tally(findings))
}

/// The number of findings of each severity.
fn tally(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let each = [Severity::Critical, Severity::Warning, Severity::Note, Severity::Ok];
    let parts = each.map(|severity| match (severity, count(severity)) {
        (Severity::Warning | Severity::Note, 1) => format!("1 {}", severity.name()),
        (Severity::Warning | Severity::Note, many) => format!("{many} {}s", severity.name()),
        (Severity::Critical | Severity::Ok, many) => format!("{many} {}", severity.name()),
    });
    parts.join(", ")
}
