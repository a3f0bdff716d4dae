// Page: the explorer in a file of its own, its chunks waiting behind it as text.
const manifest = JSON.parse(document.querySelector("#manifest").textContent);
const whole = new Promise((done) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", done, { once: true });
  else done();
});

async function chunk(n) {
  if (n > 0) await whole;
  return fromBase64(document.querySelector(`script[data-chunk="${n}"]`).textContent.trim());
}

// #enc.attn@2.h5 opens that head, #attn@2 that layer as a whole.
function address() {
  const [, stack, layer, head] = /^#(?:(\w+)\.)?attn@(\d+)(?:\.h(\d+))?$/.exec(decodeURIComponent(location.hash)) || [];
  const n = manifest.layers.findIndex((facts) => facts.stack === (stack || "plain") && facts.layer === Number(layer));
  if (n < 0 || Number(head) > manifest.layers[n].shape[0]) return null;
  return [n, head ? Number(head) - 1 : -1];
}

let begun = false;
function keep(site) {
  if (begun && location.protocol !== "about:") history.replaceState(null, "", `#${site}`);
  begun = true;
}

const { app, started } = mount(document.querySelector("#explorer"), manifest, chunk, { keys: document, address, keep });
addEventListener("hashchange", () => {
  const found = address();
  if (found) {
    app.choose(manifest.layers[found[0]].stack);
    app.open(...found);
  }
});
started.catch((error) => {
  document.querySelector("#explorer").textContent = `The explorer could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
document.documentElement.classList.add("alive");
