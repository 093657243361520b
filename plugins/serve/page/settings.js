// The controls beside the conversation, and the fields of a request that they mean.

import { element } from "./markdown.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", low: 0, high: 2, step: 0.05, about: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", low: 0.05, high: 1, step: 0.05, about: "the likeliest, up to this share" },
  { name: "top_k", label: "Top k", low: 0, high: 200, step: 1, about: "so many of the likeliest" },
  { name: "min_p", label: "Min p", low: 0, high: 1, step: 0.01, about: "relative to the likeliest" },
  { name: "max_tokens", label: "Max tokens", low: 1, high: null, step: 1, about: "the longest answer" },
  { name: "seed", label: "Seed", low: 0, high: null, step: 1, about: "repeats an answer" },
];

const $ = (id) => document.getElementById(id);
const KEPT = "plait.settings";
const KEY = "plait.key";

/** Makes the controls and fills them with what this tab had before. */
export function build() {
  $("sampling").append(...NUMBERS.map(row));
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  for (const { name } of NUMBERS) if (name in kept) show(name, kept[name]);
  $("system").value = kept.system ?? "";
  $("thinking").checked = kept.thinking ?? true;
  $("key").value = sessionStorage.getItem(KEY) ?? "";
  $("settings").addEventListener("input", keep);
  narrow.addEventListener("change", cover);
  $("reset").addEventListener("click", () => {
    for (const { name } of NUMBERS) show(name, "");
    keep();
  });
}

function row({ name, label, low, high, step, about }) {
  const box = element("input", { id: name, type: "number", min: low, step, placeholder: "auto" });
  if (high !== null) box.max = high;
  const parts = [
    element("label", { htmlFor: name }, label, element("small", {}, about)),
    box,
  ];
  box.setAttribute("inputmode", step < 1 ? "decimal" : "numeric");
  if (high !== null) {
    const slider = element("input", {
      id: `${name}-slider`, type: "range", min: low, max: high, step, value: high / 2,
      className: "auto", tabIndex: -1, "aria-hidden": "true",
    });
    slider.addEventListener("input", () => show(name, slider.value));
    box.addEventListener("input", () => show(name, box.value));
    parts.push(slider);
  }
  return element("div", { className: "row" }, ...parts);
}

function show(name, value) {
  const [box, slider] = [$(name), $(`${name}-slider`)];
  if (box.value !== value) box.value = value;
  if (slider) {
    slider.classList.toggle("auto", value === "");
    if (value !== "") slider.value = value;
  }
}

function keep() {
  const kept = Object.fromEntries(NUMBERS.map(({ name }) => [name, $(name).value]));
  kept.system = $("system").value;
  kept.thinking = $("thinking").checked;
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
  if ($("key").value) sessionStorage.setItem(KEY, $("key").value);
  else sessionStorage.removeItem(KEY);
}

/** The API key; "" for none. */
export const key = () => $("key").value.trim();

/** The system message; "" for none. */
export const system = () => $("system").value.trim();

/** The fields of a request that the controls set. What is left on auto is the model's own. */
export function fields() {
  const found = { chat_template_kwargs: { enable_thinking: $("thinking").checked } };
  for (const { name } of NUMBERS) {
    if ($(name).value !== "") found[name] = Number($(name).value);
  }
  return found;
}

/** The first control whose value is none, for the reader to mend; null: all are well. */
export const wrong = () => NUMBERS.map(({ name }) => $(name)).find((box) => !box.validity.valid) ?? null;

const narrow = matchMedia("(max-width: 1099px)"); // where style.css lays the panel over the page

/** What an open panel lies over cannot be reached; the focus is where it can be seen. */
function cover() {
  const covers = narrow.matches && !$("settings").hidden;
  if (covers && !$("settings").contains(document.activeElement)) $("hide-settings").focus();
  for (const part of document.querySelectorAll("header, main, #composer")) part.inert = covers;
}

/** Opens or closes the panel. */
export function open(wanted) {
  const inside = $("settings").contains(document.activeElement);
  $("settings").hidden = !wanted;
  document.body.classList.toggle("with-settings", wanted);
  $("show-settings").setAttribute("aria-expanded", String(wanted));
  cover();
  if (inside && !wanted) $("show-settings").focus();
}
