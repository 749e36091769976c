// Views by the fragment of the URL, and what the agent's stream brings.

import { ask, follow } from "./agent.js";
import { Arms } from "./arms.js";
import { byId, clean, el, replace } from "./dom.js";
import { time } from "./format.js";
import { advice, gain } from "./gain.js";
import { hosts, story } from "./hosts.js";
import { kernel } from "./kernel.js";
import { networks } from "./networks.js";
import { begin, decided, overview, unknown } from "./overview.js";

const VIEWS = { overview: "Overview", hosts: "Hosts", host: "Host", networks: "Networks", kernel: "Policies and cost" };
// Links to the views of features. Most agents do without: a view's script is loaded once it is opened.
const FEATURES = [...document.querySelectorAll("nav [hidden]")];
for (const link of FEATURES) VIEWS[link.hash.slice(1)] = link.textContent;
// Lists are asked for again at most this often, and only where something has changed.
const REFRESH_MS = 5000;

let view = "overview";
let address = "";
let machine = "";
let refreshed = 0;
let activity = -1;
let connected = null;

const chart = new Arms(byId("arms"));

/** Fills the view, or part of a view, of a feature. */
const load = (name) => import(`./${name}.js`).then((part) => part.show(), () => {});

/** Fills the present view with what takes a request. */
function refresh() {
  refreshed = Date.now();
  if (view === "overview") {
    gain();
    advice();
  }
  else if (view === "hosts") hosts(byId("sort").value);
  else if (view === "host") story(address);
  else if (view === "networks") networks();
  else if (view === "kernel") kernel();
  else load(view);
  for (const part of document.querySelectorAll(`[data-view=${view}] [data-part]`)) load(part.dataset.part);
}

function title() {
  const parts = [view === "host" ? address : VIEWS[view], machine, "Thalweg"];
  document.title = clean(parts.filter(Boolean).join(" · "));
}

/** Shows the view that the fragment names. */
function route(focus) {
  const [name, rest = ""] = location.hash.slice(1).split(/\/(.*)/s);
  view = Object.hasOwn(VIEWS, name) && (name !== "host" || rest) ? name : "overview";
  try {
    address = clean(decodeURIComponent(rest));
  } catch {
    address = clean(rest);
  }
  for (const part of document.querySelectorAll("[data-view]")) part.hidden = part.dataset.view !== view;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash.slice(1) === (view === "host" ? "hosts" : view);
    if (here) link.setAttribute("aria-current", view === "host" ? "true" : "page");
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
    for (const link of FEATURES) ask(`v1/${link.hash.slice(1)}`).then(() => true, () => false).then((is) => { link.hidden = !is; });
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
byId("sort").addEventListener("change", refresh);
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = byId("address").value.trim();
  const good = /^[0-9a-f.:/]+$/i.test(wanted);
  byId("search-fault").textContent = good ? "" : `Expected an address such as 192.0.2.7 or 2001:db8::7.`;
  if (good) location.hash = `host/${encodeURIComponent(wanted)}`;
  else byId("address").focus();
});
addEventListener("hashchange", () => route(true));
route(false);
follow(heard, lost);
