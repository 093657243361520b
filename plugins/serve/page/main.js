// The conversation: what was said, what is asked next, and the controls around it.

import { ask, events, Failure } from "./api.js";
import { watch } from "./meters.js";
import * as settings from "./settings.js";
import { Answer, copy, Question } from "./turn.js";

const $ = (id) => document.getElementById(id);
const turns = []; // Question, Answer, Question, ...
let running = null; // AbortController of the answer that is being made
let model = null;

function say(text) {
  const question = new Question(text, {
    edit: (changed) => {
      cut(turns.indexOf(question));
      say(changed);
    },
  });
  add(question);
  answer();
}

function add(turn) {
  turns.push(turn);
  $("turns").append(turn.node);
  $("welcome").hidden = true;
  follow = true;
}

/** Forgets a turn and all that came after it. */
function cut(at) {
  running?.abort();
  for (const turn of turns.splice(at)) turn.node.remove();
  $("welcome").hidden = turns.length > 0;
}

function messages() {
  const said = turns
    .filter((turn) => turn instanceof Question || turn.text)
    .map((turn) => ({ role: turn instanceof Question ? "user" : "assistant", content: turn.text }));
  return settings.system() ? [{ role: "system", content: settings.system() }, ...said] : said;
}

async function answer() {
  const made = new Answer({
    again: () => {
      cut(turns.indexOf(made));
      answer();
    },
  });
  const body = {
    messages: messages(),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...settings.fields(),
  };
  if (model) body.model = model;
  add(made);
  running?.abort();
  const stopper = (running = new AbortController());
  busy(true);
  let whole = false;
  let drawing = 0;
  const draw = () => {
    drawing = 0;
    if (made.live) made.draw();
    stay();
  };
  try {
    const stream = await ask("v1/chat/completions", { body, key: settings.key(), signal: stopper.signal });
    for await (const event of events(stream)) {
      if (stopper.signal.aborted) break;
      made.take(event);
      drawing ||= requestAnimationFrame(draw);
    }
    made.end(stopper.signal.aborted ? "Stopped." : "");
    whole = made.text !== "";
  } catch (error) {
    if (stopper.signal.aborted) made.end("Stopped.");
    else made.end(error instanceof Failure ? error.message : `The page failed: ${error.message}`, true);
    if (error.status === 401) {
      settings.open(true);
      $("key").focus();
    }
  }
  if (running === stopper) {
    running = null;
    busy(false);
    if (stopper.signal.aborted) $("status").textContent = "Stopped.";
    else if (whole) $("status").textContent = "The answer is complete.";
  }
  stay();
}

function busy(now) {
  $("send").hidden = now;
  $("stop").hidden = !now;
  $("status").textContent = now ? "The model answers." : "";
}

// The page stays at its end while text grows, unless the reader scrolls away.
let follow = true;
const nearEnd = () => $("main").scrollHeight - $("main").scrollTop - $("main").clientHeight < 60;

function stay() {
  if (follow) $("main").scrollTop = $("main").scrollHeight;
  $("to-end").hidden = nearEnd();
}

function send() {
  const text = $("message").value.trim();
  if (!text || running) return;
  const wrong = settings.wrong();
  if (wrong) {
    settings.open(true);
    wrong.reportValidity();
    return;
  }
  $("message").value = "";
  grow();
  say(text);
}

function grow() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, innerHeight * 0.4)}px`;
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
}

async function name() {
  try {
    const found = await (await ask("v1/models", { key: settings.key() })).json();
    model = found.data[0].id;
    $("model").textContent = model.split("/").at(-1);
    $("model").title = `The model that answers: ${model}`;
    document.title = `${model.split("/").at(-1)} – Plait`;
  } catch (error) {
    $("model").textContent = error.status === 401 ? "asks for an API key" : "no answer";
  }
}

function listen() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("message").addEventListener("input", grow);
  $("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  $("stop").addEventListener("click", () => {
    running?.abort();
    $("message").focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (running) running.abort();
    else if (!$("settings").hidden) settings.open(false);
  });
  $("main").addEventListener("scroll", () => {
    follow = nearEnd();
    $("to-end").hidden = follow;
  });
  $("to-end").addEventListener("click", () => {
    follow = true;
    stay();
  });
  $("turns").addEventListener("click", async (event) => {
    if (!event.target.matches("button.copy")) return;
    await copy(event.target.closest("figure").querySelector("code").textContent);
    event.target.textContent = "Copied";
    setTimeout(() => (event.target.textContent = "Copy"), 1200);
  });
  $("starters").addEventListener("click", (event) => {
    if (event.target.matches("button")) say(event.target.textContent);
  });
  $("new").addEventListener("click", () => {
    cut(0);
    $("message").focus();
  });
  $("theme").addEventListener("click", () => {
    const shown = document.documentElement.dataset.theme;
    const dark = shown ? shown === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    theme(dark ? "light" : "dark");
    sessionStorage.setItem("plait.theme", dark ? "light" : "dark");
  });
  $("show-settings").addEventListener("click", () => settings.open($("settings").hidden));
  $("hide-settings").addEventListener("click", () => settings.open(false));
  $("key").addEventListener("change", name);
  $("key-form").addEventListener("submit", (event) => event.preventDefault());
}

theme(sessionStorage.getItem("plait.theme"));
settings.build();
settings.open(matchMedia("(min-width: 1100px)").matches);
listen();
name();
watch(settings.key);
