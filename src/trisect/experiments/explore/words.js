// Words: the text itself, shaded by what the token under the pointer takes from each, and the largest sources by name.
const SHADES = 24;
const SHADE = Array.from({ length: SHADES + 1 }, (_, n) => `rgb(125 113 226 / ${((0.7 * n) / SHADES).toFixed(3)})`);
const BELOW = SHADE.map((shade) => shade.replace("125 113 226", "217 119 6")); // of contributions below 0
const RANKED = 8;

class Words {
  constructor(app, kind) {
    Object.assign(this, { app, kind, spans: [], shown: [] });
    this.title = make("h3");
    this.text = make("div", { class: "x-text", tabindex: "0", role: "group", "data-kind": kind });
    this.list = make("ol", { class: "x-list", "data-kind": kind });
    this.element = make("div", { class: "x-half" }, this.title, this.text, this.list);
    this.items = Array.from({ length: RANKED }, () => this.item());
    this.list.append(...this.items.map(({ element }) => element));
    furnish(this.text, app);
  }

  item() {
    const [word, bar, value] = [make("span", { class: "x-word" }), make("span", { class: "x-bar-value" }), make("span", { class: "x-value" })];
    const element = make("li", {}, word, make("span", { class: "x-track" }, bar), value);
    element.addEventListener("pointerenter", () => element.dataset.n && this.app.hover(this.app.other(Number(element.dataset.n))));
    element.addEventListener("pointerleave", () => this.app.hover(null));
    element.addEventListener("click", () => element.dataset.n && this.app.pin(this.app.other(Number(element.dataset.n))));
    return { element, word, bar, value };
  }

  // The tokens to shade: keys, or queries when it is asked who takes from a token.
  build() {
    this.spans = tokens(this.text, this.app, this.app.giving ? "i" : "j");
    this.shown = new Array(this.spans.length).fill(-1);
    this.text.classList.toggle("x-reading", this.app.same);
  }

  values() {
    const map = this.app.maps.of(this.kind);
    if (!map || !this.app.focus) return null;
    const { i, j } = this.app.focus;
    return this.app.giving ? this.app.maps.column(map, j) : this.app.maps.row(map, i);
  }

  follow() {
    const values = this.values();
    this.list.hidden = !values;
    const name = this.app.giving ? this.app.token("j", this.app.focus?.j) : this.app.token("i", this.app.focus?.i);
    const [who, rest] = this.app.giving ? ["Who takes from ", ""] : ["", " takes from"];
    const chip = make("b", { class: this.app.giving ? "x-k" : "x-q" }, name);
    this.title.replaceChildren(who, chip, rest, ", ", TITLES[this.kind].toLowerCase());
    this.title.title = this.title.textContent;
    this.shade(values);
    if (values) this.rank(values);
    const { i, j } = this.app.focus || {};
    mark(this.text, this.spans, this.app, i, j, this.app.giving ? "i" : "j");
  }

  shade(values) {
    const top = values ? values.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-30) : 1;
    for (let n = 0; n < this.spans.length; n++) {
      const level = values ? Math.sign(values[n]) * Math.round(SHADES * Math.sqrt(Math.abs(values[n]) / top)) : 0;
      if (level === this.shown[n]) continue;
      this.shown[n] = level;
      this.spans[n].style.backgroundColor = level ? (SHADE[level] ?? BELOW[-level]) : "";
    }
  }

  rank(values) {
    const best = [];
    const sizes = values.map(Math.abs);
    for (let n = 0; n < values.length; n++) {
      if (best.length === RANKED && sizes[n] <= sizes[best[RANKED - 1]]) continue;
      let at = best.length;
      while (at > 0 && sizes[best[at - 1]] < sizes[n]) at--;
      best.splice(at, 0, n);
      if (best.length > RANKED) best.pop();
    }
    const top = sizes[best[0]] || 1;
    const axis = this.app.giving ? "i" : "j";
    this.items.forEach(({ element, word, bar, value }, place) => {
      const n = best[place];
      const seen = n !== undefined && sizes[n] > 0;
      element.classList.toggle("x-none", !seen);
      element.dataset.n = seen ? n : "";
      word.textContent = seen ? this.app.token(axis, n) : "";
      word.title = seen ? `${word.textContent}, token ${n + 1}` : ""; // whole where the list cuts it
      bar.style.width = seen ? `${(100 * sizes[n]) / top}%` : "0";
      bar.classList.toggle("x-below", values[n] < 0);
      value.textContent = seen ? number(values[n]) : "";
      value.dataset.value = seen ? values[n] : "";
    });
  }
}

