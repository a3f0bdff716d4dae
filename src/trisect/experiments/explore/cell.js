// Cell: why query i reads key j: q and k, what each dimension adds to their score, and the v that the weight brings; for a layer, its heads.
const LANES = 62; // CSS pixels of each vector's lane
const NEEDLE = 76; // and of the products'

class Cell {
  constructor(app) {
    Object.assign(this, { app, sorted: false, at: null });
    this.title = make("h2");
    this.lede = make("p", { class: "x-quiet x-cell-lede" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.frame = make("div", { class: "x-frame x-cell", tabindex: "0", role: "group" }, this.canvas);
    this.said = make("p", { class: "x-said x-cell-said" });
    this.order = segmented("Order of dimensions", [[false, "in order"], [true, "by size"]], false, (value) => {
      this.sorted = value;
      this.draw();
    });
    const head = make("div", { class: "x-head" }, this.title, this.order.element);
    this.element = make("section", { class: "x-section x-cell-section" }, head, this.lede, this.frame, this.said);
    this.frame.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.frame.addEventListener("pointerleave", () => this.point(null));
    this.frame.addEventListener("click", () => this.app.head < 0 && this.at !== null && this.app.open(this.app.n, this.shown[this.at]));
    this.frame.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Enter" && this.app.head < 0 && this.at !== null) this.app.open(this.app.n, this.shown[this.at]);
      if (step === undefined || !this.shown) return;
      event.preventDefault();
      this.point(Math.min(this.shown.length - 1, Math.max(0, (this.at ?? -1) + step)));
      this.app.voice(this.said.textContent);
    });
  }

  follow() {
    const { app } = this;
    if (!app.focus || !app.maps) return;
    const { i, j } = app.focus;
    const chip = (kind, text) => make("b", { class: `x-${kind}` }, text);
    const isEmpty = app.head >= 0 && !app.vectors;
    for (const element of [this.order.element, this.frame, this.said]) element.hidden = isEmpty;
    this.title.replaceChildren(
      ...(app.head < 0 ? ["Which heads of layer ", String(app.facts.layer), " bring "] : ["What makes "]),
      chip("q", app.token("i", i)), app.head < 0 ? " something from " : " look at ", chip("k", app.token("j", j)),
    );
    this.title.title = this.title.textContent;
    if (app.head < 0) this.heads(app.layer.cell(i, j));
    else if (app.vectors) this.vectors(app.vectors.cell(app.head, i, j), app.maps.row(app.maps.W, i)[j]);
    else this.lede.textContent = "q, k and v are left out: the text is too long for them.";
    if (!isEmpty) this.draw();
  }

  vectors(cell, weight) {
    const { facts } = this.app;
    const half = [...cell.adds].map(Math.abs).sort((a, b) => b - a);
    const whole = half.reduce((sum, x) => sum + x, 0);
    let [few, reached] = [0, 0];
    while (reached < whole / 2) reached += half[few++];
    const product = facts.scale === null ? "q·k" : `${number(facts.scale)} × q·k`;
    const rest = facts.plain ? `The softmax over the row makes the weight of it, ${number(weight)}.` : `This layer adds more to it before the softmax (positions, a cap, or else); the weight is ${number(weight)}.`;
    this.lede.replaceChildren(
      "The query q says what the first token looks for, the key k what the second is matched on. Their score is ", make("b", { "data-value": cell.score, class: "x-score" }, within(cell.score, cell.error)), ` = ${product}, a sum over ${cell.q.length} dimensions; the largest ${few} are half of the absolute sum. ${rest}`,
    );
    this.rows = [
      { name: "q", values: cell.q, colour: "q", shape: "circle" },
      { name: "k", values: cell.k, colour: "k", shape: "square" },
      { name: facts.scale === null ? "q × k" : "adds", values: cell.adds, colour: "ink", shape: "bar" },
    ];
    this.by = cell.adds;
    this.unit = "dimension";
    if (!cell.v.length) return;
    const size = Math.hypot(...cell.v);
    this.lede.append(` The value v is what is passed on: what arrives is ${number(weight)} × v, of length ${number(weight * size)} before the output matrix.`);
    this.rows.push({ name: "v", values: cell.v, colour: "v", shape: "triangle" });
  }

  heads({ W, N }) {
    this.lede.textContent = "The norm of a head says how much it carries; heads can cancel, so the layer's norm may be less than their sum. Click a head to open it." + (this.app.facts.stored ? " 0: not among the weights that are kept of a long text." : "");
    this.rows = [{ name: "a", values: W, colour: "ink", shape: "bar" }];
    if (N) this.rows.push({ name: "‖a f‖", values: N, colour: "mark", shape: "bar" });
    this.by = N || W;
    this.unit = "head";
  }

  // Asking for sizes and colours makes the browser lay out again: not at every move of the pointer.
  measure() {
    this.width = this.element.clientWidth;
    this.ink = colours(this.frame);
  }

