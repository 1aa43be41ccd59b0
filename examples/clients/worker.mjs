// A worker: lease orders, handle each, and settle it. node worker.mjs URL [COUNT]
// It ends after COUNT messages; without COUNT it runs until stopped.

const url = process.argv[2] ?? 'http://localhost:7878';
const count = Number(process.argv[3] ?? Infinity);
const token = process.env.LANEWAY_TOKEN;

async function post(path, body) {
  const answer = await fetch(url + path, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      ...(token ? { authorization: `Bearer ${token}` } : {}),
    },
    body: JSON.stringify(body),
  });
  if (!answer.ok) {
    const problem = await answer.json();
    throw new Error(`${problem.title}: ${problem.detail}`);
  }
  return answer.json();
}

async function handle(order) {
  if (order === undefined) throw new Error('a message without an order');
  console.log('order', order);
}

async function settlement({ receipt, body }) {
  try {
    await handle(body?.order);
    return { receipt, action: 'ack' };
  } catch (error) {
    return { receipt, action: 'retry', error: String(error) };
  }
}

for (let handled = 0; handled < count; ) {
  const { deliveries } = await post('/v1/lease', { n: 10, wait: 30, topics: ['orders'] });
  const settlements = await Promise.all(deliveries.map(settlement));
  if (settlements.length > 0) await post('/v1/settle', settlements);
  handled += settlements.length;
}