// The queries' own text, where they are not the keys' (cross-attention).
class Readers {
  constructor(app) {
    this.app = app;
    this.text = make("div", { class: "x-text x-reading", tabindex: "0", role: "group" });
    this.title = make("h3");
    this.element = make("div", { class: "x-readers" }, this.title, this.text);
    furnish(this.text, app);
  }

  build() {
    this.element.hidden = this.app.same;
    if (!this.app.same) this.spans = tokens(this.text, this.app, this.app.giving ? "j" : "i");
    this.title.textContent = this.app.giving ? "Choose a token of the source" : "Choose a token of the target";
  }

  follow() {
    if (this.app.same) return;
    const { i, j } = this.app.focus || {};
    mark(this.text, this.spans, this.app, i, j, this.app.giving ? "j" : "i");
  }
}

// Says: what the open head adds to the logits of the token that is predicted, and what would be predicted after each layer.
class Says {
  constructor(app) {
    this.app = app;
    this.title = make("h3");
    this.halves = ["head", "lens"].map((part) => make("div", { class: "x-half x-scroll", "data-part": part }));
    this.element = make("section", { class: "x-section x-says" }, this.title,
      make("p", { class: "x-quiet" }, "Raises, lowers: what it adds to the logits of the predicted token by its output matrix, the final norm (its scale held at this pass's value) and the output embedding, less the mean over all tokens. After layer: what would be predicted of the residual stream there (logit lens), with its probability; 0 is the embedding."),
      make("div", { class: "x-pairs" }, ...this.halves));
  }

  follow() {
    const { app, halves: [head, lens] } = this;
    if (!app.logits) return;
    const { i } = app.focus;
    this.title.replaceChildren("What does this head say at ", make("b", { class: "x-q" }, app.token("i", i)), "?");
    if (i < app.logits.first) {
      head.replaceChildren(`Shown from token ${app.logits.first + 1} on.`);
      lens.replaceChildren();
      return;
    }
    const cell = ({ word, value }, text) => make("td", {}, make("b", {}, word), " ", make("span", { class: "x-quiet", "data-value": value }, text));
    const signed = (one) => cell(one, `${one.value > 0 ? "+" : ""}${number(one.value)}`);
    const table = (names, rows) => make("table", {}, make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row))));
    const found = app.head < 0 ? [] : app.logits.head(app.n, app.head, i);
    const half = found.length / 2;
    head.replaceChildren(app.head < 0 ? "Open a head to see what it says." : table(["raises", "lowers"], found.slice(0, half).map((one, n) => [signed(one), signed(found[half + n])])));
    const layers = [0, ...app.manifest.layers.map(({ layer }) => layer)];
    const rows = app.logits.lens(i).map((row, n) => [make("th", { scope: "row", class: n === app.n + 1 ? "x-now" : null }, `${layers[n]}`), ...row.map((one) => cell(one, percent(one.value)))]);
    lens.replaceChildren(table(["after layer", "most likely", ...rows[0].slice(2).map((_, n) => `${n + 2}.`)], rows));
  }
}

function tokens(host, app, axis) {
  const { tokens: names, glued, special } = app.side(axis);
  const parts = [];
  const spans = names.map((name, n) => {
    const span = make("span", { class: `x-token${special[n] ? " x-special" : ""}${glued[n] && n ? " x-glued" : ""}`, "data-n": n, "data-axis": axis }, name);
    if (!glued[n] && n) parts.push(" ");
    parts.push(span);
    return span;
  });
  host.replaceChildren(...parts);
  host.classList.toggle("x-long", names.length > 160);
  return spans;
}

// Outlines: the query, the key, and what the search has found.
function mark(host, spans, app, i, j, axis) {
  for (const old of host.querySelectorAll(".x-query, .x-key, .x-hit")) old.classList.remove("x-query", "x-key", "x-hit");
  for (const n of app.hits(axis)) spans[n]?.classList.add("x-hit");
  if (axis === "i" || app.same) spans[i]?.classList.add("x-query");
  if (axis === "j" || app.same) spans[j]?.classList.add("x-key");
}

// Pointer and keys choose the token whose row, or whose column, is shown.
function furnish(host, app) {
  const choose = (event) => {
    const span = event.target.closest?.("[data-n]");
    return span && host.classList.contains("x-reading") ? Number(span.dataset.n) : null;
  };
  host.addEventListener("pointerover", (event) => {
    const n = choose(event);
    if (n !== null) app.hover(app.reader(n));
  });
  host.addEventListener("pointerleave", () => app.hover(null));
  host.addEventListener("click", (event) => {
    const n = choose(event);
    if (n !== null) app.pin(app.reader(n));
  });
  host.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [now, most] = app.giving ? [app.pinned.j, app.maps.S] : [app.pinned.i, app.maps.T];
    app.pin(app.reader(Math.min(most - 1, Math.max(0, now + step))), true);
  });
}
