// Views by the fragment of the URL, and what the agent's stream brings.

import { ask, follow } from "./agent.js";
import { Arms } from "./arms.js";
import { byId, clean, el, replace } from "./dom.js";
import { time } from "./format.js";
import { advice, gain } from "./gain.js";
import { kernel } from "./kernel.js";
import { begin, decided, overview, unknown } from "./overview.js";

// Views of features have scripts, which are loaded once a view is opened.
const OWN = { overview() { gain(); advice(); }, kernel };
const PARTS = [...document.querySelectorAll("[data-view]")];
const LINKS = [...document.querySelectorAll("nav a")];
// Links to views of features that are mostly off.
const HIDDEN = LINKS.filter((link) => link.hidden);
// Lists are asked for again at most this often, and only where something has changed.
const REFRESH_MS = 5000;

let view = "overview";
let address = "";
let machine = "";
let refreshed = 0;
let activity = -1;
let connected = null;

const chart = new Arms(byId("arms"));

const shown = () => PARTS.filter((part) => part.dataset.view === view);

/** The link to the present view, or to the list that its item is in. */
const isHere = (link) => [view, shown()[0].dataset.script].includes(link.hash.slice(1));

/** Fills the present view with what takes a request. */
function refresh() {
  refreshed = Date.now();
  if (Object.hasOwn(OWN, view)) return OWN[view]();
  for (const { dataset } of shown()) {
    import(`./${dataset.script ?? view}.js`).then((part) => part.show(view, address), () => {});
  }
}

function title() {
  const parts = [LINKS.find((link) => link.hash.slice(1) === view)?.textContent ?? address, machine, "Thalweg"];
  document.title = clean(parts.filter(Boolean).join(" · "));
}

/** Shows the view that the fragment names. */
function route(focus) {
  const [name, rest = ""] = location.hash.slice(1).split(/\/(.*)/s);
  // A view without a link is of one item, which follows its name.
  const isView = (part) => part.dataset.view === name && (rest || LINKS.some((link) => link.hash.slice(1) === name));
  view = PARTS.some(isView) ? name : "overview";
  try {
    address = clean(decodeURIComponent(rest));
  } catch {
    address = clean(rest);
  }
  for (const part of PARTS) part.hidden = part.dataset.view !== view;
  for (const link of LINKS) {
    if (isHere(link)) link.setAttribute("aria-current", link.hash.slice(1) === view ? "page" : "true");
    else link.removeAttribute("aria-current");
  }
  title();
  refresh();
  if (focus) {
    scrollTo(0, 0);
    byId("main").focus({ preventScroll: true });
  }
}

function state(name, ...text) {
  const line = byId("connection");
  line.dataset.state = name;
  replace(line, ...text);
}

function heard(name, data) {
  if (name === "events") {
    chart.add(data.decisions);
    if (data.latest.length) decided(data);
    return;
  }
  if (connected !== true) {
    connected = true;
    state("live", "Live");
    // It may be another agent, and time has passed.
    chart.load();
    ask("v1/events?limit=50").then(begin, () => {});
    // Of a feature that is off there is nothing to see.
    for (const link of HIDDEN) ask(`v1/${link.hash.slice(1)}`).then(() => true, () => false).then((is) => { link.hidden = !is; });
    refresh();
  }
  machine = data.machine ?? "";
  byId("machine").textContent = clean(machine);
  byId("about").replaceChildren(`Agent ${clean(data.version)}, process ${data.pid}. Read-only: changes take the command `, el("code", {}, "thalweg"), " as root.");
  title();
  overview(data);
  const now = data.counters.established + data.counters.closed;
  if (Date.now() - refreshed >= REFRESH_MS && (now !== activity || view === "kernel")) {
    activity = now;
    refresh();
  }
}

let lostAt = 0;

function lost(why, status) {
  if (connected !== false) lostAt = Date.now();
  connected = false;
  const what = status === 401 || status === 403 ? "Not allowed" : "Connection lost";
  // The same text is not said twice.
  const text = `${what} since `;
  const line = byId("connection");
  if (line.dataset.why === why && line.dataset.state === "lost") return;
  line.dataset.why = why;
  unknown(why);
  state("lost", text, time(lostAt), `: ${why}. What is shown is of then; trying again.`);
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", () => route(true));
route(false);
follow(heard, lost);
