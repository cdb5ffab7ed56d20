// Send a log record, a span and a counter by OpenTelemetry's SDK of JavaScript, configured by its environment alone.
import { createRequire } from "node:module";
import { join } from "node:path";

// The packages are elsewhere: npm installed them into the folder that is given.
const require = createRequire(join(process.argv[2], "package.json"));
const { NodeSDK } = require("@opentelemetry/sdk-node");
const api = require("@opentelemetry/api");
const { logs } = require("@opentelemetry/api-logs");

const sdk = new NodeSDK();
sdk.start();
api.trace.getTracer("checkout").startSpan("order").end();
api.metrics.getMeter("checkout").createCounter("orders").add(3);
logs.getLogger("checkout").emit({ body: "an order was placed" });
await sdk.shutdown();
