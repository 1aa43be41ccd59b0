// One peer of bench/peers.py: `node peer.js NAME work`, or `node peer.js NAME one|bulk|idle`, which prints tasks published a second and the seconds of processor time.
// Environment: TASKS, QUEUES, MEASURE as in bench/peers.py, STORE: the URL of the server.
'use strict';

const fs = require('fs');
const [name, what] = process.argv.slice(2);
const tasks = Number(process.env.TASKS);
const queues = Number(process.env.QUEUES);
const names = [...Array(queues).keys()].map((n) => `q${n}`);
const CONCURRENCY = 100;
const PAGE = 1000;

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const waits = [];
let done = 0;

// What each task calls.
function count(sent) {
  done += 1;
  if (process.env.MEASURE === 'idle') {
    waits.push(now() - sent);
    fs.writeFileSync('waits', JSON.stringify(waits));
  }
  if (done === 1) fs.writeFileSync('first', String(now()));
  if (done === tasks || done % 50 === 0) fs.writeFileSync('progress', `${done} ${now()}`);
}

// All tasks, spread evenly over the queues, as pages of one queue each.
function* pages() {
  for (const [index, q] of names.entries()) {
    const all = Math.ceil((tasks - index) / queues);
    for (let n = 0; n < all; n += PAGE) yield [q, Math.min(PAGE, all - n)];
  }
}

function redis() {
  const url = new URL(process.env.STORE);
  return url.protocol === 'unix:' ? { path: url.pathname } : { host: url.hostname, port: Number(url.port) };
}

// Each: one(n) publishes one task, bulk() all of them, work() serves all queues.
const PEERS = {
  bullmq() {
    const { Queue, Worker } = require('bullmq');
    const options = { connection: { ...redis(), maxRetriesPerRequest: null } };
    const job = { removeOnComplete: true, removeOnFail: true };
    const made = new Map();
    const queue = (q) => made.get(q) ?? made.set(q, new Queue(q, options)).get(q);
    return {
      one: (n) => queue(names[n % queues]).add('work', { sent: now() }, job),
      async bulk() {
        for (const [q, size] of pages()) {
          await queue(q).addBulk(Array.from({ length: size }, () => ({ name: 'work', data: { sent: 0 }, opts: job })));
        }
      },
      work: () => names.map((q) => new Worker(q, async (each) => count(each.data.sent), { ...options, concurrency: CONCURRENCY })),
    };
  },

  'bee-queue'() {
    const Queue = require('bee-queue');
    const made = new Map();
    const options = { redis: redis(), removeOnSuccess: true, getEvents: false, sendEvents: false, storeJobs: false };
    const queue = (q, isWorker) => made.get(q) ?? made.set(q, new Queue(q, { ...options, isWorker })).get(q);
    return {
      one: (n) => queue(names[n % queues], false).createJob({ sent: now() }).save(),
      async bulk() {
        for (const [q, size] of pages()) {
          const to = queue(q, false);
          await to.saveAll(Array.from({ length: size }, () => to.createJob({ sent: 0 })));
        }
      },
      work: () => names.map((q) => queue(q, true).process(CONCURRENCY, async (each) => count(each.data.sent))),
    };
  },

  'graphile-worker'() {
    const { run, makeWorkerUtils, Logger } = require('graphile-worker');
    const logger = new Logger(() => () => {});
    const worker = {
      connectionString: process.env.STORE, concurrentJobs: CONCURRENCY, localQueue: { size: PAGE }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    };
    const utils = makeWorkerUtils({ connectionString: process.env.STORE, logger });
    // Jobs of a named queue run one after the other; with one queue there is no name, so that they run at once.
    const spec = (n) => (queues > 1 ? { queueName: names[n % queues] } : {});
    return {
      ready: async () => (await utils).migrate(),
      one: async (n) => (await utils).addJob('work', { sent: now() }, spec(n)),
      async bulk() {
        for (let n = 0; n < tasks; n += PAGE) {
          const page = Array.from({ length: Math.min(PAGE, tasks - n) }, (_, i) => ({ identifier: 'work', payload: { sent: 0 }, ...spec(n + i) }));
          await (await utils).addJobs(page);
        }
      },
      work: () => run({ preset: { worker: { ...worker, logger } }, taskList: { work: async (payload) => count(payload.sent) } }),
    };
  },
};

async function main() {
  const peer = PEERS[name]();
  await peer.ready?.();
  if (what === 'work') {
    await peer.work();
    return;
  }
  const began = performance.now();
  const before = process.cpuUsage();
  if (what === 'bulk') await peer.bulk();
  for (let n = 0; what !== 'bulk' && n < tasks; n += 1) {
    await peer.one(n);
    if (what === 'idle') await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const rate = tasks / ((performance.now() - began) / 1000);
  const used = process.cpuUsage(before);
  console.log(rate, (used.user + used.system) / 1e6);
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
