// A model's Markdown as elements. Text only ever becomes text nodes, never markup.

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const INLINE =
  /(`+)([\s\S]+?)\1(?!`)|\*\*(?=\S)([\s\S]+?\S|\S)\*\*|(?<![\w*])\*(?=\S)([^*]+?\S|[^*\s])\*(?![\w*])/g;

/** An element with children; strings become text. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

/** A drawing from the page's own set. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Shows text that grows: only blocks that changed are made again. */
export class Flow {
  constructor(target) {
    this.target = target;
    this.sources = [];
  }

  show(text) {
    const found = blocks(text);
    found.forEach((source, at) => {
      if (this.sources[at] === source) return;
      const made = render(source);
      const old = this.target.children[at];
      if (old) old.replaceWith(made);
      else this.target.append(made);
    });
    while (this.target.children.length > found.length) this.target.lastChild.remove();
    this.sources = found;
  }
}

/** The text cut at empty lines; fenced code stays in one piece. */
function blocks(text) {
  const found = [];
  let lines = [];
  let fence = "";
  const close = () => {
    if (lines.length) found.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence) {
      lines.push(line);
      if (mark && mark[1].startsWith(fence) && !mark[2]) {
        fence = "";
        close();
      }
    } else if (mark) {
      close();
      fence = mark[1];
      lines.push(line);
    } else if (!line.trim()) {
      close();
    } else {
      const alone = HEADING.test(line);
      if (alone) close();
      lines.push(line);
      if (alone) close();
    }
  }
  close();
  return found;
}

function render(source) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) return element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2]));
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(lines[0]) && lines.length === 1) return element("hr");
  if (lines.every((line) => line.startsWith(">"))) {
    const inner = lines.map((line) => line.replace(/^> ?/, "")).join("\n");
    return element("blockquote", {}, ...inline(inner));
  }
  if (ITEM.test(lines[0])) return list(lines);
  const first = lines.findIndex((line) => ITEM.test(line));
  if (first > 0) {
    const before = element("p", {}, ...inline(lines.slice(0, first).join("\n")));
    return element("div", {}, before, list(lines.slice(first)));
  }
  return element("p", {}, ...inline(source));
}

function code(lines, fence) {
  const closed = lines.length > 1 && FENCE.exec(lines.at(-1))?.[1].startsWith(fence[1]);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", { className: "copy plain", title: "Copy this code" }, "Copy");
  return element(
    "figure",
    { className: "code" },
    element("figcaption", {}, element("span", {}, fence[2] || "code"), copy),
    element("pre", { tabIndex: 0 }, element("code", {}, text)),
  );
}

function list(lines) {
  const open = []; // the lists that an item may belong to, from the outermost
  let root = null;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (!found) {
      open.at(-1).last.append("\n", ...inline(line.trim()));
      continue;
    }
    const [, space, mark, text] = found;
    const indent = space.length;
    while (open.length && indent < open.at(-1).indent) open.pop();
    if (!open.length || indent > open.at(-1).indent) {
      const ordered = /\d/.test(mark);
      const outermost = !open.length && root;
      const items =
        outermost || element(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {});
      if (open.length) open.at(-1).last.append(items);
      root ??= items;
      open.push({ indent, items });
    }
    const item = element("li", {}, ...inline(text));
    open.at(-1).items.append(item);
    open.at(-1).last = item;
  }
  return root;
}

function inline(text) {
  const found = [];
  let done = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > done) found.push(text.slice(done, match.index));
    if (match[1]) found.push(element("code", {}, match[2].trim() || match[2]));
    else if (match[3]) found.push(element("strong", {}, ...inline(match[3])));
    else found.push(element("em", {}, ...inline(match[4])));
    done = match.index + match[0].length;
  }
  if (done < text.length) found.push(text.slice(done));
  return found;
}
