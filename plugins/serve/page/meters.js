// What the whole server does at the moment, from its metrics.

import { ask } from "./api.js";

const EVERY = 2000; // ms
const $ = (id) => document.getElementById(id);
let before = null;

/** Keeps the meters in the head of the page up to date while somebody looks at it. */
export function watch(key) {
  const look = async () => {
    if (!document.hidden) await update(key()).catch(() => ($("meters").hidden = true));
    setTimeout(look, EVERY);
  };
  look();
}

async function update(key) {
  const text = await (await ask("metrics", { key })).text();
  const now = { at: performance.now(), tokens: value(text, "vllm:generation_tokens_total") };
  if (before && now.tokens >= before.tokens) {
    const rate = (1000 * (now.tokens - before.tokens)) / (now.at - before.at);
    $("rate").textContent = rate >= 100 ? Math.round(rate).toLocaleString("en") : rate.toFixed(1);
  }
  before = now;
  const running = value(text, "vllm:num_requests_running");
  const waiting = value(text, "vllm:num_requests_waiting");
  const used = value(text, "vllm:kv_cache_usage_perc");
  $("running").textContent = running === null ? "–" : waiting ? `${running} + ${waiting} waiting` : running;
  $("cache").textContent = used === null ? "–" : `${(100 * used).toFixed(used < 0.1 ? 1 : 0)}%`;
  $("cache-bar").value = used ?? 0;
  $("meters").hidden = now.tokens === null;
}

/** The sum over all series of a metric in Prometheus' text format; null if there is none. */
export function value(text, name) {
  let sum = null;
  for (const line of text.split("\n")) {
    if (!line.startsWith(name)) continue;
    const rest = line.slice(name.length);
    if (rest[0] === "{" || rest[0] === " ") sum = (sum ?? 0) + Number(rest.slice(rest.lastIndexOf(" ")));
  }
  return sum;
}
