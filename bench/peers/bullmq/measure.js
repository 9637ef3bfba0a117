#!/usr/bin/env node
// Measures BullMQ: batch and one-by-one enqueue, drain, and pickup latency. The phases and the report are the same as in phases.rs
// and phases_server.rs.

import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';

/** The longest time of a phase. A peer that stalls still prints a line. */
const PHASE_LIMIT_MS = 120_000;
const CALLERS = 64;
const BATCH = 1000;
const BATCH_CALLERS = 4;
const PAUSE_MS = [20, 120];
/** How long a new worker has to start listening before the first pickup. */
const LISTEN_WAIT_MS = 1000;
/** Jobs that the worker runs at once during the drain. */
const CONCURRENCY = 50;
const NAME = 'noop';

const now = () => performance.now();
const round = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;
const perSecond = (phase) => (phase && phase.done > 0 ? round(phase.done / (phase.tookMs / 1000), 1) : null);

function parse(words) {
  const args = { url: null, jobs: null, picks: 200, payload: 0, only: null };
  for (let at = 0; at < words.length; at += 2) {
    const name = words[at].replace(/^--/, '');
    if (!words[at].startsWith('--') || !(name in args)) throw new Error(`unknown flag ${words[at]}`);
    if (words[at + 1] === undefined) throw new Error(`${words[at]} needs a value`);
    args[name] = words[at + 1];
  }
  for (const name of ['url', 'jobs']) if (args[name] === null) throw new Error(`--${name} is required`);
  for (const name of ['jobs', 'picks', 'payload']) {
    args[name] = Number(args[name]);
    if (!Number.isInteger(args[name]) || args[name] < 0) throw new Error(`--${name} must be a number`);
  }
  if (args.only !== null && !['enqueue', 'singles', 'drain', 'pickup'].includes(args.only)) {
    throw new Error('--only takes enqueue, singles, drain or pickup');
  }
  return args;
}

/** The payload: JSON of `bytes` bytes, like that of the other peers. */
function data(bytes) {
  const rest = Math.max(0, bytes - '{"data":""}'.length);
  return { data: randomBytes(rest).toString('base64url').slice(0, rest) };
}

class Run {
  constructor(url, payloadBytes) {
    const { hostname, port } = new URL(url);
    // BullMQ requires that a blocking call of a worker is retried without a limit.
    this.connection = { host: hostname, port: Number(port || 6379), maxRetriesPerRequest: null };
    this.reader = new Redis(this.connection);
    this.queue = new Queue(NAME, { connection: this.connection });
    this.data = data(payloadBytes);
    this.added = 0;
    this.notes = [];
  }

  /** Enqueues jobs in batches of `size`, from `callers` concurrent callers. */
  async enqueue(phase, jobs, size, callers) {
    const start = now();
    let [next, done, error] = [0, 0, 'time limit'];
    const runCaller = async () => {
      while (next < jobs && now() - start < PHASE_LIMIT_MS) {
        const count = Math.min(size, jobs - next);
        next += count;
        try {
          if (size === 1) await this.queue.add(NAME, this.data);
          else await this.queue.addBulk(Array.from({ length: count }, () => ({ name: NAME, data: this.data })));
          done += count;
        } catch (failed) {
          error = failed.message;
        }
      }
    };
    await Promise.all(Array.from({ length: callers }, runCaller));
    this.added += done;
    if (done < jobs) this.notes.push(`${phase}: ${done} of ${jobs} (${error})`);
    return { done, tookMs: now() - start };
  }

  start(probe, concurrency) {
    const handler = async () => probe();
    const worker = new Worker(NAME, handler, { connection: this.connection, concurrency });
    worker.on('error', (error) => this.notes.push(error.message));
    return worker;
  }

