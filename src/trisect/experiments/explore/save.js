// Save: what the explorer's canvases show as vectors, the shaded text too, and the numbers behind each.
const FEW = 40; // rows of a table for LaTeX where a file has many
const [STRIP, TICKS] = [9, 34]; // pixels of a scale below a map, and with its numbers
const short = (x) => (typeof x === "number" ? Math.round(100 * x) / 100 : x);
const path = (parts, ...numbers) => parts.reduce((text, part, n) => `${text}${short(numbers[n - 1])}${part}`);

// In the place of a canvas, for one drawing: what its pen is asked for becomes elements of an SVG.
class Sheet {
  constructor() {
    Object.assign(this, { style: {}, parts: [], kept: [], at: "", gauge: new OffscreenCanvas(1, 1).getContext("2d") });
  }

  put(tag, attributes, ...children) {
    const all = this.at ? { ...attributes, transform: this.at } : attributes;
    this.parts.push(vector(tag, Object.fromEntries(Object.entries(all).map(([name, value]) => [name, short(value)])), ...children));
  }

  getContext() { return this; }
  setTransform() { this.at = ""; }
  clearRect() { this.parts = []; }
  save() { this.kept.push(this.at); }
  restore() { this.at = this.kept.pop(); }
  translate(x, y) { this.at += path`translate(${x} ${y})`; }
  rotate(angle) { this.at += path`rotate(${(180 * angle) / Math.PI})`; }
  scale(x, y) { this.at += path`scale(${x} ${y})`; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += path`M${x} ${y}`; }
  lineTo(x, y) { this.path += path`L${x} ${y}`; }
  arc(x, y, r) { this.path += path`M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`; }
  roundRect(x, y, width, height) { this.path += path`M${x} ${y}h${width}v${height}h${-width}Z`; }
  fill() { this.put("path", { d: this.path, fill: this.fillStyle }); }
  stroke() { this.put("path", { d: this.path, ...this.line }); }
  fillRect(x, y, width, height) { this.put("rect", { x, y, width, height, fill: this.fillStyle }); }
  strokeRect(x, y, width, height) { this.put("rect", { x, y, width, height, ...this.line }); }
  get line() { return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth || 1 }; }

  measureText(text) {
    this.gauge.font = this.font;
    return this.gauge.measureText(text);
  }

  fillText(text, x, y) {
    const [, weight = 400, size] = /(?:(\d+) )?([\d.]+)px/.exec(this.font);
    const anchor = { right: "end", center: "middle" }[this.textAlign] || "start";
    this.put("text", { x, y: y + 0.35 * size, fill: this.fillStyle, "font-size": Number(size), "font-weight": weight, "text-anchor": anchor }, String(text));
  }

  drawImage(image, x, y, width = image.width, height = image.height) {
    const copy = make("canvas", { width: image.width, height: image.height });
    copy.getContext("2d").drawImage(image, 0, 0);
    this.put("image", { x, y, width, height, preserveAspectRatio: "none", href: copy.toDataURL(), "image-rendering": this.imageSmoothingEnabled ? "auto" : "pixelated" });
  }
}

// What a view draws while its canvases of these names are sheets, as a panel of a picture; below it the scale up to `top`, where there is one.
function drawn(view, names, title, top = null) {
  const own = names.map((name) => view[name]);
  const sheets = names.map((name) => (view[name] = new Sheet()));
  view.draw();
  names.forEach((name, n) => (view[name] = own[n]));
  const [{ width: w, height: h, style }] = sheets;
  const [width, height] = [parseFloat(style.width), parseFloat(style.height)];
  const [ink, scale] = [colours(view.frame), new Sheet()];
  const [left, wide] = [20, Math.min(200, width - 40)];
  Object.assign(scale, { font: `11px ${ink.font}`, textAlign: "center" });
  for (let n = 0; top && n < 64; n++) {
    scale.fillStyle = LUTCSS(Math.round((255 * n) / 63), view.lut);
    scale.fillRect(left + (n * wide) / 64, height + STRIP, wide / 64 + 0.5, STRIP);
  }
  scale.fillStyle = ink.soft;
  const marks = ticks(view.signed).filter((_, n) => top && n % 2 === 0);
  marks.forEach((share, n) => scale.fillText(number(share * Math.abs(share) * top, 2), left + (n * wide) / 2, height + TICKS - 8));
  const inner = vector("svg", { width, height, viewBox: `0 0 ${w} ${h}` }, ...sheets.flatMap(({ parts }) => parts));
  return { name: title, svg: vector("svg", {}, inner, ...scale.parts), width, height: height + (top ? TICKS : 0) };
}

// A text's parts, line by line, where it is broken into several.
function linesOf(node) {
  const range = document.createRange();
  const lines = [];
  let from = 0;
  for (const letter of node.data) {
    range.setStart(node, from);
    range.setEnd(node, (from += letter.length));
    const box = range.getBoundingClientRect();
    if (lines.length && Math.abs(lines.at(-1)[1].top - box.top) < 2) lines.at(-1)[0] += letter;
    else lines.push([letter, box]);
  }
  return lines;
}

