// Explorer: which head is open, which cell is looked at, and everything that follows from it.
const LETTERS = /\p{L}{2}/u;

class Explorer {
  constructor(root, store, options) {
    const { manifest } = store;
    Object.assign(this, { root, store, manifest, options, shared: true, giving: false, beside: "norms", pointed: null, found: [[], []], term: "" });
    Object.assign(this, { maps: null, vectors: null, pinned: null, over: null, lens: new Lens(), turn: 0, due: false });
    this.stacks = [...new Set(manifest.layers.map(({ stack }) => stack))];
    this.stack = this.stacks[0];
    this.grids = KINDS.map((kind) => new Grid(this, kind));
    this.plots = KINDS.map((kind) => new TokenMap(this, kind));
    this.texts = KINDS.map((kind) => new Words(this, kind));
    this.readers = new Readers(this);
    this.cell = new Cell(this);
    this.says = new Says(this);
    build(this);
  }

  async start() {
    this.small = await this.store.thumbs();
    this.all = this.manifest.layers.map((facts, n) => ({ facts, n, small: this.small[n] }));
    const [n, head] = this.options.address?.() || this.manifest.first;
    this.stack = this.manifest.layers[n].stack;
    [this.n, this.head] = [n, head];
    this.arrange();
    await this.open(n, head, false);
    this.ready = true;
    this.root.dataset.ready = "";
  }

  get layers() {
    return this.all.filter(({ facts }) => facts.stack === this.stack);
  }

  get facts() {
    return this.manifest.layers[this.n];
  }

  get focus() {
    return this.over || this.pinned;
  }

  get same() {
    return this.facts.queries === this.facts.keys;
  }

  side(axis) {
    return this.manifest.sides[axis === "i" ? this.facts.queries : this.facts.keys];
  }

  token(axis, n) {
    return n === undefined ? "" : this.side(axis).tokens[n];
  }

  hits(axis) {
    return this.found[axis === "i" ? this.facts.queries : this.facts.keys] || [];
  }

  name(n, head) {
    const { stack, layer } = this.manifest.layers[n];
    const where = { plain: "Layer", enc: "Encoder layer", dec: "Decoder layer", cross: "Cross layer" }[stack];
    return `${where} ${layer}${head < 0 ? ", all heads" : `, head ${head + 1}`}`;
  }

  // What a map of the open head, or layer, shows.
  sign(kind) {
    if (this.head >= 0) return SIGNS[kind];
    return { weights: "mean of a", norms: "‖Σ a f(x)‖", contributions: "Σ a f(x)·o / ‖o‖²" }[kind];
  }

  // The largest value among all heads, and among all layers as a whole, of the stack that is shown.
  tops(kind) {
    const [each, whole] = { weights: ["weights", "mean"], norms: ["norms", "summed"] }[kind];
    const most = (name) => Math.max(1e-30, ...this.layers.flatMap(({ facts }) => facts.tops[name] || []));
    return { heads: most(each), whole: most(whole) };
  }

  arrange() {
    for (const grid of this.grids) grid.draw();
    this.say();
  }

  // To the head that was opened, where it is out of sight.
  reveal() {
    if (!this.options.still && this.opened.getBoundingClientRect().top > 0.6 * innerHeight) this.opened.scrollIntoView();
  }

  // Opens a head (from 0; -1 is the layer as a whole). What is asked for later wins.
  async open(n, head, move = true) {
    const turn = ++this.turn;
    const [layer, vectors, logits] = await Promise.all([this.store.maps(n), this.store.vectors(n), this.store.logits()]);
    if (turn !== this.turn) return;
    const before = this.facts;
    [this.n, this.head] = [n, head];
    const maps = Object.assign(layer.head(head), { h: head, sources: vectors?.sources });
    const kept = this.pinned && before.queries === this.facts.queries && before.keys === this.facts.keys;
    Object.assign(this, { layer, vectors, logits, maps, over: null });
    if (!kept) {
      this.pinned = this.first();
      this.lens = new Lens();
    }
    this.step.textContent = this.name(n, head);
    this.title.textContent = this.name(n, head);
    this.options.keep?.(this.site());
    for (const view of [this.readers, ...this.texts]) view.build();
    for (const plot of this.plots) plot.load();
    this.cell.measure();
    this.say();
    this.follow();
    if (move) this.announce();
  }

