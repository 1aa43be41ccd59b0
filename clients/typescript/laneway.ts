import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type Laneway = Client<paths>;
export type Delivery = components["schemas"]["DeliveryAnswer"];
export type LeaseBody = components["schemas"]["LeaseBody"];

/** A client of `laneway serve`. Every path of the API has its types. */
export function connect(baseUrl: string, token?: string): Laneway {
  return createClient<paths>({ baseUrl, headers: token ? { authorization: `Bearer ${token}` } : {} });
}

/** Lease messages, handle each, and settle it: ack, or retry if the handler throws. */
export async function work(
  client: Laneway, lease: LeaseBody, handle: (delivery: Delivery) => Promise<void>,
): Promise<number> {
  const { data, error } = await client.POST("/v1/lease", { body: lease });
  if (error) throw new Error(error.detail);
  for (const delivery of data.deliveries) {
    const receipt = delivery.receipt;
    const settlement: components["schemas"]["SettleBody"] = await handle(delivery).then(
      () => ({ receipt }), (reason) => ({ receipt, action: "retry" as const, error: String(reason) }),
    );
    const settled = await client.POST("/v1/settle", { body: [settlement] });
    if (settled.error) throw new Error(settled.error.detail);
  }
  return data.deliveries.length;
}
