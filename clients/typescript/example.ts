// node dist/example.js http://127.0.0.1:7878: publish an order, and handle it.
import { connect, work } from "./laneway.js";

const laneway = connect(process.argv[2] ?? "http://127.0.0.1:7878", process.env.LANEWAY_TOKEN);

const { data, error } = await laneway.POST("/v1/topics/{topic}/messages", {
  params: { path: { topic: "orders" } },
  body: { body: { order: 42 }, key: "order-42" },
});
if (error) throw new Error(error.detail);
console.log(`published: ${data.outcome}`);

await work(laneway, { n: 10, wait: "10s", topics: ["orders"] }, async (delivery) => {
  console.log(`handled ${JSON.stringify(delivery.body)}, attempt ${delivery.attempt}`);
});
