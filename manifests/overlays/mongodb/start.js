// The startup probe: makes the replica set of one on the first start; succeeds when it can be written to.
const fs = require("fs");
const read = (name) => fs.readFileSync(`/secret/${name}`, "utf8").trim();
db = connect("mongodb://localhost:27017/admin");
db.auth(read("username"), read("password"));
try {
  rs.status();
} catch (none) {
  rs.initiate({ _id: "reshape", members: [{ _id: 0, host: process.env.RESHAPE_MEMBER }] });
}
if (!db.hello().isWritablePrimary) quit(1);
