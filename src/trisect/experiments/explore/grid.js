// Grid: every head of a stack as a small picture, layers down and heads across; the last column is the layer as a whole.
const GAP = 2;
const GUTTER = { left: 26, top: 20, apart: 10, edge: 4 };

class Grid {
  constructor(app, kind) {
    Object.assign(this, { app, kind, spot: null });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.ring = make("div", { class: "x-ring" });
    this.chosen = make("div", { class: "x-ring x-chosen" });
    this.scale = make("span", { class: "x-scale" });
    this.frame = make(
      "div",
      { class: "x-frame x-grid", tabindex: "0", role: "group", "data-kind": kind },
      this.canvas, this.ring, this.chosen,
    );
    const head = make("div", { class: "x-side" }, make("h3", {}, TITLES[kind], " ", make("i", {}, SIGNS[kind])), this.scale);
    this.element = make("div", { class: "x-half" }, head, this.frame);
    this.frame.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.frame.addEventListener("pointerleave", () => this.point(null));
    this.frame.addEventListener("click", (event) => this.open(this.under(event)));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("blur", () => this.point(null));
  }

  get layers() {
    return this.app.layers;
  }

  // Widths in CSS pixels: as wide as the column allows, but no tile larger than 96 and the whole no taller than 900.
  measure() {
    const width = this.element.clientWidth;
    this.heads = Math.max(...this.layers.map(({ facts }) => facts.shape[0]));
    const across = (width - GUTTER.left - GUTTER.apart - GUTTER.edge) / (this.heads + 1);
    const down = (900 - GUTTER.top) / this.layers.length;
    this.pitch = Math.max(6, Math.min(across, Math.max(down, 14), 96));
    this.gap = this.pitch > 16 ? GAP : 1;
    this.width = GUTTER.left + (this.heads + 1) * this.pitch + GUTTER.apart + GUTTER.edge;
    this.height = GUTTER.top + this.layers.length * this.pitch + GUTTER.edge;
  }

  place(row, head) {
    const last = head < 0;
    const x = GUTTER.left + (last ? this.heads * this.pitch + GUTTER.apart : head * this.pitch);
    return [x, GUTTER.top + row * this.pitch, this.pitch - this.gap];
  }

  draw() {
    this.measure();
    const { pen, dpr } = fit(this.canvas, this.width, this.height);
    const ink = colours(this.frame);
    const tops = this.app.tops(this.kind);
    this.layers.forEach(({ facts, small }, row) => {
      const own = small[this.kind];
      for (let head = -1; head < facts.shape[0]; head++) {
        const [x, y, side] = this.place(row, head).map((v) => Math.round(v * dpr));
        if (own) this.tile(pen, facts, own, head, [x, y, side], tops);
        else this.lack(pen, ink, x, y, side);
      }
    });
    this.label(pen, ink, dpr);
    this.scale.replaceChildren(this.app.shared ? legend(tops.heads, SIGNS[this.kind]) : make("span", { class: "x-quiet" }, "each its own scale"));
    this.mark();
  }

  tile(pen, facts, own, head, [x, y, side], tops) {
    const [t, s] = facts.thumb;
    const whole = head < 0;
    const names = { weights: ["weights", "mean"], norms: ["norms", "summed"] }[this.kind];
    const top = whole ? facts.tops[names[1]][0] : facts.tops[names[0]][head];
    const share = this.app.shared ? Math.sqrt(top / (whole ? tops.whole : tops.heads)) : 1;
    const pixels = (whole ? own.whole : own.heads[head]).map((level) => level * share);
    const blank = facts.causal ? (i, j) => j > i : null;
    pen.imageSmoothingEnabled = s > side;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(picture(pixels, s, t, blank), x, y, side, side);
  }

  lack(pen, ink, x, y, side) {
    pen.strokeStyle = ink.rule;
    pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    pen.beginPath();
    pen.moveTo(x, y + side);
    pen.lineTo(x + side, y);
    pen.stroke();
  }

  label(pen, ink, dpr) {
    pen.fillStyle = ink.soft;
    pen.font = `${11 * dpr}px ${ink.font}`;
    pen.textBaseline = "middle";
    const every = (room) => Math.max(1, Math.ceil(room / this.pitch));
    pen.textAlign = "right";
    this.layers.forEach(({ facts }, row) => {
      const [, y, side] = this.place(row, 0);
      if (row % every(14) === 0) pen.fillText(facts.layer, (GUTTER.left - 7) * dpr, (y + side / 2) * dpr);
    });
    pen.textAlign = "center";
    for (let head = 0; head < this.heads; head++) {
      const [x, , side] = this.place(0, head);
      if (head % every(18) === 0) pen.fillText(head + 1, (x + side / 2) * dpr, (GUTTER.top / 2) * dpr);
    }
    const [x, , side] = this.place(0, -1);
    pen.fillText("all", (x + side / 2) * dpr, (GUTTER.top / 2) * dpr);
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor((y - GUTTER.top) / this.pitch);
    if (row < 0 || row >= this.layers.length || x < GUTTER.left) return null;
    const head = Math.floor((x - GUTTER.left) / this.pitch);
    if (x >= this.place(0, -1)[0]) return { row, head: -1 };
    return head < this.layers[row].facts.shape[0] ? { row, head } : null;
  }

  point(spot) {
    if (spot?.row === this.app.pointed?.row && spot?.head === this.app.pointed?.head) return;
    this.app.pointed = spot;
    this.app.say();
  }

  open(spot) {
    if (spot) this.app.open(this.layers[spot.row].n, spot.head).then(() => this.app.reveal());
  }

  surround(ring, spot) {
    ring.hidden = !spot;
    if (!spot) return;
    const [x, y, side] = this.place(spot.row, spot.head);
    Object.assign(ring.style, { left: `${x - 2}px`, top: `${y - 2}px`, width: `${side + 4}px`, height: `${side + 4}px` });
  }

  mark() {
    const row = this.layers.findIndex(({ n }) => n === this.app.n);
    this.surround(this.chosen, row < 0 ? null : { row, head: this.app.head });
    this.surround(this.ring, this.app.pointed);
    const opened = this.app.name(this.app.n, this.app.head);
    this.frame.setAttribute("aria-label", `All heads ${TITLES[this.kind].toLowerCase()}: arrow keys choose a head, Enter opens it. Open: ${opened}`);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.app.pointed || { row: Math.max(0, this.layers.findIndex(({ n }) => n === this.app.n)), head: this.app.head };
    const heads = this.layers[here.row].facts.shape[0];
    const column = here.head < 0 ? heads : here.head;
    const goes = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -column], End: [0, heads - column] }[event.key];
    if (event.key === "Enter" || event.key === " ") this.open(here);
    else if (goes) {
      const row = Math.min(this.layers.length - 1, Math.max(0, here.row + goes[0]));
      const next = Math.min(this.layers[row].facts.shape[0], Math.max(0, column + goes[1]));
      this.point({ row, head: next === this.layers[row].facts.shape[0] ? -1 : next });
      this.app.announce();
    } else return;
    event.preventDefault();
  }
}
