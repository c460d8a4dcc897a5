// The reference server of the protocol's authors, to compare with. Arguments: port, then a data folder (file mode) or nothing (in memory).
import { DurableStreamTestServer } from "@durable-streams/server"

const [port, dataDir, longPollTimeout] = process.argv.slice(2)
const server = new DurableStreamTestServer({
  port: Number(port),
  host: "127.0.0.1",
  longPollTimeout: Number(longPollTimeout ?? 30000),
  ...(dataDir ? { dataDir } : {}),
})
await server.start()
console.log(`ready ${server.baseUrl}`)
