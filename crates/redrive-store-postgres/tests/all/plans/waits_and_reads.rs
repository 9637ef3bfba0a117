//! The plans of steps, waits, operator actions, prune and reads.

use super::*;

#[tokio::test]
async fn resume_and_sweep_read_one_live_child_and_the_counted_failures() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let steps = |name| sql::STEPS.statement(name);
    let parents = fixture.ids("SELECT id FROM redrive.waiting WHERE awaits <> 3").await;
    assert_eq!(parents.len(), PARENTS);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        // Waits for children of which three may fail, with and without children that must end first; for a signal, all of which were
        // taken; and for both.
        let both = r#"awaits = 4, awaits_name = '[{"signal":"go"},{"branch":0,"failures":3}]'"#;
        for (change, stage, rows_per_parent) in [
            ("awaits = 1, awaits_failures = 3", 0, 5),
            ("awaits = 1, awaits_failures = 3", 1, 5),
            ("awaits = 1, awaits_failures = 4294967295", 0, FAILURES),
            ("awaits = 0, awaits_name = 'go'", 0, 1),
            (both, 1, 5),
        ] {
            let requested = format!(
                "UPDATE redrive.waiting SET {change} WHERE awaits <> 3; UPDATE redrive.children SET stage = {stage} WHERE stage < 2 AND id IN \
                 (SELECT unnest(ids) FROM redrive.claims WHERE claim = 90000)"
            );
            let most = rows_per_parent * PARENTS;
            let resume = steps("resume");
            let plan = fixture.plan_after(&requested, resume.text(), &[null(), uuids(&parents)]).await;
            plan.reads_at_most(most);
            if stage == 0 {
                // The scan starts at the youngest child, which lives, and so does not reach the dead entries of ended children.
                plan.reads_pages_at_most("children", 2 * PARENTS * FAILURES);
            }
            // The parents have the smallest ids, so a sweep of this size reads them only.
            let sweep = steps("sweep");
            let plan = fixture.plan_after(&requested, sweep.text(), &[null(), null(), text(PARENTS)]).await;
            plan.reads_at_most(most);
        }
    }
}

#[tokio::test]
async fn steps_and_signals_use_their_indexes() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let steps = |name| sql::STEPS.statement(name);
    let parent = fixture.ids("SELECT id FROM redrive.waiting WHERE awaits = 1 LIMIT 1").await[0];
    let signal =
        fixture.ids(&format!("SELECT id FROM redrive.signals WHERE job = '{parent}' LIMIT 1")).await[0];
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let held = Held::read(&fixture, 5).await;
        let (ids, epochs, count) = (uuids(&held.ids), held.epochs(), held.ids.len());
        let places = repeat(1, count, "bigint");
        let values = [
            places.clone(),
            repeat(0, count, "smallint"),
            repeat("step", count, "text"),
            repeat("x", count, "bytea"),
        ];
        let remember = [&[ids.clone(), epochs.clone()], &values[..]].concat();
        fixture.plan(&steps("remember"), &remember).await.reads_at_most(LIMIT);
        fixture.plan(&steps("find_steps"), &[ids.clone(), places]).await.reads_at_most(LIMIT);
        fixture
            .plan(&steps("recall"), &[format!("'{}'", held.ids[0]), text(0), text(LIMIT)])
            .await
            .reads_at_most(2);
        let lock = [null(), text(0), null(), ids, epochs, repeat("t", count, "boolean")];
        fixture.plan(&steps("lock_leases"), &lock).await.reads_at_most(LIMIT);
        let take =
            [format!("'{parent}'"), text(7), text(4), text("'step'"), text("'x'"), format!("'{signal}'")];
        fixture.plan(&steps("remember_signal"), &take).await.reads_at_most(1);
        let pending = [format!("'{parent}'"), text("'{go}'"), text(LIMIT)];
        fixture.plan(&steps("pending_signals"), &pending).await.reads_at_most(1);
        let skipped = [format!("'{}'", held.ids[0]), text(held.epoch), array([signal], "uuid")];
        fixture.plan(&steps("skip_signals"), &skipped).await.reads_at_most(1);
        let everywhere = mixed(&fixture).await;
        let count = everywhere.len();
        let sent = [
            uuids(&everywhere),
            uuids(&everywhere),
            repeat("go", count, "text"),
            repeat("x", count, "bytea"),
        ];
        fixture.plan(&steps("signal"), &sent).await.reads_at_most(count);
    }
}

