// Requests to the server that this page came from, and what goes wrong with them in words.

const ADVICE = {
  401: "The server asks for an API key. Enter the right one under Settings.",
  413: "That is too long for the server.",
  429: "The server is busy: too many requests are waiting.",
  502: "Something between here and the server has failed.",
  503: "The server cannot answer now.",
};
const ENGINE_GONE = "The engine is gone. Whoever runs the server must start it again.";

/** A failure that can be shown as it is. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The answer to a request, once its head is there. Throws Failure, or AbortError. */
export async function ask(path, { body, key, signal } = {}) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (key) headers["Authorization"] = `Bearer ${key}`;
  let answer;
  try {
    answer = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Is it still running?");
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function failure(answer) {
  let told = {};
  try {
    told = (await answer.json()).error ?? {};
  } catch {
    // not JSON: the status has to do
  }
  const advice = told.code === "engine_stopped" ? ENGINE_GONE : ADVICE[answer.status];
  // what the server says of a key is meant for programs
  const parts = [advice, answer.status === 401 ? "" : told.message].filter(Boolean);
  if (!parts.length) parts.push(`The server answered with status ${answer.status}.`);
  const wait = answer.headers.get("Retry-After");
  if (wait) parts.push(`Try again in ${wait} seconds.`);
  return new Failure(parts.join(" "), answer.status);
}

/** The events of a stream as parsed JSON, until [DONE]. Throws Failure for an error among them. */
export async function* events(answer) {
  let ended = false;
  try {
    for await (const data of datas(answer.body.pipeThrough(new TextDecoderStream()))) {
      if (data === "[DONE]") {
        ended = true;
        return;
      }
      const event = JSON.parse(data);
      if (event.error) throw new Failure(event.error.message ?? "The server reports an error.");
      yield event;
    }
  } catch (error) {
    if (error instanceof TypeError) throw new Failure("The connection to the server broke off.");
    throw error;
  }
  if (!ended) throw new Failure("The connection to the server broke off.");
}

/** The `data` of each event: lines end with CR, LF or both, and come cut anywhere. */
async function* datas(texts) {
  let held = "";
  let data = [];
  for await (const text of pieces(texts)) {
    held += text;
    for (;;) {
      const end = held.search(/\r\n|\n|\r(?!$)/);
      if (end < 0) break;
      const line = held.slice(0, end);
      held = held.slice(end + (held.startsWith("\r\n", end) ? 2 : 1));
      if (line === "") {
        if (data.length) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

async function* pieces(stream) {
  const reader = stream.getReader(); // not every browser can iterate over a stream
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
