//! Raw Redis without an engine: a Lua claim and a Lua complete of 100 jobs from four connections, and a pipeline of ZADD and HSET.

use std::time::Instant;

use redis::Script;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::setup::PAYLOAD;

/// Connections that work at the same time.
const CONNECTIONS: usize = 4;
/// Jobs in one claim.
const CLAIM: usize = 100;
/// Jobs in one pipeline.
const PIPELINE: usize = 1_000;

const CLAIM_LUA: &str = "
    local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
    if #ids == 0 then return {} end
    redis.call('ZREM', KEYS[1], unpack(ids))
    local jobs = {}
    for n, id in ipairs(ids) do
      redis.call('ZADD', KEYS[2], ARGV[1], id)
      redis.call('HSET', KEYS[3] .. id, 'state', '1')
      jobs[n] = { id, redis.call('HGET', KEYS[3] .. id, 'payload') }
    end
    return jobs";
const COMPLETE_LUA: &str = "
    for _, id in ipairs(ARGV) do
      redis.call('ZREM', KEYS[2], id)
      redis.call('HSET', KEYS[3] .. id, 'state', '2')
    end
    return #ARGV";
const KEYS: [&str; 3] = ["raw:due", "raw:leases", "raw:job:"];

/// Jobs per second claimed and completed.
pub(super) async fn drain(address: &str, jobs: usize) -> anyhow::Result<f64> {
    let client = redis::Client::open(address)?;
    fill(client.get_multiplexed_async_connection().await?, jobs).await?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client.get_multiplexed_async_connection().await?);
    }
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for connection in connections {
        tasks.spawn(work(connection));
    }
    let mut done = 0;
    while let Some(completed) = tasks.join_next().await {
        done += completed??;
    }
    let rate = jobs as f64 / started.elapsed().as_secs_f64();
    anyhow::ensure!(done == jobs, "the probe completed {done} of {jobs}");
    Ok(rate)
}

async fn work(mut connection: MultiplexedConnection) -> anyhow::Result<usize> {
    let (claim, complete) = (Script::new(CLAIM_LUA), Script::new(COMPLETE_LUA));
    let mut done = 0;
    loop {
        let mut call = claim.prepare_invoke();
        for key in KEYS {
            call.key(key);
        }
        call.arg(i64::MAX / 1024).arg(CLAIM);
        let jobs: Vec<(String, Vec<u8>)> = call.invoke_async(&mut connection).await?;
        if jobs.is_empty() {
            return Ok(done);
        }
        let mut call = complete.prepare_invoke();
        for key in KEYS {
            call.key(key);
        }
        for (id, _) in &jobs {
            call.arg(id);
        }
        done += call.invoke_async::<usize>(&mut connection).await?;
    }
}

/// Jobs per second enqueued by pipelines.
pub(super) async fn enqueue(address: &str, jobs: usize) -> anyhow::Result<f64> {
    let client = redis::Client::open(address)?;
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        tasks.spawn(fill(client.get_multiplexed_async_connection().await?, jobs / CONNECTIONS));
    }
    while let Some(filled) = tasks.join_next().await {
        filled??;
    }
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}

async fn fill(mut connection: MultiplexedConnection, jobs: usize) -> anyhow::Result<()> {
    let [due, _, job] = KEYS;
    let mut left = jobs;
    while left > 0 {
        let batch = left.min(PIPELINE);
        let mut pipeline = redis::pipe();
        for n in 0..batch {
            let id = Uuid::now_v7().simple().to_string();
            pipeline
                .cmd("HSET")
                .arg(format!("{job}{id}"))
                .arg("payload")
                .arg(PAYLOAD)
                .arg("state")
                .arg("0")
                .ignore();
            pipeline.cmd("ZADD").arg(due).arg(n).arg(id).ignore();
        }
        pipeline.query_async::<()>(&mut connection).await?;
        left -= batch;
    }
    Ok(())
}
