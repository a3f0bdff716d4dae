// Map: token by token, queries down and keys across; both maps of a head share one window and one crosshair.
const LARGEST = 36; // CSS pixels of a cell when zoomed in as far as it goes
const LABELLED = 11; // and from where on every token has its label
const TALLEST = 640;

// The part of the map that is seen: cell size in device pixels, and the first token on either axis.
class Lens {
  constructor() {
    this.zoom = 0; // 0: all of it
    this.first = { i: 0, j: 0 };
  }

  // What a canvas of w × h device pixels shows of a T × S map.
  view(w, h, T, S, dpr) {
    const whole = Math.min(w / S, h / T, LARGEST * dpr);
    const cell = Math.min(LARGEST * dpr, whole * 2 ** this.zoom);
    const even = cell >= 1 ? Math.floor(cell) : cell;
    const [nj, ni] = [Math.min(S, Math.floor(w / even)), Math.min(T, Math.floor(h / even))];
    this.first.i = Math.min(Math.max(0, Math.round(this.first.i)), T - ni);
    this.first.j = Math.min(Math.max(0, Math.round(this.first.j)), S - nj);
    return { cell: even, ni, nj, i: this.first.i, j: this.first.j, deepest: cell >= LARGEST * dpr };
  }

  centre(focus, view) {
    this.first = { i: focus.i - view.ni / 2, j: focus.j - view.nj / 2 };
  }

  // Moves by the least that brings a cell into sight.
  follow(focus, view) {
    for (const [axis, seen] of [["i", view.ni], ["j", view.nj]]) {
      if (focus[axis] < view[axis]) this.first[axis] = focus[axis];
      if (focus[axis] >= view[axis] + seen) this.first[axis] = focus[axis] - seen + 1;
    }
  }
}

class TokenMap {
  constructor(app, kind) {
    Object.assign(this, { app, kind, drag: null });
    this.base = make("canvas", { "aria-hidden": "true" });
    this.over = make("canvas", { "aria-hidden": "true", class: "x-over" });
    this.frame = make("div", { class: "x-frame x-map", tabindex: "0", role: "group", "data-kind": kind }, this.base, this.over);
    this.lack = make("p", { class: "x-lack", hidden: true });
    this.scale = make("span", { class: "x-scale" });
    this.sign = make("i");
    this.heading = make("span");
    const head = make("div", { class: "x-side" }, make("h3", {}, this.heading, " ", this.sign), this.scale);
    this.element = make("div", { class: "x-half" }, head, this.frame, this.lack);
    this.frame.addEventListener("pointermove", (event) => this.move(event));
    this.frame.addEventListener("pointerdown", (event) => this.grab(event));
    this.frame.addEventListener("pointerup", () => (this.drag = this.drag?.moved ? "done" : null));
    this.frame.addEventListener("pointercancel", () => (this.drag = null));
    this.frame.addEventListener("pointerleave", () => this.drag?.moved || this.app.hover(null));
    this.frame.addEventListener("click", () => this.click());
    this.frame.addEventListener("dblclick", () => this.app.zoom(1));
    this.frame.addEventListener("keydown", (event) => this.key(event));
  }

  get map() {
    return this.app.maps && this.app.maps.of(this.kind);
  }

