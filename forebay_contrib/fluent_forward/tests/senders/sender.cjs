// Send records by one of npm's two loggers, and end when each of them is acknowledged: node sender.cjs FOLDER SETTINGS.
const { createRequire } = require("node:module");
const { readFileSync } = require("node:fs");

const [folder, text] = process.argv.slice(2);
const load = createRequire(`${folder}/package.json`);
const settings = JSON.parse(text);
const tls = settings.ca ? { ca: readFileSync(settings.ca), servername: "receiver" } : undefined;

async function sendByFluentOrg() {
  const { FluentClient, EventTime } = load("@fluent-org/logger");
  const client = new FluentClient("app", {
    eventMode: settings.mode,
    ack: { ackTimeout: 60000 },
    flushInterval: 20,
    socket: { host: "127.0.0.1", port: settings.port, timeout: 60000, ...(tls ? { tls } : {}) },
    ...(settings.key
      ? {
          security: {
            clientHostname: "sender",
            sharedKey: settings.key,
            ...(settings.user ? { username: settings.user, password: settings.password } : {}),
          },
        }
      : {}),
  });
  const sent = [];
  for (let n = 0; n < settings.records; n++) {
    sent.push(client.emit("log", { n, text: "ü" }, new EventTime(1700000000, n)));
  }
  await Promise.all(sent);
  await client.disconnect();
}

async function sendByFluentLogger() {
  const logger = load("fluent-logger");
  const sender = logger.createFluentSender("app", {
    host: "127.0.0.1",
    port: settings.port,
    timeout: 60,
    eventMode: settings.mode,
    flushInterval: 20,
    requireAckResponse: true,
    ackResponseTimeout: 60000,
    ...(tls ? { tls: true, tlsOptions: tls } : {}),
    ...(settings.key ? { security: { clientHostname: "sender", sharedKey: settings.key } } : {}),
  });
  // Where it is refused, it says so here, and waits for ever.
  sender.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  const { EventTime } = logger;
  const sent = [];
  for (let n = 0; n < settings.records; n++) {
    sent.push(
      new Promise((resolve, reject) =>
        sender.emit("log", { n, text: "ü" }, new EventTime(1700000000, n), (error) => (error ? reject(error) : resolve())),
      ),
    );
  }
  await Promise.all(sent);
  sender.end();
}

(settings.library === "fluent-logger" ? sendByFluentLogger() : sendByFluentOrg()).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