/// Jobs that are ready, ended, waiting and running.
async fn mixed(fixture: &Fixture) -> Vec<Uuid> {
    let sql = "(SELECT id FROM redrive.ready LIMIT 25) UNION ALL (SELECT id FROM redrive.ended LIMIT 25) \
        UNION ALL (SELECT id FROM redrive.waiting WHERE awaits = 3 LIMIT 25) \
        UNION ALL (SELECT unnest(ids) FROM redrive.claims WHERE claim = 7 LIMIT 25)";
    fixture.ids(sql).await
}

#[tokio::test]
async fn an_operator_action_reads_only_its_jobs_and_their_live_children() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let (operate, retention) = (|name| sql::OPERATE.statement(name), |name| sql::RETENTION.statement(name));
    let parents = fixture.ids("SELECT id FROM redrive.waiting WHERE awaits = 1").await;
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let everywhere = mixed(&fixture).await;
        for ids in [&everywhere, &parents] {
            let cancel = [null(), text(7), uuids(ids), text("'{7}'"), text("'{0}'")];
            fixture.plan(&operate("cancel"), &cancel).await.reads_at_most(ids.len());
        }
        let fan_outs = [uuids(&parents), repeat(0, PARENTS, "integer"), text(1_000)];
        // A bitmap scan reads the dead entries of all ended children.
        let with_dead = PARENTS * CHILDREN / 10 + PARENTS;
        fixture.plan(&operate("next_of_branches"), &fan_outs).await.reads_at_most(with_dead);
        let ended = format!(
            "INSERT INTO redrive.closing (tree, job) SELECT 7, unnest({ids}); DELETE FROM redrive.waiting WHERE id = ANY ({ids}); \
             INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) SELECT unnest({ids}), 1, 0, 1, 5",
            ids = uuids(&parents)
        );
        let next = operate("next_descendants");
        let next = fixture.plan_after(&ended, next.text(), &[text(7), text(1_000)]).await;
        next.reads_at_most(with_dead);
        let dead = fixture.ids("SELECT id FROM redrive.ended WHERE state = 5 LIMIT 100").await;
        for ids in [&everywhere, &dead] {
            for name in ["redrive", "run_now"] {
                fixture.plan(&operate(name), &[null(), uuids(ids)]).await.reads_at_most(LIMIT);
            }
            for name in ["pause", "unpause", "forget"] {
                fixture.plan(&operate(name), &[uuids(ids)]).await.reads_at_most(LIMIT);
            }
            fixture.plan(&retention("discard"), &[null(), uuids(ids)]).await.reads_at_most(LIMIT);
        }
    }
}

/// A lookup by parent and branch alone would read an index entry of every sibling for each child that ends.
#[tokio::test]
async fn the_end_of_a_child_reads_few_pages_however_many_siblings_it_has() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let held = Held::read(&fixture, 90_001).await;
        let most = 12 * held.ids.len();
        for state in [4, 5] {
            let settled = fixture.plan(&sql::SETTLE.statement("settle"), &held.settle(state)).await;
            settled.reads_at_most(LIMIT).reads_pages_at_most("children", most);
        }
        let cancel = [null(), text(7), uuids(&held.ids), text("'{90001}'"), text("'{0}'")];
        let cancelled = fixture.plan(&sql::OPERATE.statement("cancel"), &cancel).await;
        cancelled.reads_at_most(LIMIT).reads_pages_at_most("children", most);
    }
}

