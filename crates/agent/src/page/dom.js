// Elements from text. Whatever comes from the agent goes in as text nodes, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
// Characters that would hide, reorder or break what a reader sees.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\uffa0\ufff0-\ufff8\u{e0000}-\u{e0fff}]/gu;

/** Text with unseen characters made visible. */
export function clean(text) {
  return String(text).replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, clean(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child == null || child === false) continue;
    element.append(child instanceof Node ? child : clean(child));
  }
  return element;
}

/** An element of HTML with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An element of SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Replaces the children, and keeps the focus on a link, a button or a box that is there again. */
export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const key = focused && (focused.getAttribute("href") ?? focused.dataset.key);
  const open = [...parent.querySelectorAll("details[open]")].map((one) => one.dataset.key);
  const added = children.flat(Infinity).filter((child) => child != null && child !== false);
  parent.replaceChildren(...added.map((child) => (child instanceof Node ? child : clean(child))));
  for (const one of parent.querySelectorAll("details")) one.open = open.includes(one.dataset.key);
  if (key == null) return;
  for (const one of parent.querySelectorAll("a, [data-key]")) {
    if ((one.getAttribute("href") ?? one.dataset.key) === key) return one.focus({ preventScroll: true });
  }
}

/**
 * A table with a caption. Columns: [heading, "number" or nothing]. Rows: lists of cells; the first
 * is the row's heading. On narrow screens rows become cards, so the roles are explicit.
 */
export function table(caption, columns, rows) {
  const head = columns.map(([text, kind]) =>
    el("th", { scope: "col", role: "columnheader", class: kind }, text));
  const body = rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, at) => {
    const [heading, kind] = columns[at];
    return at === 0
      ? el("th", { scope: "row", role: "rowheader", class: kind }, cell)
      : el("td", { role: "cell", class: kind, "data-label": heading }, el("span", {}, cell));
  })));
  return el("table", { role: "table" },
    el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { role: "rowgroup" }, body));
}

/** Names and values. */
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, ...value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export const paragraph = (...children) => el("p", {}, children);
export const note = (...children) => el("p", { class: "note" }, children);
export const fault = (text) => el("p", { class: "problem", role: "alert" }, text);
export const code = (text) => el("code", {}, text);

/** Text in which `words` between backquotes are code. */
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? code(part) : clean(part)));
}

/** A link to a host's story. */
export function hostLink(address, label = address) {
  return el("a", { href: `#host/${encodeURIComponent(address)}` }, label);
}

/** A note that a list of networks has not all, and what has. */
export function howMany(list, limit, command) {
  return list.length < limit ? null : note(`The ${limit} with most measurements. `, code(command), " lists all.");
}
