//! `redrive doctor`: what would hurt, the gravest first, in a store and in the service that is named.

use anyhow::Context as _;
use redrive_core::{Finding, Gravity};
use redrive_server::identity;
use redrive_server::wire::me::{LoopbackTargets, Me};
use redrive_server::wire::overview::{Overview, Severity, Trouble};

use crate::call::{CallError, Query, Reach, Service};
use crate::config::{NodeFiles, Place};
use crate::exit::Exit;
use crate::print;
use crate::serve::name_option;

/// What to look at, and for whom.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    files: NodeFiles,
    #[command(flatten)]
    reach: Reach,
}

/// Says what was found; fails when something is grave.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let (store, reach) = (redrive::shown(arguments.place.checked()?), &arguments.reach);
    let files = &arguments.files;
    identity::check_settings(&files.key(), files.bodies()).map_err(|error| name_option(error.into()))?;
    let looked = redrive::doctor(&arguments.place.store).await;
    let mut findings = looked.with_context(|| format!("{store} cannot be looked at"))?;
    findings.extend(identity::findings(&arguments.place.store, &files.key(), files.bodies()).await);
    Finding::sort(&mut findings);
    // Only one that was named: whatever else listens at the usual place is no part of this store.
    if reach.url.is_some() {
        findings.extend(look_at(&reach.service()?).await);
        Finding::sort(&mut findings);
    }
    if reach.json {
        print::json(&json(&store, &findings))?;
    } else {
        print::text(&text(&store, &findings))?;
    }
    Ok(if worst(&findings) == Gravity::Grave { Exit::Failed } else { Exit::Done })
}

const SERVICE: &str = "service";

/// Whether a service answers, whether its store does, and what it finds wrong itself.
async fn look_at(service: &Service) -> Vec<Finding> {
    let url = service.address().to_owned();
    if let Err(error) = service.get(&["readyz"], &Query::new()).await {
        let (what, remedy) = match &error {
            CallError::Refused { .. } => ("the service cannot work", "look at its log, and at its store"),
            _ => ("the service does not answer", "start it with `redrive serve`, or correct REDRIVE_URL"),
        };
        return vec![Finding::new(Gravity::Grave, SERVICE, what, error.to_string(), remedy)];
    }
    let ready = Finding::fine(SERVICE, "it answers, and its store does", url.clone());
    let loopback = look_at_loopback(service).await;
    let overview = match service.get(&["overview"], &Query::new()).await {
        Ok(answer) => answer.read::<Overview>(),
        Err(error) => Err(error),
    };
    let problems = match overview {
        Ok(overview) => overview.problems.into_iter().map(|trouble| finding(trouble, &url)).collect(),
        Err(error) => {
            let remedy = "set REDRIVE_API_KEY to a key of scope read";
            vec![Finding::new(Gravity::Note, SERVICE, "more cannot be looked at", error.to_string(), remedy)]
        }
    };
    [problems, vec![ready], loopback.into_iter().collect()].concat()
}

/// Whether tasks may call services on the machine that the service runs on; none for a key that may not know.
async fn look_at_loopback(service: &Service) -> Option<Finding> {
    let me = service.get(&["me"], &Query::new()).await.ok()?.read::<Me>().ok()?;
    let LoopbackTargets { allowed, reason } = me.loopback_targets?;
    if !allowed {
        return Some(Finding::fine(SERVICE, "tasks may not call services on its machine (loopback)", reason));
    }
    let remedy = "create an API key with `redrive key create`, or start it with `--deny-target 127.0.0.0/8 --deny-target ::1/128`";
    let what = "tasks may call services on its machine (loopback)";
    Some(Finding::new(Gravity::Note, SERVICE, what, reason, remedy))
}

fn finding(trouble: Trouble, url: &str) -> Finding {
    let gravity = match trouble.severity {
        Severity::Bad => Gravity::Warning,
        Severity::Warn => Gravity::Note,
    };
    let command = match trouble.page.as_str() {
        "dead" => "redrive dead groups",
        "jobs" => "redrive job list",
        "queues" => "redrive queue list",
        "nodes" => "redrive node list",
        _ => "redrive top",
    };
    Finding::new(gravity, SERVICE, trouble.text, url, format!("`{command}` shows more"))
}

fn worst(findings: &[Finding]) -> Gravity {
    findings.iter().map(|finding| finding.gravity).max().unwrap_or(Gravity::Fine)
}

fn json(store: &str, findings: &[Finding]) -> serde_json::Value {
    serde_json::json!({ "store": store, "gravity": worst(findings), "findings": findings })
}

fn text(store: &str, findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        text += &format!("{:<8} {}: {}\n", finding.gravity.name(), finding.check, finding.what);
        text += &format!("         {}\n", finding.evidence);
        if let Some(remedy) = &finding.remedy {
            text += &format!("      -> {remedy}\n");
        }
    }
    text + &format!("{store}: {}\n", tally(findings))
}

/// How many there are of each gravity, in words.
fn tally(findings: &[Finding]) -> String {
    let count = |gravity| findings.iter().filter(|finding| finding.gravity == gravity).count();
    let each = [Gravity::Grave, Gravity::Warning, Gravity::Note, Gravity::Fine];
    let parts = each.map(|gravity| match (gravity, count(gravity)) {
        (Gravity::Warning | Gravity::Note, one @ 1) => format!("{one} {}", gravity.name()),
        (Gravity::Warning | Gravity::Note, many) => format!("{many} {}s", gravity.name()),
        (Gravity::Grave | Gravity::Fine, many) => format!("{many} {}", gravity.name()),
    });
    parts.join(", ")
}
