// The numbers under the marks: what stands where in a drawing, and how pointer and arrow keys read it.
const NS = "http://www.w3.org/2000/svg";
const SMALL = new Set(["seeds", "others", "dots"]); // layers that arrow keys pass by
const REACH = 28; // how near to a mark the pointer must come, in pixels
const SCALE = 2; // pixels of a saved picture per pixel of the page
const FONT = 'Arial, "Helvetica Neue", "Liberation Sans", sans-serif';

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const tip = make("div", { id: "tip", hidden: "" });
const voice = make("div", { class: "unseen", role: "status", id: "voice" });
document.body.append(tip, voice);

// As the page writes numbers: a true minus sign, three decimals, and below 0.1 three digits that count.
function number(value, signed) {
  const size = Math.abs(value);
  let text = size < 1000 ? value.toFixed(3) : value.toPrecision(3);
  if (size > 1e-12 && size < 0.1) {
    text = size < 1e-6 ? value.toExponential(2) : value.toFixed(2 - Math.floor(Math.log10(size)));
  }
  if (Number(text) === 0) return text.replace(/^-/, "");
  return ((signed && value > 0 ? "+" : "") + text).replaceAll("-", "−");
}

const numbersIn = (text) => (text.match(/-?[\d.]+(?:e[-+]?\d+)?/g) || []).map(Number);

// ---- the rows of one figure ---------------------------------------------------------------------------------

class Book {
  constructor(packed) {
    Object.assign(this, packed);
    this.rows = packed.series.map(([measure, site, run, seed, n, diverged, axis, values, low, high]) => ({
      measure: packed.measures[measure],
      site: packed.sites[site],
      run: packed.runs[run],
      seed,
      n,
      diverged: Boolean(diverged),
      at: packed.axes[axis],
      values,
      low: low || [],
      high: high || [],
    }));
  }

  // What stands under a mark, in lines: the first is the place, the second the number.
  words(series, i) {
    const { measure, site, run, seed, n, at, values, low, high } = series;
    const [name, unit, signed] = measure;
    const said = [site || "baseline", number(values[i], signed) + (unit ? ` ${unit}` : ""), name];
    const where = at.length ? `${this.at} ${Number(at[i].toPrecision(4))}`.trim() : "";
    if (seed !== null) {
      said.push([`seed ${seed}`, where].filter(Boolean).join(" · "), `run ${run}`);
    } else if (!n) {
      if (low[i] != null) said.push(`95 %: ${number(low[i], signed)} to ${number(high[i], signed)}`);
      said.push(where);
    } else {
      const ends = low[i] == null ? "" : `, 95 %: ${number(low[i], signed)} to ${number(high[i], signed)}`;
      said.push(`mean of ${n} seeds${ends}`, where);
      const mine = this.rows.filter((r) => r.seed !== null && r.measure === measure && r.site === site);
      const single = mine.map((r) => [r.seed, r.values[at.length ? r.at.indexOf(at[i]) : 0]]);
      said.push(single.filter(([, v]) => v !== undefined).map(([s, v]) => `seed ${s}: ${number(v, signed)}`).join(", "));
    }
    if (series.diverged) said.push(seed === null ? "a run behind it diverged" : "this run, or its baseline, diverged");
    return said.filter(Boolean);
  }

  // The series that the panels of one arrangement show.
  shown(view) {
    const drawn = new Set(this.views[view].panels.flatMap((panel) => panel.series));
    return this.rows.filter((_, i) => drawn.has(i));
  }

  // The rows of one arrangement, as a table.
  csv(view) {
    const quote = (v) => (/[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v ?? ""));
    const lines = [["measure", "unit", "site", "run", "seed", ...(this.at ? [this.at] : []), "value", "low", "high", "seeds", "diverged"]];
    for (const r of this.shown(view)) {
      r.values.forEach((value, i) => {
        const at = this.at ? [r.at[i] ?? ""] : [];
        lines.push([r.measure[0], r.measure[1], r.site, r.run, r.seed ?? "", ...at, value, r.low[i] ?? "", r.high[i] ?? "", r.n || "", r.diverged]);
      });
    }
    return lines.map((line) => line.map(quote).join(",") + "\r\n").join("");
  }

