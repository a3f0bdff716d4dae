// Page: the bench on a page of its own: questions go to the server that sent it, the newest alone is waited for.
const client = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
let sequence = 0;
let earlier = null;

const post = (path, state, has, signal) =>
  fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ client, sequence: ++sequence, has, state: sent(state) }), signal });
// What the server says: null where something newer was asked, an error of three parts, or words and chunks.
async function received(response) {
  if (response.status === 204) return null;
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  if (response.headers.get("content-type") === "application/json") return { error: await response.json() };
  return unpackAnswer(await response.arrayBuffer());
}

async function ask(state, has) {
  earlier?.abort();
  const own = (earlier = new AbortController());
  try {
    return await received(await post("answer", state, has, own.signal));
  } catch (error) {
    if (own.signal.aborted) return null;
    throw error;
  }
}

async function save(state) {
  const response = await post("offline", state, "", undefined);
  return response.ok && response.status !== 204 && response.headers.get("content-type") !== "application/json" ? response.text() : null;
}

(async () => {
  const root = document.querySelector("#serve");
  try {
    const about = await (await fetch("about")).json();
    document.title = `${about.model}, trisect`;
    const here = () => `${location.origin}${location.pathname}`;
    const bench = new Bench(root, about, {
      ask,
      save,
      state: location.hash.length > 1 ? fromLink(location.hash, about.paired) : null,
      keep: (state) => history.replaceState(null, "", `#${toLink(state)}`),
      link: (state) => `${here()}#${toLink(state)}`,
      keys: document,
    });
    addEventListener("hashchange", () => {
      const state = fromLink(location.hash, about.paired);
      if (state) bench.jump(state);
    });
  } catch (error) {
    root.textContent = `The page could not be drawn: ${error.message}.`;
    throw error;
  }
})();
