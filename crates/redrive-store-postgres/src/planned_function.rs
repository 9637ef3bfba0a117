//! Functions in the database that run one statement each, with a stored plan.
//!
//! The server plans an unnamed statement at each call. For a claim of a few jobs that takes ten times as long as the claim itself. Inside a
//! function, a session plans a statement once, and a pooler cannot lose the plan. The text of the statement stays in its file: a node that
//! starts, and `redrive migrate`, create the functions that are missing. A name ends with a hash of the text, so two builds never share a
//! function. Without the functions, for example because a role may not create them, the store sends the statements themselves.
//!
//! A function fits a statement that joins no long lists with each other and has a short answer. A stored plan does not know how long the lists
//! are, and the server keeps the answer of a function in memory before it sends any of it.

use std::sync::OnceLock;

use redrive_sql::{SqlFile, Statement};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::error::Result;
use crate::lifecycle::{claim as unlimited, settle};
use crate::limits::{claim as limited, locks, slots, usage};
use crate::sql::PLAN_SETTINGS;

/// Every function.
static FUNCTIONS: [&PlannedFunction; 12] = [
    &unlimited::CLAIM_WHOLE_LANES,
    &unlimited::CLAIM_BY_DUE_TIME,
    &settle::SETTLE_SUCCESS,
    &limited::LANES_WITH_LIMITS,
    &limited::CLAIM_CANDIDATES,
    &limited::NEXT_DUE,
    &limited::APPLY_CLAIM,
    &limited::READ_LEASED,
    &locks::LOCK_SCOPES,
    &slots::FIND_SLOT_WAITERS,
    &slots::FIND_PARTITIONS_TO_SERVE,
    &usage::COUNT_USAGE,
];

/// A function that runs a statement.
#[derive(Debug)]
pub(crate) struct PlannedFunction {
    /// The first part of the function's name: the name of its statement.
    name: &'static str,
    statement: Statement,
    /// The types of the statement's parameters.
    parameters: &'static str,
    /// The columns of the statement's rows, with their types, in parts.
    columns: &'static [&'static str],
    call: OnceLock<String>,
}

impl PlannedFunction {
    /// A function for the statement `name` of `file`.
    pub(crate) const fn new(
        file: SqlFile,
        name: &'static str,
        parameters: &'static str,
        columns: &'static [&'static str],
    ) -> Self {
        Self { name, statement: file.statement(name), parameters, columns, call: OnceLock::new() }
    }

    /// The statement itself.
    pub(crate) fn statement(&self) -> &str {
        self.statement.text()
    }

    /// A statement that calls the function. It has the same parameters and rows.
    pub(crate) fn call(&self) -> &str {
        self.call.get_or_init(|| {
            let types = self.parameters.split(',').filter(|each| !each.is_empty());
            let parameters: Vec<String> = types.zip(1..).map(|(_, number)| format!("${number}")).collect();
            format!("SELECT * FROM redrive.{}({})", self.full_name(), parameters.join(", "))
        })
    }

    fn signature(&self) -> String {
        format!("redrive.{}({})", self.full_name(), self.parameters)
    }

    fn full_name(&self) -> String {
        format!("{}_{:016x}", self.name, hash(&self.definition()))
    }

    fn definition(&self) -> String {
        let settings: Vec<String> = PLAN_SETTINGS.iter().map(|setting| format!("SET {setting}")).collect();
        format!(
            "RETURNS TABLE ({}) LANGUAGE plpgsql {}\nAS $body$\n#variable_conflict use_column\nBEGIN\nRETURN QUERY {};\nEND $body$",
            self.columns.join(", "),
            settings.join(" "),
            self.statement.text()
        )
    }
}

/// Creates the functions of this build that are missing.
pub(crate) async fn create_missing(client: &Client) -> Result<()> {
    let missing = missing(client).await?;
    for function in FUNCTIONS {
        let signature = function.signature();
        if missing.contains(&signature) {
            let sql = format!("CREATE FUNCTION {signature} {}", function.definition());
            client.batch_execute(&sql).await?;
        }
    }
    Ok(())
}

/// Whether the role can use all functions of this build.
pub(crate) async fn are_usable(client: &Client) -> Result<bool> {
    let usable = "coalesce(has_function_privilege(to_regprocedure(signature), 'EXECUTE'), false)";
    Ok(functions_that(client, &format!("NOT {usable}")).await?.is_empty())
}

async fn missing(client: &Client) -> Result<Vec<String>> {
    functions_that(client, "to_regprocedure(signature) IS NULL").await
}

/// The signatures of the functions of this build that meet a condition.
async fn functions_that(client: &Client, condition: &str) -> Result<Vec<String>> {
    let signatures: Vec<String> = FUNCTIONS.iter().map(|function| function.signature()).collect();
    let sql = format!("SELECT signature FROM unnest($1::text[]) AS signature WHERE {condition}");
    let rows = client.query_typed(&sql, &[(&signatures, Type::TEXT_ARRAY)]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// FNV-1a, which is the same in every build.
fn hash(text: &str) -> u64 {
    let next = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, next)
}
