// Figures for readers, in the units of the commands.

import { el, svg } from "./dom.js";

const whole = new Intl.NumberFormat();

/** A whole number in groups of digits. */
export const count = (number) => whole.format(number ?? 0);

/** A number of things. */
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Three significant digits. */
export function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value, units, least) {
  for (const [factor, unit] of units) {
    if (Math.abs(value) >= factor * 0.9995) return `${three(value / factor)} ${unit}`;
  }
  return `${Math.round(value)} ${least}`;
}

export const bytes = (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]], "B");
export const bits = (value) => scaled(value, [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]], "bit/s");
/** Bytes per second as bits per second. */
export const rate = (value) => bits(value * 8);
/** Microseconds. */
export const micros = (value) => scaled(value, [[1e6, "s"], [1e3, "ms"]], "µs");
export const nanos = (value) => (value < 1000 ? `${Math.round(value)} ns` : scaled(value / 1e3, [[1e6, "s"], [1e3, "ms"], [1, "µs"]], "µs"));
export const percent = (share) => `${(share * 100).toFixed(1)} %`;

/** A share as a bar, and in figures. */
export function bar(share) {
  return [
    svg("svg", { class: "bar", width: 60, height: 10, viewBox: "0 0 60 10", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 60, height: 10 }),
      svg("rect", { class: "part", width: Math.max(share > 0 ? 1 : 0, 60 * share), height: 10 })),
    ` ${percent(share)}`,
  ];
}

/** Seconds in their two largest units. */
export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short",
});

/** A moment in short: today the time, otherwise the date as well. */
export function moment(ms) {
  const date = new Date(ms);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : day.format(date);
}

export const exactly = (ms) => exact.format(new Date(ms));

/** A moment, the exact one in the title. */
export function time(ms, text = moment(ms)) {
  return el("time", { datetime: new Date(ms).toISOString(), title: exactly(ms) }, text);
}

/** How long ago, the exact moment in the title. */
export const ago = (seconds) => time(Date.now() - seconds * 1000, `${span(seconds)} ago`);

const REASONS = {
  "warm-up": () => "the first connections to a host keep what the system gives them",
  greedy: (share) => `costs least so far; chosen with a probability of ${share}`,
  explore: (share) => `to check an arm that is not the best so far; chosen with a probability of ${share}`,
  untried: (share) => `to measure an arm for the first time; chosen with a probability of ${share}`,
  application: () => "the application chose it itself",
  foreign: () => "something else on this machine set it",
  loss: () => "moved there mid-flow: too many segments were retransmitted",
  withdrawn: () => "returned to the system's default mid-flow",
  anew: (share) => `a long connection, decided anew on its way; chosen with a probability of ${share}`,
  returned: () => "a long connection, taken from a bad arm to the best one",
  drawn: (share) => `a trial of advice, drawn with a probability of ${share}`,
  control: () => "it belongs to the control group, which keeps the system's default",
};

/** Why a connection got its arm, in words. */
export function because(event) {
  const reason = REASONS[event.reason];
  const words = [reason ? reason(percent(event.propensity)) : event.reason];
  if (event.error) words.push(`; the kernel refused ${event.chosen}: ${event.error}`);
  else if (event.dry_run) words.push(`; dry run: it kept ${event.arm ?? "what it had"}`);
  return words.join("");
}

const LEVELS = { prefix: "prefix", named: "named", service: "service", namespace: "all hosts",
  "fleet-prefix": "prefix, told by other agents", "fleet-named": "named, told by other agents" };

/** Name of a network. */
export const networkName = (network) => (network.container ? `${network.name} (${network.container})` : network.name);
/** Level of a network, in words. */
export const levelName = (network) => LEVELS[network.level] ?? network.level;

/** A difference in bits, and its standard error, as times in per cent. */
export function change(bits, error) {
  const figure = (value) => (100 * (2 ** value - 1)).toFixed(1);
  return `${bits > 0 ? "+" : ""}${figure(bits)} % ± ${figure(error)} %`;
}
