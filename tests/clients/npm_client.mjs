// The npm client @durable-streams/client as a program: node npm_client.mjs write|produce URL, tail URL sse|long-poll, create|read URL...
//
// Before us: run.py, which starts us and reads one JSON object per line (program.py tells their meaning). Writers end when stdin ends.
// What the library leaves to its user is done here and nothing more: a tail goes on at the last offset it was given, and the producer gets a
// fetch that repeats what may have been lost. Not here: any opinion on what was seen.

import { DurableStream, FetchError, IdempotentProducer, createFetchWithBackoff, stream } from "@durable-streams/client"
import { setTimeout as pause } from "node:timers/promises"

const CONTENT_TYPE = "application/json"
const PACE_MS = 20
const BACK_OFF_MS = 50
// Batches that wait behind the five on their way. append() never waits, so without this the rest to flush would grow while nobody leads.
const IN_FLIGHT_MAX = 10
// The library's own default grows to a minute; a failover here takes seconds.
const BACK_OFF = { initialDelay: 50, maxDelay: 500, multiplier: 1.3 }

const [role, ...urls] = process.argv.slice(2)
const [url, live] = urls
const say = (told, more = {}) => process.stdout.write(JSON.stringify({ told, ...more }) + "\n")
const message = (n) => JSON.stringify({ n, text: `message ${n} \u00e9\u{1f30a}` })

let ended = false
const untilStdinEnds = () => process.stdin.on("end", () => (ended = true)).resume()

async function create() {
  for (const url of urls) {
    await DurableStream.create({ url, contentType: CONTENT_TYPE })
    say("created")
  }
}

// Appends without a producer. The library would repeat a 503 or a broken connection by itself, and could so append twice: maxRetries 0 shows
// each single outcome. A refusal is repeated, an unknown outcome never.
async function write() {
  const handle = new DurableStream({ url, contentType: CONTENT_TYPE, backoffOptions: { ...BACK_OFF, maxRetries: 0 } })
  let n = 0
  for (; !ended; n++) {
    for (let told = "refused"; told === "refused" && !ended; ) {
      let why = ""
      try {
        await handle.append(message(n))
        told = "acknowledged"
      } catch (error) {
        ;[told, why] = outcome(error)
      }
      say(told, { n, why })
      await pause(told === "acknowledged" ? PACE_MS : BACK_OFF_MS)
    }
  }
  say("done", { count: n })
}

function outcome(error) {
  const code = error.json?.error?.code ?? error.details?.error?.code
  if (error.status === 503 && code && code !== "outcome_unknown") return ["refused", code]
  if (error.cause?.code === "ECONNREFUSED") return ["refused", "ECONNREFUSED"]
  if (error.status && error.status < 500) return ["failed", String(error)]
  return ["unknown", code ?? error.cause?.code ?? String(error)]
}

// Exactly once. The producer sends each batch with one fetch and takes any failure as final, so it is given the library's fetch with backoff.
// That one throws at a 4xx which the producer wants to see (409: a later batch arrived first), so it is turned back into an answer.
async function produce() {
  let repeated = 0
  const persistent = createFetchWithBackoff(fetch, { ...BACK_OFF, onFailedAttempt: () => repeated++ })
  const answering = async (...request) => {
    try {
      return await persistent(...request)
    } catch (error) {
      if (!(error instanceof FetchError)) throw error
      return new Response(JSON.stringify(error.json ?? error.text ?? ""), { status: error.status, headers: error.headers })
    }
  }
  const handle = new DurableStream({ url, contentType: CONTENT_TYPE })
  const onError = (error) => say("failed", { why: String(error) })
  const producer = new IdempotentProducer(handle, `npm-${process.pid}`, { fetch: answering, maxInFlight: 5, lingerMs: 5, onError })
  let n = 0
  for (; !ended; n++) {
    while (producer.inFlightCount > IN_FLIGHT_MAX && !ended) await pause(PACE_MS)
    producer.append(message(n))
    say("handed", { n })
    await pause(PACE_MS / 2)
  }
  await producer.flush()
  say("done", { count: n, repeated })
}

async function tail() {
  let offset = "-1"
  let isLive = false
  for (;;) {
    let why = "the response ended"
    try {
      const response = await stream({ url, offset, live, backoffOptions: BACK_OFF, sseResilience: { logWarnings: false } })
      response.subscribeJson((batch) => {
        if (batch.items.length > 0) say("seen", { ns: batch.items.map((each) => each.n), offset: batch.offset })
        offset = batch.offset
        if (batch.upToDate && !isLive) say("live")
        isLive ||= batch.upToDate
      })
      await response.closed
    } catch (error) {
      if (error.status >= 400 && error.status < 500) throw error
      why = `${error} ${error.cause ?? ""}`
    }
    say("again", { why, offset })
    await pause(BACK_OFF_MS)
  }
}

async function read() {
  for (const url of urls) {
    const response = await stream({ url, offset: "-1", live: false, backoffOptions: BACK_OFF })
    say("content", { ns: (await response.json()).map((each) => each.n) })
  }
}

if (role === "write" || role === "produce") untilStdinEnds()
try {
  await { create, write, produce, tail, read }[role]()
  process.exit(0)
} catch (error) {
  say("failed", { why: `${error?.stack ?? error}` })
  process.exit(1)
}
