// Bench: texts, switches, what changes, and every head below; `ask(state, has)` answers, over HTTP or from a kernel.
const EXAMPLE = "The cat sat on the mat because it was tired.";

class Bench {
  constructor(root, about, options) {
    Object.assign(this, { root, about, options, has: "", view: null, turns: 0 });
    const first = options.state || { ...blankState(about.paired), text: about.paired ? [about.example || EXAMPLE, about.example || EXAMPLE] : [about.example || EXAMPLE] };
    this.time = new Timeline(first);
    this.board = new Board(about, (switches) => this.set({ switches }), (...site) => this.open(...site), (positions) => this.set({ positions }));
    this.outcome = new Outcome((place) => this.set({ place }));
    this.build();
    root.classList.add("explorer", "s-root");
    this.write();
    this.send();
  }

  build() {
    const { about } = this;
    const field = (label, key, n, hint) => {
      const box = make("textarea", { rows: "2", maxlength: "2000", spellcheck: "false", placeholder: hint, "data-key": key, "data-n": n });
      box.addEventListener("input", () => this.typed(key, n, box.value));
      box.addEventListener("keydown", (event) => event.stopPropagation());
      return make("label", { class: "s-field" }, make("span", {}, label), box);
    };
    const pair = (key, names, hint) => (about.paired ? names.map((name, n) => field(name, key, n, hint)) : [field(names[2], key, 0, hint)]);
    this.fields = make("div", { class: "s-texts" },
      ...pair("text", ["Source", "Target", about.mask ? `Text (${about.mask} is predicted)` : "Text"], "Type a sentence"),
      ...pair("second", ["Second source", "Second target", "Second text, to patch from (optional)"], "A second sentence"));
    const button = (text, title, act) => make("button", { type: "button", title, onclick: act }, text);
    this.undo = button("↶ Undo", "Undo (Ctrl+Z outside a text)", () => this.travel(-1));
    this.redo = button("↷ Redo", "Redo (Ctrl+Shift+Z)", () => this.travel(1));
    this.status = make("span", { class: "x-quiet s-status", role: "status" });
    const tools = [this.undo, this.redo];
    if (this.options.link) tools.push(button("Copy link", "A link that holds texts, switches and position", () => this.copy(this.options.link(this.time.now), "The link")));
    if (this.options.save) tools.push(button("Save as page", "One file to look into every head with, without this server", () => this.save()));
    this.code = make("code");
    this.python = make("details", { class: "s-python" }, make("summary", {}, "Python that does the same"),
      make("pre", { tabindex: "0" }, this.code), button("Copy Python", "Copy it", () => this.copy(this.code.textContent, "The Python")));
    this.error = make("div", { class: "s-error", role: "alert", hidden: true });
    this.notes = make("ul", { class: "s-notes x-quiet" });
    this.holder = make("div", { class: "s-explorer" });
    this.shown = make("p", { class: "x-quiet s-shown-as" });
    const shape = `${about.layers.length} ${about.layers.length === 1 ? "layer" : "layers"} × ${Math.max(...about.layers.map(({ heads }) => heads[0]))} heads`;
    const header = make("header", { class: "s-header" }, make("p", { class: "x-kicker" }, `trisect serve · ${about.model} · ${shape}`), make("h1", {}, "Switch q, k or v, and see what changes"),
      make("p", { class: "x-quiet s-lede" }, "Each token has a ", make("b", { class: "x-q" }, "query"), " (what it looks for), a ", make("b", { class: "x-k" }, "key"), " (what it is matched on) and a ", make("b", { class: "x-v" }, "value"), " (what it passes on). Switch one off, or take it from a second text."));
    this.root.replaceChildren(header, this.fields, make("div", { class: "s-tools" }, ...tools, this.status), this.error,
      make("div", { class: "s-work" }, this.board.element, this.outcome.element), this.notes, this.python, this.shown, this.holder);
    (this.options.keys || this.root).addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
      event.preventDefault();
      this.travel(event.shiftKey ? 1 : -1);
    });
  }

  typed(key, n, value) {
    const texts = [...this.time.now[key]];
    texts[n] = value;
    this.time.push({ ...this.time.now, [key]: texts, ...(key === "text" ? { place: null, positions: [] } : {}) }, true);
    this.send();
  }

  set(part) {
    this.time.push({ ...this.time.now, ...part });
    this.send();
  }

  travel(by) {
    this.time.step(by);
    this.write();
    this.send();
  }

  jump(state) {
    this.time.push(state);
    this.write();
    this.send();
  }

  // The state into the fields; not while one is typed in, which holds it already.
  write() {
    for (const box of this.fields.querySelectorAll("textarea")) {
      const text = this.time.now[box.dataset.key][Number(box.dataset.n)] || "";
      if (box.value !== text) box.value = text;
    }
  }

  async send() {
    const start = performance.now();
    const state = this.time.now;
    const turn = ++this.turns;
    this.undo.disabled = this.time.at === 0;
    this.redo.disabled = this.time.at === this.time.states.length - 1;
    this.board.update(state.switches, state.second.some((text) => text.trim()));
    this.board.mark(state.positions);
    this.options.keep?.(state);
    const empty = !state.text.every((text) => text.trim());
    if (empty) this.root.classList.add("s-empty"); // nothing stands there that an earlier text gave
    if (empty) return this.refuse({ problem: "Type a sentence.", reason: "", todo: "" });
    this.status.textContent = "…";
    let answer;
    try {
      answer = await this.options.ask(state, this.has);
    } catch (error) {
      if (turn === this.turns) this.refuse({ problem: "The model did not answer.", reason: String(error.message || error), todo: "Start it again if its program has ended: trisect serve, or the notebook's kernel." });
      return undefined;
    }
    if (!answer || turn !== this.turns) return undefined;
    if (answer.error) return this.refuse(answer.error);
    await this.show(answer, turn);
    if (turn !== this.turns) return undefined;
    const took = performance.now() - start;
    this.status.textContent = `${Math.round(took)} ms`;
    Object.assign(this.root.dataset, { ms: took.toFixed(1), state: JSON.stringify(state), ready: "" });
    return undefined;
  }

  complain({ problem, reason, todo }) {
    this.error.hidden = false;
    this.error.replaceChildren(...[problem, reason, todo].filter(Boolean).map((line) => make("p", {}, line)));
  }

  refuse(error) {
    this.complain(error);
    this.status.textContent = "";
    this.root.dataset.state = JSON.stringify(this.time.now);
  }

  async show({ words, chunks }, turn) {
    this.error.hidden = true;
    this.root.classList.remove("s-empty");
    this.outcome.update(words);
    this.board.place(words.tokens);
    const only = words.positions.length ? ` at ${words.positions.map((n) => `${words.tokens[n]} (token ${n + 1})`).join(", ")}` : "";
    this.code.textContent = words.python;
    this.shown.textContent = words.switches.length ? `Below, every head with ${words.switches.map(([site, how]) => `${site} switched to ${WORDS[how]}`).join(", ")}${only}.` : "Below, every head with nothing switched.";
    this.notes.replaceChildren(...[...words.notes, ...this.about.notes].map((note) => make("li", {}, note)));
    if (words.picture === this.has || !words.manifest) return;
    await this.draw(words, chunks, turn);
  }

  // Every head of this reading in the place of the one before, with the same head open and the same cell looked at.
  async draw(words, chunks, turn) {
    const old = this.view;
    const host = make("div", { class: "s-fresh" });
    this.holder.append(host);
    const address = () => {
      const n = this.spot ? words.manifest.layers.findIndex(({ stack, layer }) => stack === this.spot.stack && layer === this.spot.layer) : -1;
      return n < 0 ? null : [n, this.spot.head === null ? -1 : this.spot.head - 1];
    };
    const view = mount(host, words.manifest, async (n) => chunks[n], { address, keep: () => this.opened(view), still: true, keys: this.options.keys });
    await view.started;
    if (turn !== this.turns) {
      view.stop();
      host.remove();
      return;
    }
    if (old) {
      const { pinned, shared } = old.app;
      if (pinned.i < view.app.maps.T && pinned.j < view.app.maps.S && this.tokens === words.tokens.join(" ")) view.app.pin(pinned);
      if (!shared) view.app.scaleSwitch.pick(false);
      old.stop();
      old.host.remove();
    }
    host.className = "s-shown explorer";
    this.view = { ...view, host };
    this.has = words.picture;
    this.tokens = words.tokens.join(" ");
    this.opened(view, !old);
  }

  // The head that is open: the board follows where somebody opened it, not where a new reading did.
  opened(view, follow = true) {
    if (view?.app !== this.view?.app) return;
    const { app } = this.view;
    const { stack, layer } = app.facts;
    this.spot = { stack, layer, head: app.head < 0 ? null : app.head + 1 };
    if (follow && !this.opening) this.board.show(stack, layer, this.spot.head);
  }

  async open(stack, layer, head) {
    const app = this.view?.app;
    if (!app) return;
    const n = app.manifest.layers.findIndex((facts) => facts.stack === stack && facts.layer === layer);
    if (n < 0) return;
    this.opening = true;
    if (app.stack !== stack) app.choose(stack);
    await app.open(n, head === null ? -1 : head - 1);
    this.opening = false;
  }

  async copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      this.status.textContent = `${what} is copied.`;
    } catch {
      this.python.open = true;
      this.status.textContent = `${what} could not be copied.`;
    }
  }

  async save() {
    if (this.saving) return;
    this.saving = true;
    let answer;
    try {
      answer = await this.options.save(this.time.now);
    } catch (error) {
      answer = { error: { problem: "The page could not be saved.", reason: String(error.message || error), todo: "Start it again if its program has ended: trisect serve, or the notebook's kernel." } };
    }
    this.saving = false;
    if (!answer) return;
    if (answer.error) return void this.complain(answer.error);
    const link = make("a", { href: URL.createObjectURL(new Blob([answer.page], { type: "text/html" })), download: "trisect-explorer.html" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
}
