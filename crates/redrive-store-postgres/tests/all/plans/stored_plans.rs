//! Checks the plans that sessions store for the functions of the database.

use redrive_sql::Statement;

use super::{
    BACKLOG, FAMILIES, Fixture, LIMIT, Plan, STATISTICS, array, claim_arguments, null, parenthesized, text,
    usage_arguments,
};
use crate::sql;

impl Fixture {
    /// Stores the plan of a statement, as a function of the database does, while the tables are as they are now.
    async fn store_plan(&self, name: &str, statement: &Statement, types: &str, arguments: &[String]) {
        let (types, arguments) = (parenthesized(types), parenthesized(&arguments.join(", ")));
        let sql =
            format!("PREPARE {name} {types} AS {};\nEXPLAIN EXECUTE {name} {arguments}", statement.text());
        self.client.simple_query(&sql).await.unwrap_or_else(|error| panic!("{error:?}: {sql}"));
    }

    /// Runs a statement with its stored plan, and returns the plan.
    async fn stored_plan(&self, name: &str, arguments: &[String]) -> Plan {
        let arguments = parenthesized(&arguments.join(", "));
        let sql =
            format!("BEGIN; EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} {arguments}; ROLLBACK");
        self.explained(name, &sql).await
    }
}

/// A session plans the functions once, perhaps while the tables are empty, and uses the plans when they are large.
#[tokio::test]
async fn plans_that_are_stored_on_empty_tables_suit_large_ones() {
    let fixture = Fixture::open(&[]).await;
    let settings: Vec<String> = sql::PLAN_SETTINGS.iter().map(|setting| format!("SET {setting}")).collect();
    let settings = settings.join("; ");
    fixture.prepare(&settings).await;
    let claim = "bigint, text[], text[], bigint, integer[], bigint[], uuid[], text, bigint, boolean";
    let [one_lane, all_lanes] = [claim_arguments("{a}", "{x}"), claim_arguments("{}", "{}")];
    let candidates = [null(), text("'{1,2,3,4,5,6,7,8}'"), text("'{t,t,t,t,f,f,f,f}'"), text(LIMIT)];
    let partitions = array((0..LIMIT).map(|key| format!("a\u{1f}{key}")), "text");
    let usage = usage_arguments(&partitions, false);
    let of_usage =
        "bigint, text[], text[], bigint[], text[], bigint[], bigint[], boolean[], bigint[], boolean";
    let (lifecycle, limits) = (sql::LIFECYCLE, sql::LIMITS);
    let statements = [
        ("claim_whole_lanes", lifecycle.statement("claim_whole_lanes"), claim, &one_lane[..], 2 * LIMIT + 2),
        ("claim_by_due_time", lifecycle.statement("claim_by_due_time"), claim, &all_lanes, 8 * (LIMIT + 2)),
        (
            "claim_candidates",
            limits.statement("claim_candidates"),
            "bigint, integer[], boolean[], bigint",
            &candidates,
            8 * LIMIT,
        ),
        ("next_due", limits.statement("next_due"), "integer[]", &candidates[1..2], 8),
        ("find_slot_waiters", limits.statement("find_slot_waiters"), "", &candidates[..0], 1),
        (
            "find_partitions_to_serve",
            limits.statement("find_partitions_to_serve"),
            "text[]",
            std::slice::from_ref(&partitions),
            2 * LIMIT,
        ),
        ("count_usage", limits.statement("count_usage"), of_usage, &usage, 3 * LIMIT),
    ];
    for (name, statement, types, arguments, _) in &statements {
        fixture.store_plan(name, statement, types, arguments).await;
    }
    // Filling the tables needs none of the settings, and is slow with them.
    for sql in ["RESET ALL", BACKLOG, FAMILIES, &settings] {
        fixture.prepare(sql).await;
    }
    for statistics in STATISTICS {
        // New statistics make the session plan its statements again.
        fixture.prepare(statistics).await;
        for (name, _, _, arguments, most) in &statements {
            fixture.stored_plan(name, arguments).await.reads_at_most(*most);
        }
        let claim = fixture.stored_plan("claim_whole_lanes", &one_lane).await;
        claim.reads_in_order(&["ready", "jobs", "progress"]);
    }
}