  // The spelling of the place, as everywhere in trisect: attn@3.h5, enc.attn@2.
  site(n = this.n, head = this.head) {
    const { stack, layer } = this.manifest.layers[n];
    return `${stack === "plain" ? "" : `${stack}.`}attn@${layer}${head < 0 ? "" : `.h${head + 1}`}`;
  }

  // The cell to begin with: the largest between two different words of the text itself.
  first() {
    const map = this.maps.N || this.maps.W;
    const { T, S } = this.maps;
    const [queries, keys] = [this.side("i").special, this.side("j").special];
    let [best, most] = [{ i: T - 1, j: 0 }, -1];
    for (let i = 0; i < T; i++) {
      for (let j = 0; j < S; j++) {
        if (map[i * S + j] <= most || queries[i] || keys[j] || (this.same && i === j)) continue;
        if (!LETTERS.test(this.token("i", i)) || !LETTERS.test(this.token("j", j))) continue;
        [best, most] = [{ i, j }, map[i * S + j]];
      }
    }
    return best;
  }

  go(step) {
    const places = this.layers.flatMap(({ facts, n }) => Array.from({ length: facts.shape[0] }, (_, head) => [n, head]));
    const now = places.findIndex(([n, head]) => n === this.n && head === Math.max(0, this.head));
    const [n, head] = places[(now + step + places.length) % places.length];
    this.open(n, head);
  }

  choose(stack) {
    if (stack === this.stack) return;
    Object.assign(this, { stack, pointed: null });
    this.stackSwitch?.pick(stack, true);
    this.arrange();
    this.open(this.layers[0].n, 0);
  }

  hover(spot) {
    if (spot?.i === this.over?.i && spot?.j === this.over?.j) return;
    this.over = spot;
    this.soon();
  }

  pin(spot, aloud = false) {
    Object.assign(this, { pinned: spot, over: null });
    this.soon();
    if (aloud) this.voice(this.reading());
  }

  // The cell that a token leads to: its largest source, or its largest taker.
  reader(n) {
    const map = this.maps.N || this.maps.W;
    const values = this.giving ? this.maps.column(map, n) : this.maps.row(map, n);
    let best = 0;
    for (let at = 1; at < values.length; at++) if (values[at] > values[best]) best = at;
    return this.giving ? { i: best, j: n } : { i: n, j: best };
  }

  other(n) {
    return this.giving ? { i: n, j: this.focus.j } : { i: this.focus.i, j: n };
  }

  turnRound(giving) {
    this.giving = giving;
    for (const view of [this.readers, ...this.texts]) view.build();
    this.follow();
  }

  rescale(shared) {
    this.shared = shared;
    this.arrange();
  }

  // Beside the weights are shown norms or contributions.
  compare(kind) {
    this.beside = kind;
    const [plot, text] = [this.plots[1], this.texts[1]];
    plot.kind = text.kind = kind;
    for (const element of [plot.frame, text.text, text.list]) element.dataset.kind = kind;
    this.signs.hidden = kind === "norms";
    plot.load();
    this.follow();
  }

  zoom(step) {
    const { lens } = this;
    const view = this.plots[0].view;
    if (step > 0 && view.deepest) return;
    lens.zoom = step === null ? 0 : Math.max(0, lens.zoom + step);
    this.look();
    if (lens.zoom) {
      lens.centre(this.focus, this.plots[0].view);
      this.look();
    }
  }

  look() {
    for (const plot of this.plots) plot.draw();
    const { lens } = this;
    this.zoomOut.disabled = this.zoomAll.disabled = lens.zoom === 0;
    this.zoomIn.disabled = Boolean(this.plots[0].view?.deepest);
  }