#[tokio::test]
async fn a_prune_examines_a_bounded_number_of_jobs() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let retention = |name| sql::RETENTION.statement(name);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        for state in [4, 5] {
            // The earliest are children of parents that have not ended, and are kept.
            let (examined, removed) = (1_000, 100);
            let position = [text(i64::MIN), format!("'{}'", Uuid::nil())];
            let prune =
                [&[null(), text(state), text(0)], &position[..], &[text(examined), text(removed)]].concat();
            fixture.plan(&retention("prune"), &prune).await.reads_at_most(examined);
        }
        // After those.
        let prune =
            [null(), text(4), text(0), text(1), format!("'{}'", Uuid::nil()), text(1_000), text(LIMIT)];
        fixture.plan(&retention("prune"), &prune).await.reads_at_most(1_000);
        fixture.plan(&retention("prune_unique_keys"), &[null(), text(LIMIT)]).await.reads_at_most(LIMIT);
        let starts = [null(), text(3_600_000), text(1_000)];
        fixture.plan(&retention("prune_starts"), &starts).await.reads_at_most(1_000);
    }
}

#[tokio::test]
async fn reads_look_up_their_jobs_only() {
    let fixture = Fixture::open(&[BACKLOG, FAMILIES]).await;
    let (read, transfer) = (|name| sql::READ.statement(name), |name| sql::TRANSFER.statement(name));
    let middle = Uuid::from_u128(u128::MAX / 2);
    for statistics in STATISTICS {
        fixture.prepare(statistics).await;
        let everywhere = mixed(&fixture).await;
        fixture.plan(&read("get"), &[uuids(&everywhere)]).await.reads_at_most(LIMIT);
        fixture.plan(&read("list_tenants"), &[]).await.reads_at_most(2);
        fixture
            .plan(&read("attempts"), &[format!("'{}'", everywhere[30]), text(i64::MAX), text(LIMIT)])
            .await
            .reads_at_most(LIMIT);
        let from_the_beginning = ["integer", "bigint"].map(|name| array([""; 0], name));
        fixture
            .plan(&read("stats"), &[&[null()], &from_the_beginning[..]].concat())
            .await
            .reads_at_most(LIMIT);
        // The conditions that lists append.
        for (name, column) in [("list", "jobs.id"), ("list_dead", "dead.dead_id")] {
            for condition in ["true".to_owned(), format!("{column} < '{middle}'")] {
                let list = format!("{} {condition} ORDER BY {column} DESC LIMIT {LIMIT}", read(name).text());
                fixture.plan_after("SELECT 1", &list, &[]).await.reads_at_most(LIMIT);
            }
        }
        let by_key = format!(
            "SELECT * FROM ({} key = 'key-700' AND tenant IN (\n{}) OFFSET 0) AS few ORDER BY id DESC LIMIT 10",
            read("list").text(),
            read("list_tenants").text()
        );
        fixture.plan_after("SELECT 1", &by_key, &[]).await.reads_at_most(2);
        let newest = format!("'{}'", Uuid::max());
        fixture.plan(&read("search_range"), &[newest.clone(), text(1_000)]).await.reads_at_most(1_000);
        if statistics == "ANALYZE" {
            // Without statistics, the server expects so few dead letters that it sorts them all.
            fixture.plan(&read("search_range_dead"), &[newest, text(1_000)]).await.reads_at_most(1_000);
        }
        for after in [None, Some(middle)] {
            let after = after.map_or_else(null, |id| format!("'{id}'"));
            // The first jobs are parents, each with thousands of signals.
            let plan = fixture.plan(&transfer("export"), &[after, text(LIMIT)]).await;
            plan.reads_at_most(PARENTS * 2_000 + LIMIT);
            for node in nodes(&plan.root)
                .into_iter()
                .filter(|node| node["Relation Name"] != "signals" && is_large(node))
            {
                assert!(examined(node) <= LIMIT as f64, "{plan}");
            }
        }
        let jobs = uuids(&everywhere);
        for name in ["export_attempts", "export_steps", "export_signals", "remove_for_import"] {
            fixture.plan(&transfer(name), std::slice::from_ref(&jobs)).await.reads_at_most(2 * LIMIT);
        }
        let (count, keys) = (everywhere.len(), array(&everywhere, "text"));
        let names = [repeat("\"\"", count, "text"), keys.clone(), repeat("x", count, "text"), keys];
        let conflicts = [&[null(), jobs], &names[..]].concat();
        fixture.plan(&transfer("find_conflicts"), &conflicts).await.reads_at_most(LIMIT);
    }
}
