// Requests to the agent, and its stream.

/** A request that was refused, or not answered (status 0). */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Gets a resource. */
export async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(15000) });
  } catch {
    throw new Refused(0, "no answer");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Refused(answer.status, body?.error ?? `${answer.status} ${answer.statusText}`);
}

// The agent speaks every two seconds; longer silence means that nobody is there.
const SILENCE_MS = 9000;
const AGAIN_MS = 2000;

/**
 * Follows the stream while the page is seen. `heard(name, data)` gets each message, `lost(why)` each
 * failure; then it tries again, for as long as it takes.
 */
export function follow(heard, lost) {
  let source = null;
  let timer = 0;

  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(fail, SILENCE_MS);
  };
  async function fail() {
    close();
    timer = setTimeout(open, AGAIN_MS);
    // The stream does not say why; a request does.
    let why = "";
    try {
      await ask("v1/status");
    } catch (error) {
      why = error.message;
      lost(why, error.status);
    }
  }
  function open() {
    close();
    if (document.hidden) return;
    source = new EventSource("v1/stream");
    watch();
    source.onerror = fail;
    for (const name of ["status", "events"]) {
      source.addEventListener(name, (message) => {
        watch();
        heard(name, JSON.parse(message.data));
      });
    }
  }
  // A browser has few connections to a server: pages that nobody sees hold none.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}
