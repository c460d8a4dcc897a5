// The public suite as vitest wants it. The runner (run.py) says where the server is and how long its long-polls wait.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const longPollTimeoutMs = Number(process.env.LONG_POLL_TIMEOUT_MS)
runConformanceTests({ baseUrl: process.env.STREAMS_URL, longPollTimeoutMs, subscriptions: false })
