// Loaded into Azurite: lists blobs from a name on, as Azure does for `startFrom`, which Azurite 3.35 ignores. deltalake
// relies on it. A marker leaves out the name itself, as those who ask here do too.
const path = require("path");
const { default: Handler } = require(path.join(path.dirname(process.argv[1]), "handlers", "ContainerHandler.js"));

const list = Handler.prototype.listBlobFlatSegment;
Handler.prototype.listBlobFlatSegment = function (options, context) {
  const from = context.request.getQuery("startFrom");
  return list.call(this, from && !options.marker ? { ...options, marker: from } : options, context);
};