  draw() {
    if (!this.rows) return;
    const n = this.by.length;
    const [{ width, ink }, left] = [this, 50];
    this.shown = Array.from({ length: n }, (_, e) => e);
    if (this.sorted) this.shown.sort((a, b) => Math.abs(this.by[b]) - Math.abs(this.by[a]));
    this.step = (width - left - 4) / n;
    this.left = left;
    const heights = this.rows.map(({ shape }) => (shape === "bar" ? NEEDLE : LANES));
    const height = heights.reduce((sum, x) => sum + x + 14, 22);
    const { pen, dpr } = fit(this.canvas, width, height);
    pen.scale(dpr, dpr);
    if (this.at !== null) {
      pen.fillStyle = ink.wash;
      pen.fillRect(left + this.at * this.step, 0, Math.max(2, this.step), height - 20);
    }
    let y = 4;
    this.rows.forEach((row, lane) => {
      this.lane(pen, ink, row, y, heights[lane], width);
      y += heights[lane] + 14;
    });
    this.axis(pen, ink, height, n);
    this.say();
  }

  lane(pen, ink, { name, values, colour, shape }, y, height, width) {
    const most = Math.max(1e-12, ...[...values].map(Math.abs));
    const signed = values.some((v) => v < 0);
    const zero = signed ? y + height / 2 : y + height;
    const reach = signed ? height / 2 : height;
    pen.fillStyle = ink[colour];
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.font = `600 13px ${ink.font}`;
    pen.fillText(name, 0, y + height / 2);
    pen.fillStyle = ink.soft;
    pen.font = `10.5px ${ink.font}`;
    pen.textAlign = "right";
    pen.fillText(number(most, 2), this.left - 5, y + 5);
    pen.fillStyle = ink.rule;
    pen.fillRect(this.left, Math.round(zero) - 0.5, width - this.left, 1);
    pen.fillStyle = pen.strokeStyle = ink[colour];
    const size = Math.min(7, Math.max(2, this.step * 0.62));
    // A value of another width than q and k has dimensions of its own, in their order.
    const own = values.length === this.by.length;
    const [order, step] = own ? [this.shown, this.step] : [[...values.keys()], (width - this.left - 4) / values.length];
    order.forEach((e, place) => {
      const x = this.left + (place + 0.5) * step;
      const tip = zero - (values[e] / most) * (reach - size / 2);
      const wide = shape === "bar" ? Math.min(14, Math.max(1, this.step * 0.7)) : Math.max(1, Math.min(1.5, this.step * 0.3));
      pen.fillRect(x - wide / 2, Math.min(zero, tip), wide, Math.abs(tip - zero));
      if (shape === "circle") {
        pen.beginPath();
        pen.arc(x, tip, size / 2, 0, 2 * Math.PI);
        pen.fill();
      } else if (shape === "square") pen.fillRect(x - size / 2, tip - size / 2, size, size);
      else if (shape === "triangle") {
        pen.beginPath();
        pen.moveTo(x, tip - size / 2);
        pen.lineTo(x + size / 2, tip + size / 2);
        pen.lineTo(x - size / 2, tip + size / 2);
        pen.fill();
      }
    });
  }

  axis(pen, ink, height, n) {
    pen.fillStyle = ink.soft;
    pen.font = `10.5px ${ink.font}`;
    pen.textAlign = "center";
    const every = Math.max(1, Math.ceil(24 / this.step));
    for (let place = 0; place < n; place += every) pen.fillText(this.shown[place] + 1, this.left + (place + 0.5) * this.step, height - 9);
  }

  say() {
    const { at, shown, rows, unit } = this;
    const name = (e) => `${unit} ${e + 1}`;
    if (at === null || at >= shown.length) {
      const best = [...this.by.keys()].sort((a, b) => Math.abs(this.by[b]) - Math.abs(this.by[a])).slice(0, 4);
      this.said.textContent = `Most: ${best.map((e) => `${name(e)} (${number(this.by[e])})`).join(", ")}.`;
    } else {
      const e = shown[at];
      this.said.replaceChildren(`${name(e)}: `, ...rows.filter(({ values }) => values.length === this.by.length).flatMap(({ name: row, values }, lane) => [lane ? ", " : "", `${row} `, make("b", { "data-value": values[e], "data-row": row }, number(values[e]))]));
    }
    this.frame.setAttribute("aria-label", `${this.title.textContent}: ${this.said.textContent} Left and right read the ${unit}s.`);
  }

  under(event) {
    if (!this.shown) return null;
    const x = event.clientX - this.canvas.getBoundingClientRect().left - this.left;
    const at = Math.floor(x / this.step);
    return at >= 0 && at < this.shown.length ? at : null;
  }

  point(at) {
    if (at === this.at) return;
    this.at = at;
    this.draw();
  }
}