// The text as it is shaded, and its largest sources by name, from where they stand on the page.
function written({ element, title, text, items }) {
  const [sheet, ink, box] = [new Sheet(), colours(element), text.getBoundingClientRect()];
  const write = (word, x, y, size = getComputedStyle(text).fontSize, align = "left") => {
    Object.assign(sheet, { font: `${size} ${ink.font}`, textAlign: align, fillStyle: ink.ink });
    sheet.fillText(word, x, y);
  };
  const at = ({ left, top, width, height }, down) => [left - box.left + 2, top - box.top + down + 2, width, height];
  const cut = (word, room) => {
    let shown = word;
    while (shown.length > 1 && sheet.measureText(shown).width > room) shown = `${shown.replace(/…$/, "").slice(0, -1)}…`;
    return shown;
  };
  const place = (part, down) => at(part.getBoundingClientRect(), down);
  for (const span of text.querySelectorAll(".x-token")) {
    sheet.fillStyle = span.style.backgroundColor || "none";
    sheet.strokeStyle = span.matches(".x-query") ? ink.q : ink.k;
    for (const line of [...span.getClientRects()].map((line) => at(line, text.scrollTop))) {
      sheet.fillRect(...line);
      if (span.matches(".x-query, .x-key")) sheet.strokeRect(...line);
    }
    for (const [word, line] of linesOf(span.firstChild)) {
      const [x, y, , height] = at(line, text.scrollTop);
      write(word, x, y + height / 2);
    }
  }
  const down = text.scrollHeight - text.clientHeight;
  for (const { word, bar, value } of items.filter((item) => item.element.dataset.n)) {
    sheet.font = `13px ${ink.font}`;
    const [[x, y, , high], [end, , wide]] = [place(word, down), place(value, down)];
    write(cut(word.textContent, word.clientWidth - 4), x, y + high / 2, "13px");
    write(value.textContent, end + wide, y + high / 2, "13px", "right");
    sheet.fillStyle = getComputedStyle(bar).backgroundColor;
    sheet.fillRect(...place(bar, down));
  }
  const { width, bottom } = element.getBoundingClientRect();
  return { name: title.textContent, svg: vector("svg", {}, ...sheet.parts), width: width + 8, height: bottom - box.top + down + 8 };
}

// Every head that is drawn, with its largest value.
function headsTable(app) {
  const rows = app.layers.flatMap(({ facts, n }) => [...Array(facts.shape[0]).keys(), -1].flatMap((head) => KINDS.filter((kind) => facts.tops[kind]).map((kind) => {
    const top = head < 0 ? facts.tops[{ weights: "mean", norms: "summed" }[kind]][0] : facts.tops[kind][head];
    return [app.site(n, head), TITLES[kind].toLowerCase(), top];
  })));
  return { columns: ["site", "seen", "largest"], rows, sides: "llr" };
}

// Cells of the open head; what a causal model cannot look at is left out.
function cellsTable(app, pick) {
  const { T, S, W } = app.maps;
  const beside = app.maps.of(app.beside);
  const rows = [];
  for (let i = 0; i < T; i++) {
    for (let j = 0; j < S; j++) {
      // of a long text what is stored alone, since a table of all cells would fill the memory
      if (!pick(i, j) || (app.facts.causal && j > i) || (app.facts.stored && !W[i * S + j])) continue;
      rows.push([i + 1, app.token("i", i), j + 1, app.token("j", j), ...[W, beside].filter(Boolean).map((map) => map[i * S + j])]);
    }
  }
  const few = [...rows].sort((a, b) => Math.abs(b.at(-1)) - Math.abs(a.at(-1))).slice(0, FEW);
  return { columns: ["query", "query token", "key", "key token", "weight", ...(beside ? [TITLES[app.beside].slice(3)] : [])], rows, few, sides: `rlrlr${beside ? "r" : ""}` };
}

// What is drawn of one cell: a row for each dimension, or for each head of a layer.
function cellTable({ rows: lanes, unit }) {
  const count = Math.max(...lanes.map(({ values }) => values.length));
  const rows = Array.from({ length: count }, (_, n) => [n + 1, ...lanes.map(({ values }) => values[n] ?? "")]);
  return { columns: [unit, ...lanes.map(({ name }) => name)], rows, sides: "r".repeat(1 + lanes.length) };
}

// The buttons of each part of the page: every head, the open one token by token, the text, and a cell.
function saversOf(app) {
  const kinds = () => app.plots.filter(({ map }) => map);
  const picture = (title, panels) => {
    const { ink, paper, font } = colours(app.root);
    return together(title, panels, { ink, paper, font });
  };
  const opened = () => app.name(app.n, app.head);
  const spot = () => `${app.site()}-q${app.focus.i + 1}-k${app.focus.j + 1}`;
  const part = (name, drawing, table) => savers({ name, drawing, table }, "x-tools x-save");
  return {
    heads: part(() => `${app.stacks.length > 1 ? `${app.stack}-` : ""}heads`, () => picture("Every head: layers down, heads across",
      app.grids.map((grid) => drawn(grid, ["canvas"], `${TITLES[grid.kind]}, ${SIGNS[grid.kind]}`, app.shared && app.tops(grid.kind).heads))), () => headsTable(app)),
    map: part(() => `${app.site()}-map`, () => picture(`${opened()}: queries down, keys across`,
      kinds().map((plot) => drawn(plot, ["base", "over"], `${TITLES[plot.kind]}, ${app.sign(plot.kind)}`, plot.top))), () => cellsTable(app, () => true)),
    text: part(() => `${spot()}-text`, () => picture(opened(), app.texts.filter((text) => text.values()).map(written)),
      () => cellsTable(app, (i, j) => (app.giving ? j === app.focus.j : i === app.focus.i))),
    cell: part(spot, () => picture(opened(), [drawn(app.cell, ["canvas"], app.cell.title.textContent)]), () => cellTable(app.cell)),
  };
}
