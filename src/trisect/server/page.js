// Page: the bench on a page of its own: questions go to the server that sent it, the newest alone is waited for.
const client = ownName();
let sequence = 0;
let earlier = null;

const post = (path, client, state, has, signal) =>
  fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ client, sequence: ++sequence, has, state: sent(state) }), signal });
// What the server says: null where something newer was asked, an error of three parts, or what is unpacked.
async function received(response, unpack) {
  if (response.status === 204) return null;
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  if (response.headers.get("content-type") === "application/json") return { error: await response.json() };
  return unpack(response);
}

async function ask(state, has) {
  earlier?.abort();
  const request = (earlier = new AbortController());
  try {
    return await received(await post("answer", client, state, has, request.signal), async (response) => unpackAnswer(await response.arrayBuffer()));
  } catch (error) {
    if (request.signal.aborted) return null;
    throw error;
  }
}

// A name of its own: a save is not an answer, and neither ends the other.
const save = async (state) => received(await post("offline", `${client}:save`, state, "", undefined), async (response) => ({ page: await response.text() }));

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