  search(term, step = 0) {
    const changed = term !== this.term;
    this.term = term;
    if (changed) {
      this.found = this.manifest.sides.map((side) => find(side, term));
      this.sought = -1;
    }
    const axis = this.giving ? "j" : "i";
    const hits = this.hits(axis);
    if (step && hits.length) {
      this.sought = (this.sought + step + hits.length) % hits.length;
      const spot = this.reader(hits[this.sought]);
      this.lens.follow(spot, this.plots[0].view);
      this.look();
      this.pin(spot, true);
    }
    const where = this.sought >= 0 && hits.length ? `${this.sought + 1} of ${hits.length}` : `${hits.length} found`;
    this.count.textContent = term ? where : "";
    this.follow();
  }

  soon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.follow();
    });
  }

  follow() {
    if (!this.maps) return;
    for (const view of [...this.plots, this.readers, ...this.texts, this.cell, this.says]) view.follow();
    this.read();
  }

  // One line for the cell that is looked at.
  read() {
    const { i, j } = this.focus;
    const at = i * this.maps.S + j;
    const value = (kind) => {
      const map = this.maps.of(kind);
      if (!map) return make("span", {}, "–");
      const text = kind === "contributions" ? number(map[at], 2) : within(map[at], this.maps.error(map[at], kind, j, i));
      return make("b", { "data-value": map[at], "data-kind": kind }, text);
    };
    const places = [this.token("i", i), i + 1, this.token("j", j), j + 1];
    this.spot.replaceChildren(
      make("span", { class: "x-pair" }, make("b", { class: "x-q", title: `${places[0]}, token ${places[1]}` }, places[0]), " takes from ", make("b", { class: "x-k", title: `${places[2]}, token ${places[3]}` }, places[2])),
      make("span", {}, "weight ", value("weights")),
      make("span", {}, `${TITLES[this.beside].slice(3)} `, value(this.beside)),
      make("span", { class: "x-quiet x-places" }, `tokens ${places[1]} and ${places[3]}`),
    );
    for (const plot of this.plots) plot.frame.setAttribute("aria-label", `${this.reading()}. Arrow keys move, plus and minus zoom.`);
  }

  reading() {
    const { i, j } = this.focus;
    const at = i * this.maps.S + j;
    const map = this.maps.of(this.beside);
    const beside = map ? `, ${TITLES[this.beside].slice(3)} ${number(map[at], 2 + (this.beside === "norms"))}` : "";
    return `${this.token("i", i)} takes from ${this.token("j", j)}: weight ${number(this.maps.W[at])}${beside}`;
  }

  // The name of the head under the pointer, if it is not the open one.
  say() {
    for (const grid of this.grids) grid.mark();
    const spot = this.pointed && this.layers[this.pointed.row];
    const [n, head] = spot ? [spot.n, this.pointed.head] : [this.n, this.head];
    const preview = n !== this.n || head !== this.head;
    this.about.replaceChildren(...(preview ? [make("span", { class: "x-preview" }, "Preview"), make("b", {}, this.name(n, head))] : []));
  }

  announce() {
    const spot = this.pointed && this.layers[this.pointed.row];
    this.voice(spot ? this.name(spot.n, this.pointed.head) : this.name(this.n, this.head));
  }

  voice(text) {
    this.aloud.textContent = text;
  }

  resize() {
    if (!this.ready) return;
    for (const grid of this.grids) grid.draw();
    for (const plot of this.plots) plot.draw();
    this.cell.measure();
    this.cell.draw();
  }
}

// Tokens that a search term touches; it may run over several pieces of a word, and case does not count.
function find({ tokens, glued }, term) {
  const sought = term.trim().toLowerCase();
  if (!sought) return [];
  let text = "";
  const starts = tokens.map((token, n) => {
    if (n && !glued[n]) text += " ";
    const start = text.length;
    text += token.toLowerCase();
    return start;
  });
  const hits = new Set();
  for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + 1)) {
    tokens.forEach((token, n) => starts[n] < at + sought.length && starts[n] + token.length > at && hits.add(n));
  }
  return [...hits].sort((a, b) => a - b);
}
