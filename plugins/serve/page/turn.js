// One turn of the conversation as it stands on the page.

import { element, Flow, icon } from "./markdown.js";

/** A button with a drawing. */
export function tool(name, label, act) {
  const button = element("button", { type: "button", className: "icon small", title: label, "aria-label": label }, icon(name));
  button.addEventListener("click", act);
  return button;
}

/** Copies what `text` gives, and says so on the button. */
export function copier(text) {
  const button = tool("copy", "Copy", async () => {
    await copy(text());
    button.replaceChildren(icon("done"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1200);
  });
  return button;
}

/** Puts text on the clipboard, also where the page did not come over https. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = element("textarea", { value: text, className: "hidden" });
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

/** What the user said. */
export class Question {
  constructor(text, { edit }) {
    this.text = text;
    this.words = element("div", { className: "words" }, text);
    const tools = element("div", { className: "tools" }, tool("edit", "Edit", () => this.edit(edit)), copier(() => this.text));
    this.node = element("li", { className: "question" }, this.words, tools);
  }

  /** Turns the words into a field; Enter hands the new ones to `done`, Escape leaves the old. */
  edit(done) {
    const box = element("textarea", { value: this.text, "aria-label": "Edit your message" });
    const close = () => form.replaceWith(this.words);
    const save = () => {
      if (!box.value.trim()) return;
      close();
      done(box.value.trim());
    };
    const again = element("button", { type: "button", className: "small primary" }, "Ask again");
    const leave = element("button", { type: "button", className: "plain" }, "Cancel");
    again.addEventListener("click", save);
    leave.addEventListener("click", close);
    const form = element("div", { className: "edit" }, box, element("div", {}, leave, again));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.target !== box || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      else save();
      event.preventDefault();
      event.stopPropagation();
    });
    this.words.replaceWith(form);
    box.focus();
  }
}

/** What the model says, piece by piece. */
export class Answer {
  constructor({ again }) {
    this.text = "";
    this.reasoning = "";
    this.began = performance.now();
    this.firstToken = this.thought = null;
    this.usage = null;
    this.pieces = 0;
    this.summary = element("span", {}, "Thinking");
    this.thoughts = element("div", { className: "thoughts" });
    this.thinking = element("details", { hidden: true }, element("summary", {}, this.summary), this.thoughts);
    this.words = element("div", { className: "words" });
    this.flow = new Flow(this.words);
    this.facts = element("p", { className: "facts" });
    this.tools = element("div", { className: "tools" }, copier(() => this.text), tool("again", "Answer again", again), this.facts);
    this.node = element("li", { className: "answer live", "aria-busy": "true" }, this.thinking, this.words, this.tools);
  }

  /** Takes one event of the stream. -> whether there is something new to see. */
  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return true;
    const { content, reasoning_content, reasoning } = choice.delta ?? {};
    const thought = reasoning_content ?? reasoning;
    if (content || thought) {
      this.firstToken ??= performance.now();
      this.pieces += 1;
    }
    if (thought) this.reasoning += thought;
    if (content) {
      if (!this.text && this.reasoning) this.thought = performance.now();
      this.text += content;
    }
    if (choice.finish_reason) this.finish = choice.finish_reason;
    return true;
  }

  /** Brings the page up to date. */
  draw() {
    if (this.reasoning) {
      this.thinking.hidden = false;
      this.thoughts.textContent = this.reasoning.trim();
      const seconds = ((this.thought ?? performance.now()) - (this.firstToken ?? this.began)) / 1000;
      const over = this.thought !== null || !this.live;
      this.thinking.classList.toggle("live", !over);
      this.summary.textContent = over ? `Thought for ${seconds.toFixed(1)} s` : "Thinking";
    }
    this.flow.show(this.text.replace(/^\s+/, ""));
    this.facts.textContent = this.told();
  }

  get live() {
    return this.node.classList.contains("live");
  }

  /** How many tokens, and how fast. */
  told() {
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    if (!tokens || this.firstToken === null) return "";
    const seconds = ((this.ended ?? performance.now()) - this.firstToken) / 1000;
    const found = [`${tokens.toLocaleString("en")} token${tokens === 1 ? "" : "s"}`];
    if (tokens > 1 && seconds > 0.05) found.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    found.push(`first after ${((this.firstToken - this.began) / 1000).toFixed(2)} s`);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) found.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens from the cache`);
    if (this.finish === "length") found.push("cut off at the most tokens");
    return found.join(" · ");
  }

  /** Nothing more comes. `note`: a sentence about why, if there is something to say. */
  end(note = "", serious = false) {
    this.ended = performance.now();
    this.node.classList.remove("live");
    this.node.removeAttribute("aria-busy");
    this.draw();
    if (note) this.tools.before(element("p", { className: serious ? "note serious" : "note", role: serious ? "alert" : "note" }, note));
  }
}