  /** The clock starts before the worker. A job is done when the server has it as completed. */
  async drain() {
    const start = now();
    let [ran, nextCount] = [0, 5000];
    const worker = this.start(() => (ran += 1), CONCURRENCY);
    for (;;) {
      await sleep(2);
      if (ran < this.added && now() - start < nextCount) continue;
      const done = await this.queue.getCompletedCount();
      const tookMs = now() - start;
      if (done >= this.added || tookMs >= PHASE_LIMIT_MS) {
        if (done < this.added) this.notes.push(`drain: ${done} of ${this.added} (time limit)`);
        await worker.close();
        return { done, tookMs };
      }
      nextCount = tookMs + 5000;
    }
  }

  /** The sorted times from the return of the enqueue to the start of the handler. */
  async pickups(picks) {
    if (picks === 0) return [];
    if ((await this.queue.getCompletedCount()) < this.added) {
      const { done } = await this.drain();
      if (done < this.added) return [];
    }
    let started = null;
    const worker = this.start(() => started?.(now()), 1);
    await worker.waitUntilReady();
    await sleep(LISTEN_WAIT_MS);
    const waits = [];
    for (let pick = 0; pick < picks; pick += 1) {
      await sleep(PAUSE_MS[0] + Math.random() * (PAUSE_MS[1] - PAUSE_MS[0]));
      const start = new Promise((resolve) => (started = resolve));
      await this.queue.add(NAME, this.data);
      const added = now();
      const at = await Promise.race([start, sleep(10_000, null, { ref: false })]);
      if (at === null) {
        this.notes.push(`pickup: ${pick} of ${picks} (time limit)`);
        break;
      }
      waits.push(Math.max(0, at - added));
    }
    await worker.close();
    return waits.sort((a, b) => a - b);
  }

  async durability() {
    const [, appendonly] = await this.reader.config('GET', 'appendonly');
    const [, appendfsync] = await this.reader.config('GET', 'appendfsync');
    return `appendonly ${appendonly}, appendfsync ${appendfsync}`;
  }
}

/** The p-th percentile, nearest rank. */
function percentile(sorted, p) {
  const at = sorted[Math.max(0, Math.ceil((p / 100) * sorted.length) - 1)];
  return at === undefined ? null : round(at, 3);
}

/** The version in the lock file, so that the report cannot name another one. */
function lockedVersion() {
  const lock = JSON.parse(readFileSync(new URL('package-lock.json', import.meta.url), 'utf8'));
  return lock.packages['node_modules/bullmq'].version;
}

async function measure(args) {
  const run = new Run(args.url, args.payload);
  if ((await run.reader.dbsize()) !== 0) {
    throw new Error('the server must be empty, because existing jobs would be drained too');
  }
  const includes = (part) => args.only === null || args.only === part;
  let [batch, drained, singles] = [null, null, null];
  if (includes('enqueue') || includes('drain')) {
    batch = await run.enqueue('enqueue_batch', args.jobs, BATCH, BATCH_CALLERS);
  }
  if (includes('drain')) drained = await run.drain();
  if (includes('singles')) {
    singles = await run.enqueue('enqueue_one_by_one', Math.min(args.jobs, 20_000), 1, CALLERS);
  }
  const waits = await run.pickups(includes('pickup') ? args.picks : 0);
  const report = {
    peer: 'bullmq',
    version: lockedVersion(),
    durability: await run.durability(),
    settings: `node ${process.version}; addBulk of ${BATCH} from ${BATCH_CALLERS} callers; drain: one worker, \
concurrency ${CONCURRENCY}; keeps completed jobs; pickup: one worker, concurrency 1`,
    enqueue_batch_per_s: includes('enqueue') ? perSecond(batch) : null,
    enqueue_one_by_one_64_tasks_per_s: perSecond(singles),
    drain_per_s: perSecond(drained),
    pickup_p50_ms: percentile(waits, 50),
    pickup_p99_ms: percentile(waits, 99),
  };
  if (run.notes.length > 0) report.note = run.notes.join('; ');
  console.log(JSON.stringify(report));
  await run.queue.close();
  run.reader.disconnect();
}

measure(parse(process.argv.slice(2))).catch((error) => {
  console.error(error);
  process.exit(1);
});