  get top() {
    if (this.signed) return this.map.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-30);
    return this.app.maps.tops[this.kind === "norms" ? 1 : 0] || 1;
  }

  get signed() {
    return this.kind === "contributions";
  }

  get lut() {
    return this.signed ? SIGNED_LUT : LUT;
  }

  // A head was opened: colour numbers for every cell, on the head's own scale.
  load() {
    const { map, signed } = this;
    this.heading.textContent = TITLES[this.kind];
    this.frame.hidden = !map;
    this.lack.hidden = Boolean(map);
    this.lack.textContent = map ? "" : `There are no ${this.kind} for this layer: ${this.app.facts.lacking}.`;
    if (!map) return;
    const [top, sign] = [this.top, this.app.sign(this.kind)];
    const factor = (255 * 255) / top;
    this.levels = new Uint8Array(map.length);
    for (let at = 0; at < map.length; at++) {
      const level = Math.sqrt(Math.abs(map[at]) * factor);
      this.levels[at] = signed ? 128 + (Math.sign(map[at]) * level) / 2.01 : Math.min(255, level + 0.5);
    }
    this.sign.textContent = sign;
    this.scale.replaceChildren(legend(top, sign, signed));
    this.draw();
  }

  measure() {
    const { T, S } = this.app.maps;
    const width = this.element.clientWidth;
    const pen = this.base.getContext("2d");
    pen.font = `600 12px ${colours(this.frame).font}`;
    // the longest token has its room, up to three tenths of the width
    const room = (axis, count, least) => {
      const tokens = Array.from({ length: count }, (_, n) => this.app.token(axis, n));
      return Math.min(Math.floor(0.3 * width), Math.max(least, ...tokens.map((token) => Math.ceil(pen.measureText(token).width) + 12)));
    };
    this.gutter = width < 420 ? { left: room("i", T, 58), top: room("j", S, 50) } : { left: room("i", T, 84), top: room("j", S, 72) };
    this.frame.dataset.gutter = `${this.gutter.left} ${this.gutter.top}`;
    const side = width - this.gutter.left - 1;
    const height = Math.min(TALLEST, Math.max(120, side * Math.min(1, T / S)));
    return { side, height };
  }

  draw() {
    if (!this.map) return;
    const { T, S } = this.app.maps;
    const { side, height } = this.measure();
    const dpr = globalThis.devicePixelRatio || 1;
    const view = this.app.lens.view(Math.floor(side * dpr), Math.floor(height * dpr), T, S, dpr);
    this.view = view;
    const [w, h] = [(view.nj * view.cell) / dpr, (view.ni * view.cell) / dpr];
    this.size = [this.gutter.left + w + 1, this.gutter.top + h + 1];
    const { pen } = fit(this.base, ...this.size);
    this.ink = colours(this.frame);
    this.dpr = dpr;
    const [x, y] = [Math.round(this.gutter.left * dpr), Math.round(this.gutter.top * dpr)];
    this.origin = [x, y];
    view.cell >= 1 ? this.cells(pen, x, y) : this.pooled(pen, x, y);
    this.labels(pen);
    this.frame.classList.toggle("x-zoomed", this.app.lens.zoom > 0);
    this.follow();
  }

  cells(pen, x, y) {
    const { S } = this.app.maps;
    const { cell, ni, nj, i: top, j: left } = this.view;
    const seen = new Uint8Array(ni * nj);
    for (let i = 0; i < ni; i++) seen.set(this.levels.subarray((top + i) * S + left, (top + i) * S + left + nj), i * nj);
    const blank = this.app.facts.causal ? (i, j) => left + j > top + i : null;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture(seen, nj, ni, blank, this.lut), x, y, nj * cell, ni * cell);
    if (cell < 9 * this.dpr) return;
    pen.fillStyle = this.ink.paper;
    for (let j = 0; j <= nj; j++) pen.fillRect(x + j * cell - 1, y, 1, ni * cell);
    for (let i = 0; i <= ni; i++) pen.fillRect(x, y + i * cell - 1, nj * cell, 1);
  }

  // More tokens than pixels: a pixel shows the largest value of its cells, whatever its sign.
  pooled(pen, x, y) {
    const { T, S } = this.app.maps;
    const { cell } = this.view;
    const [w, h] = [Math.max(1, Math.floor(S * cell)), Math.max(1, Math.floor(T * cell))];
    const zero = this.signed ? 128 : 0;
    const seen = new Uint8Array(w * h).fill(zero);
    for (let i = 0; i < T; i++) {
      const row = Math.min(h - 1, Math.floor(i * cell)) * w;
      for (let j = 0, at = i * S; j < S; j++, at++) {
        const to = row + Math.min(w - 1, Math.floor(j * cell));
        if (Math.abs(this.levels[at] - zero) > Math.abs(seen[to] - zero)) seen[to] = this.levels[at];
      }
    }
    const blank = this.app.facts.causal ? (i, j) => j > i : null;
    pen.drawImage(picture(seen, w, h, blank, this.lut), x, y);
  }

  // Every token where there is room, else every so many.
  labels(pen) {
    const { cell, ni, nj, i: top, j: left } = this.view;
    const every = Math.max(1, Math.ceil((LABELLED * this.dpr) / cell));
    const step = every === 1 ? 1 : Math.max(every, Math.ceil((18 * this.dpr) / cell));
    this.every = step;
    pen.fillStyle = this.ink.soft;
    for (let i = Math.ceil(top / step) * step; i < top + ni; i += step) this.label(pen, "i", i);
    for (let j = Math.ceil(left / step) * step; j < left + nj; j += step) this.label(pen, "j", j);
  }

  label(pen, axis, n, colour = null) {
    const { cell } = this.view;
    const [x, y] = this.origin;
    const size = Math.min(12, Math.max(10.5, (0.62 * cell) / this.dpr)) * this.dpr;
    pen.font = `${colour ? "600 " : ""}${size}px ${this.ink.font}`;
    pen.textBaseline = "middle";
    const room = (axis === "i" ? this.gutter.left : this.gutter.top) * this.dpr - 8 * this.dpr;
    let text = this.app.token(axis, n);
    while (text.length > 1 && pen.measureText(text).width > room) text = `${text.replace(/…$/, "").slice(0, -1)}…`;
    const at = (n - this.view[axis] + 0.5) * cell;
    pen.save();
    if (axis === "i") pen.translate(x - 6 * this.dpr, y + at);
    else {
      pen.translate(x + at, y - 6 * this.dpr);
      pen.rotate(-Math.PI / 2);
    }
    pen.textAlign = axis === "i" ? "right" : "left";
    if (colour) {
      const wide = pen.measureText(text).width + 6 * this.dpr;
      const high = size + 5 * this.dpr;
      const gutter = (axis === "i" ? this.gutter.left : this.gutter.top) * this.dpr;
      const [before, after] = this.behind(n, high / 2 + this.dpr, size / 2 + this.dpr);
      pen.fillStyle = this.ink.paper;
      pen.fillRect(axis === "i" ? 6 * this.dpr - gutter : -2 * this.dpr, -before, gutter - 8 * this.dpr, before + after);
      pen.fillStyle = colour;
      pen.beginPath();
      pen.roundRect(axis === "i" ? 3 * this.dpr - wide : -3 * this.dpr, -high / 2, wide, high, 3 * this.dpr);
      pen.fill();
      pen.fillStyle = this.ink.paper;
    }
    pen.fillText(text, 0, 0.5 * this.dpr);
    pen.restore();
  }

  // How far on either side of token n the labels go that its own, of half height `own`, would cut through.
  behind(n, own, half) {
    const reach = [own, own];
    const first = Math.floor(n / this.every) * this.every;
    for (const near of [first - this.every, first, first + this.every, first + 2 * this.every]) {
      const far = Math.abs(near - n) * this.view.cell;
      if (far < own + half) reach[Number(near > n)] = Math.max(reach[Number(near > n)], far + half);
    }
    return reach;
  }

  // The crosshair, over the map: the query's row in the colour of q, the key's column in that of k.
  follow() {
    if (!this.map || !this.view) return;
    const { pen } = fit(this.over, ...this.size);
    const { cell, ni, nj } = this.view;
    const [x, y] = this.origin;
    this.hits(pen);
    const focus = this.app.focus;
    if (!focus) return;
    const [i, j] = [focus.i - this.view.i, focus.j - this.view.j];
    const thick = Math.max(1, Math.round(1.5 * this.dpr));
    const side = Math.max(cell, 7 * this.dpr);
    const band = cell < side ? thick : cell;
    const line = (colour, ...box) => {
      if (band === thick) {
        pen.fillStyle = colour;
        pen.fillRect(...box);
        return;
      }
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.strokeRect(...box.map((v, at) => (at < 2 ? v - 0.5 : v)));
    };
    const middle = (n, size = band) => n * cell + (cell - size) / 2;
    if (i >= 0 && i < ni) line(this.ink.q, x, y + middle(i), nj * cell, band);
    if (j >= 0 && j < nj) line(this.ink.k, x + middle(j), y, band, ni * cell);
    if (i >= 0 && i < ni) this.label(pen, "i", focus.i, this.ink.q);
    if (j >= 0 && j < nj) this.label(pen, "j", focus.j, this.ink.k);
    if (i < 0 || j < 0 || i >= ni || j >= nj) return;
    pen.fillStyle = LUTCSS(this.levels[focus.i * this.app.maps.S + focus.j], this.lut);
    const box = [x + middle(j, side), y + middle(i, side), side, side];
    pen.fillRect(...box);
    pen.strokeStyle = "#fff";
    pen.lineWidth = thick;
    pen.strokeRect(...box);
  }

  hits(pen) {
    pen.fillStyle = this.ink.hit;
    const { cell } = this.view;
    const [x, y] = this.origin;
    const side = Math.max(cell, 2 * this.dpr);
    for (const axis of ["i", "j"]) {
      for (const n of this.app.hits(axis)) {
        const at = (n - this.view[axis]) * cell;
        if (at < 0 || at >= (axis === "i" ? this.view.ni : this.view.nj) * cell) continue;
        if (axis === "i") pen.fillRect(x - 4 * this.dpr, y + at, 3 * this.dpr, side);
        else pen.fillRect(x + at, y - 4 * this.dpr, side, 3 * this.dpr);
      }
    }
  }

  under(event) {
    if (!this.view) return null;
    const box = this.base.getBoundingClientRect();
    const at = (value, start, n) => Math.floor(((value * this.dpr - start) / this.view.cell) * (1 + 1e-9) + n);
    const j = at(event.clientX - box.left, this.origin[0], this.view.j);
    const i = at(event.clientY - box.top, this.origin[1], this.view.i);
    const inside = i >= this.view.i && j >= this.view.j && i < this.view.i + this.view.ni && j < this.view.j + this.view.nj;
    return inside ? { i, j } : null;
  }

  grab(event) {
    this.down = this.under(event); // a click's own place is rounded to pixels
    this.drag = this.app.lens.zoom > 0 && event.button === 0 ? { x: event.clientX, y: event.clientY, first: { ...this.app.lens.first }, moved: false } : null;
  }

  move(event) {
    const drag = this.drag;
    if (!drag?.first || !event.buttons) {
      this.app.hover(this.under(event));
      return;
    }
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 5) return;
    if (!drag.moved) this.frame.setPointerCapture(event.pointerId);
    drag.moved = true;
    const tokens = this.dpr / this.view.cell;
    this.app.lens.first = { i: drag.first.i - dy * tokens, j: drag.first.j - dx * tokens };
    this.app.look();
  }

  click() {
    const dragged = this.drag === "done";
    this.drag = null;
    if (!dragged && this.down) this.app.pin(this.down);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.view) return;
    const { T, S } = this.app.maps;
    const { i, j } = this.app.pinned;
    const far = event.shiftKey ? 10 : 1;
    const to = {
      ArrowLeft: [i, j - far], ArrowRight: [i, j + far], ArrowUp: [i - far, j], ArrowDown: [i + far, j],
      Home: [i, 0], End: [i, S - 1], PageUp: [0, j], PageDown: [T - 1, j],
    }[event.key];
    if (to) {
      const spot = { i: Math.min(T - 1, Math.max(0, to[0])), j: Math.min(S - 1, Math.max(0, to[1])) };
      this.app.lens.follow(spot, this.view);
      this.app.pin(spot, true);
      this.app.look();
    } else if (["+", "=", "-", "0"].includes(event.key)) this.app.zoom({ "-": -1, 0: null }[event.key] ?? (event.key === "0" ? null : 1));
    else return;
    event.preventDefault();
  }
}

const LUTCSS = (level, lut = LUT) => {
  const [r, g, b] = new Uint8Array(new Uint32Array([lut[level]]).buffer);
  return `rgb(${r}, ${g}, ${b})`;
};
