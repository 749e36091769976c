// Decisions by arm over time: a chart, its legend, and the same as a table.

import { clean, el, fault, note, replace, svg, table } from "./dom.js";
import { count, counted, moment, percent, time } from "./format.js";
import { ask } from "./agent.js";

const RANGES = {
  hour: { name: "the last hour", interval: 60, parts: 60 },
  day: { name: "the last day", interval: 1800, parts: 48 },
  week: { name: "the last week", interval: 10800, parts: 56 },
};
const COLOURS = 8;
// An arm keeps its colour for as long as the page is open.
const known = [];

function colour(arm) {
  if (!known.includes(arm)) known.push(arm);
  return `arm${Math.min(known.indexOf(arm), COLOURS)}`;
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/** A chart in `box`, of all decisions or of one host's. */
export class Arms {
  constructor(box, host = null) {
    this.box = box;
    this.host = host;
    this.range = "hour";
    this.history = null;
    this.width = 0;
    this.choice = el("select", { "data-key": "range", "aria-label": "Time that the chart shows" },
      Object.entries(RANGES).map(([key, range]) => el("option", { value: key }, range.name)));
    this.choice.addEventListener("change", () => {
      this.range = this.choice.value;
      this.load();
    });
    this.inside = el("div", {});
    replace(box, el("p", {}, this.choice), this.inside);
    new ResizeObserver(() => {
      if (this.history && box.clientWidth !== this.width) this.draw();
    }).observe(box);
  }

  async load() {
    const { interval, parts } = RANGES[this.range];
    const host = this.host ? `&host=${encodeURIComponent(this.host)}` : "";
    const asked = this.range;
    try {
      const history = await ask(`v1/history?interval=${interval}&parts=${parts}${host}`);
      if (asked !== this.range) return;
      this.history = history;
      this.draw();
    } catch (error) {
      if (!this.history) replace(this.inside, fault(`The history cannot be had: ${error.message}.`));
    }
  }

  /** Adds decisions that were taken just now: {arm: number}. */
  add(decisions) {
    const history = this.history;
    if (!history) return this.load();
    const now = Math.floor((Date.now() - history.from_ms) / history.interval_ms);
    if (now < 0 || now >= history.parts) return this.load();
    const added = Object.entries(decisions);
    for (const [arm, number] of added) {
      let known = history.arms.find((one) => one.arm === arm);
      if (!known) {
        known = { arm, counts: new Array(history.parts).fill(0) };
        history.arms.push(known);
      }
      known.counts[now] += number;
    }
    if (added.length) this.draw();
  }

  draw() {
    const { arms, from_ms, interval_ms, parts, cut, first_ms, share } = this.history;
    this.width = this.box.clientWidth;
    const totals = arms.map((one) => sum(one.counts));
    const all = sum(totals);
    const about = [];
    if (first_ms) about.push("The first stored event is of ", time(first_ms), ". ");
    if (cut) about.push(`There are more events than one answer counts: only the latest ${this.host ? "10,000" : "100,000"} are shown. `);
    if (share < 1) {
      about.push(this.host
        ? `Not all hours of this host need be stored (at least ${percent(share)} of them): the others show no decision. `
        : `Of at least ${percent(share)} of the host-hours the events are stored: numbers are estimates. `);
    }
    if (!all) {
      return replace(this.inside, note("No decision with evidence in this time. ", about));
    }
    arms.forEach((one) => colour(one.arm));
    const said = arms.map((one, at) => `${clean(one.arm)} ${percent(totals[at] / all)}`).join(", ");
    const until = from_ms + interval_ms * parts;
    const columns = [...Array(parts).keys()].map((part) => arms.map((one) => one.counts[part]));
    replace(this.inside,
      el("figure", {},
        this.picture(columns, `Shares of ${counted(all, "decision")} from ${moment(from_ms)} to ${moment(Math.min(until, Date.now()))}: ${said}`),
        el("figcaption", {},
          el("ul", { class: "legend" }, arms.map((one, at) =>
            el("li", {}, el("span", { class: `swatch ${colour(one.arm)}`, "aria-hidden": "true" }), ` ${one.arm} ${percent(totals[at] / all)}`))),
          note(about, ` Below the shares: number of decisions in each interval of ${interval_ms / 60000} min.`))),
      el("details", { "data-key": "figures" },
        el("summary", { "data-key": "summary" }, "The same as a table"),
        this.figures(columns)));
  }

  figures(columns) {
    const { arms, from_ms, interval_ms } = this.history;
    const rows = columns.map((counts, part) => [part, counts]).filter(([, counts]) => sum(counts));
    return table("Decisions by interval, newest first",
      [["From"], ...arms.map((one) => [one.arm, "number"])],
      rows.reverse().map(([part, counts]) => [time(from_ms + part * interval_ms), ...counts.map(count)]));
  }

  picture(columns, label) {
    const { arms, from_ms, interval_ms, parts } = this.history;
    const width = Math.max(240, this.width);
    const left = 44, top = 8, tall = 150, strip = 32, bottom = top + tall + 12 + strip;
    const step = (width - left - 4) / parts;
    const gap = step > 5 ? 1 : 0;
    const most = Math.max(...columns.map(sum));
    const lines = [0, 0.5, 1].map((share) => {
      const y = top + tall * (1 - share);
      return [
        svg("line", { class: "grid", x1: left, x2: width, y1: y, y2: y }),
        svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, `${share * 100} %`),
      ];
    });
    const bars = columns.map((counts, part) => {
      const all = sum(counts);
      if (!all) return null;
      const x = left + part * step;
      const from = from_ms + part * interval_ms;
      let y = top + tall;
      const said = [];
      const stack = counts.map((number, at) => {
        if (!number) return null;
        const height = tall * number / all;
        y -= height;
        said.push(`${arms[at].arm} ${percent(number / all)} (${count(number)})`);
        return svg("rect", { class: colour(arms[at].arm), x, y, width: step - gap, height });
      });
      const number = Math.max(1, strip * all / most);
      return svg("g", {},
        svg("title", {}, `${moment(from)}: ${said.join(", ")}`), stack,
        svg("rect", { class: "number", x, y: bottom - number, width: step - gap, height: number }));
    });
    const every = Math.ceil(90 / step);
    const labels = columns.map((_, part) => {
      if (part % every || left + part * step > width - 40) return null;
      const date = new Date(from_ms + part * interval_ms);
      const text = this.range === "week" ? days.format(date) : hours.format(date);
      return svg("text", { x: left + part * step, y: bottom + 16 }, text);
    });
    return svg("svg", { role: "img", "aria-label": label, width, height: bottom + 22, viewBox: `0 0 ${width} ${bottom + 22}` },
      lines.flat(), bars.flat(),
      svg("text", { x: left - 6, y: bottom - strip / 2 + 4, "text-anchor": "end" }, count(most)), labels);
  }
}