  // The means of one arrangement (single runs where there are no means), as a table for LaTeX.
  latex(view, title) {
    const signs = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
    const escape = (v) => String(v ?? "").replace(/[\\~^&%$#_{}]/g, (sign) => signs[sign] || `\\${sign}`);
    const every = this.shown(view);
    const means = every.filter((r) => r.seed === null);
    const rows = means.length ? means : every;
    const cells = rows.flatMap((r) =>
      r.values.map((value, i) => {
        const [signed, ends] = [r.measure[2], r.low[i] == null ? ["", ""] : [r.low[i], r.high[i]]];
        const numbers = [value, ...ends].map((v) => (v === "" ? "" : `$${number(v, signed).replaceAll("−", "-")}$`));
        return [r.measure[0] + (r.measure[1] ? `, ${r.measure[1]}` : ""), r.site || "baseline", ...(this.at ? [r.at[i] ?? ""] : []), ...numbers];
      }),
    );
    const head = ["measure", "site", ...(this.at ? [this.at] : []), "value", "low", "high"];
    const line = (row) => `  ${row.map((v) => (String(v).startsWith("$") ? v : escape(v))).join(" & ")} \\\\`;
    const columns = `ll${this.at ? "r" : ""}rrr`;
    const table = [`% ${title.replace(/\s+/g, " ")}`, `\\begin{tabular}{${columns}}`, "  \\hline", line(head), "  \\hline", ...cells.map(line), "  \\hline", "\\end{tabular}"];
    return table.join("\n") + "\n";
  }
}

// Beside the mark, inside the window.
function beside(mark) {
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const right = mark.right + 10 + width <= room - 4 ? mark.right + 10 : mark.left - 10 - width;
  const left = right < 4 ? Math.min(Math.max(4, mark.left - width / 2), room - width - 4) : right;
  const above = mark.top - height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 4 ? mark.bottom + 8 : above}px`;
}

// ---- the marks of one panel ---------------------------------------------------------------------------------

// Where a mark lies in its drawing; the drawings know no other transformation than moves.
function moved(element, root) {
  let [x, y] = [0, 0];
  for (let node = element; node !== root; node = node.parentNode) {
    const [a = 0, b = 0] = numbersIn(node.getAttribute("transform") || "");
    [x, y] = [x + a, y + b];
  }
  return [x, y];
}

class Plot {
  constructor(panel, strokes, keys, book) {
    this.panel = panel;
    this.svg = panel.querySelector("svg");
    this.book = book;
    this.marks = [];
    this.points = [];
    this.spot = null;
    for (const [layer, found] of Object.entries(strokes)) {
      this.svg.querySelectorAll(`.${layer}_marks > *`).forEach((element, i) => {
        if (!found[i]) return;
        const [key, series = null, offset = 0, count = 1] = found[i];
        this.marks.push({ element, key: keys[key] });
        if (series !== null) this.add(element, layer, keys[key], book.rows[series], offset, count);
      });
    }
    const large = this.points.filter((p) => !SMALL.has(p.layer));
    const main = large.length ? large : this.points;
    const boxed = main.some((p) => p.box);
    const group = (p) => (boxed ? -Math.round(p.y) : p.key);
    const names = [...new Set(main.map(group))];
    if (boxed) names.sort((a, b) => a - b);
    this.lanes = names.map((name) => main.filter((p) => group(p) === name).sort((a, b) => a.x - b.x));
  }

  add(element, layer, key, series, offset, count) {
    const [x, y] = moved(element, this.svg);
    const shared = { layer, key, series };
    if (element.closest("[class*=mark-rect]")) {
      const [left, top, width, height] = numbersIn(element.getAttribute("d"));
      const box = [x + left, y + top, width, height];
      this.points.push({ ...shared, offset, box, x: box[0] + width / 2, y: box[1] + height / 2 });
    } else if (element.tagName === "path" && element.closest("[class*=mark-line]")) {
      const d = numbersIn(element.getAttribute("d"));
      for (let i = 0; i < count && 2 * i + 1 < d.length; i++) {
        this.points.push({ ...shared, offset: offset + i, x: x + d[2 * i], y: y + d[2 * i + 1] });
      }
    } else {
      this.points.push({ ...shared, offset, x, y });
    }
  }

  hide(off) {
    for (const { element, key } of this.marks) element.classList.toggle("off", off.has(key));
    if (this.spot && off.has(this.spot.key)) this.leave();
    this.off = off;
  }

  seen(point) {
    return !this.off?.has(point.key);
  }

  nearest(event) {
    const frame = this.svg.getBoundingClientRect();
    const zoom = frame.width / this.svg.viewBox.baseVal.width;
    const [x, y] = [(event.clientX - frame.left) / zoom, (event.clientY - frame.top) / zoom];
    let [best, least] = [null, (REACH / zoom) ** 2];
    for (const point of this.points) {
      if (!this.seen(point)) continue;
      if (point.box) {
        const [left, top, width, height] = point.box;
        if (x >= left && x < left + width && y >= top && y < top + height) return point;
        continue;
      }
      const far = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (far < least) [best, least] = [point, far];
    }
    return best;
  }

  leave() {
    this.spot = null;
    this.svg.querySelector(".ring")?.remove();
    tip.hidden = true;
  }

  show(point, aloud = false) {
    if (!point) return this.leave();
    if (point === this.spot && !tip.hidden) return undefined;
    document.querySelector(".ring")?.remove();
    this.spot = point;
    const ring = document.createElementNS(NS, point.box ? "rect" : "circle");
    const [left, top, width, height] = point.box || [];
    const places = point.box ? { x: left, y: top, width, height } : { cx: point.x, cy: point.y, r: 7 };
    for (const [name, value] of Object.entries({ class: "ring", ...places })) ring.setAttribute(name, value);
    this.svg.append(ring);
    const [place, value, ...rest] = this.book.words(point.series, point.offset);
    tip.replaceChildren(make("strong", {}, value), make("b", {}, place), ...rest.map((line) => make("span", {}, line)));
    tip.hidden = false;
    if (aloud) voice.textContent = [place, value, ...rest].join(", ");
    beside(ring.getBoundingClientRect());
    return undefined;
  }

  // Left and right go along a series, up and down to the next one.
  walk(key) {
    const lanes = this.lanes.map((lane) => lane.filter((p) => this.seen(p))).filter((lane) => lane.length);
    if (!lanes.length) return;
    let lane = lanes.findIndex((one) => one.includes(this.spot));
    let i = lanes[lane]?.indexOf(this.spot) ?? 0;
    if (lane < 0) [lane, i] = [0, 0];
    else if (key === "ArrowLeft") i = Math.max(0, i - 1);
    else if (key === "ArrowRight") i = Math.min(lanes[lane].length - 1, i + 1);
    else if (key === "Home") i = 0;
    else if (key === "End") i = lanes[lane].length - 1;
    else {
      lane = Math.min(lanes.length - 1, Math.max(0, lane + (key === "ArrowUp" ? 1 : -1)));
      const far = lanes[lane].map((p) => Math.abs(p.x - this.spot.x));
      i = far.indexOf(Math.min(...far));
    }
    const next = lanes[lane][i];
    const [from, to] = [this.panel.scrollLeft, this.panel.scrollLeft + this.panel.clientWidth];
    if (next.x < from + 20 || next.x > to - 20) this.panel.scrollLeft = next.x - this.panel.clientWidth / 2;
    this.show(next, true);
  }
}
