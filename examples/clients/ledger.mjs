// The one consumer of an exclusive subscription: it writes each order into a ledger, in order.
// node ledger.mjs URL [COUNT]: it ends after COUNT messages; without COUNT it runs until stopped.
// Before: laneway subscription add 'orders.*' ledger --kind exclusive

const url = process.argv[2] ?? 'http://localhost:7878';
const count = Number(process.argv[3] ?? Infinity);
const headers = process.env.LANEWAY_TOKEN
  ? { authorization: `Bearer ${process.env.LANEWAY_TOKEN}` }
  : {};

async function call(path, options) {
  const answer = await fetch(url + path, options);
  if (!answer.ok) {
    const problem = await answer.json();
    throw new Error(`${problem.title}: ${problem.detail}`);
  }
  return answer;
}

async function* events(answer) {
  let text = '';
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    text += part;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const found = text.slice(0, end).match(/^event: (.*)\ndata: (.*)$/);
      if (found) yield { name: found[1], data: JSON.parse(found[2]) };
    }
  }
}

const stream = await call('/v1/subscriptions/orders.*/ledger/stream?credit=10', { headers });
let fence;
let written = 0;
for await (const { name, data } of events(stream)) {
  if (name === 'held') fence = data.fence;
  if (name === 'lost') throw new Error(data.detail);
  if (name !== 'delivery') continue;
  console.log(data.topic, 'order', data.body.order, 'fence', fence); // a store refuses older fences
  await call('/v1/settle', {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify([{ receipt: data.receipt }]),
  });
  written += 1;
  if (written >= count) break;
}
