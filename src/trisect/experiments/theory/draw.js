// Draw: elements, words with subscripts, numbers, scales and signs.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(NS, tag), attributes, children);

// "α_a" as α with a lowered a; braces hold longer ones: "k_{1}ᵀq".
function rich(text) {
  return text.split(/(_\{[^}]*\}|_\S)/).filter(Boolean).map((part) => (part[0] === "_" && part.length > 1 ? make("sub", {}, part.replace(/[_{}]/g, "")) : part));
}
function lowered(text) {
  return text.split(/(_\{[^}]*\}|_\S)/).filter(Boolean).flatMap((part) =>
    part[0] === "_" && part.length > 1 ? [draw("tspan", { dy: 4, "font-size": "0.75em" }, part.replace(/[_{}]/g, "")), draw("tspan", { dy: -4 }, "\u200b")] : [draw("tspan", {}, part)],
  );
}

// Three digits that count, and a true minus sign.
function number(value, digits = 3) {
  const size = Math.abs(value);
  if (!(size > 0)) return "0";
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 1) : size < 1000 ? value.toPrecision(digits) : value.toFixed(0);
  const [digit, power] = text.replaceAll("-", "−").split("e");
  return power === undefined ? digit : `${digit}·10${[...power].map((sign) => ("0123456789−".includes(sign) ? "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789−".indexOf(sign)] : "")).join("")}`;
}

// One sign for each kind of vector, in one shape and one colour: query, key, value, output, target.
const SIGNS = {
  q: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
  k: "M-4.6-4.6h9.2v9.2h-9.2Z",
  v: "M0-6L5.6 4.6H-5.6Z",
  c: "M0-7L7 0 0 7-7 0Z",
  target: "M-10 0a10 10 0 1 0 20 0a10 10 0 1 0-20 0Z",
};
const sign = (kind, x, y, more = "") => draw("path", { class: `s-${kind} ${more}`, d: SIGNS[kind], transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})` });

// Many points as one path: each a line of no length with a round end.
const dots = (points, more) => draw("path", { class: `dots ${more}`, d: points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("") });
const line = (points, more) => draw("path", { class: `line ${more}`, d: points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("") });
const label = (x, y, text, more = "", anchor = "middle") => draw("text", { x: x.toFixed(1), y: y.toFixed(1), class: more, "text-anchor": anchor }, ...lowered(text));

function arrow(from, to, more) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const long = Math.hypot(dx, dy);
  if (long < 1) return draw("g");
  const [ux, uy] = [dx / long, dy / long];
  const head = [to, [to[0] - 9 * ux + 4.5 * uy, to[1] - 9 * uy - 4.5 * ux], [to[0] - 9 * ux - 4.5 * uy, to[1] - 9 * uy + 4.5 * ux]];
  return draw("g", { class: `arrow ${more}` }, line([from, add(to, [-6 * ux, -6 * uy])], ""), draw("path", { d: `${head.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("")}Z` }));
}

const WIDE = 328;
// Letters are drawn last, so that nothing covers them.
function canvas(height, alt, ...children) {
  const letters = children.filter(({ tagName }) => tagName === "text");
  return draw("svg", { viewBox: `0 0 ${WIDE} ${height}`, role: "img", "aria-label": alt }, ...children.filter((child) => !letters.includes(child)), ...letters);
}

// Even steps that read well: 1, 2 or 5 times a power of ten, about `count` of them.
function steps(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((times) => times * power >= rough) * power;
  return range(Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1, (n) => (Math.ceil(low / step - 1e-9) + n) * step);
}

// Powers of ten, and between them 2 and 5 times these where there are few.
function powers(low, high) {
  const times = high / low < 100 ? [1, 2, 5] : [1];
  const [first, last] = [low, high].map((y) => Math.floor(Math.log10(y)));
  return range(last - first + 1, (n) => 10 ** (first + n)).flatMap((power) => times.map((factor) => factor * power)).filter((y) => y >= low && y <= high);
}

// Axes of a plot: returns the frame as elements, and how to get from numbers to places.
function axes({ x: [x0, x1], y: [y0, y1], height, log = false, below: name, count = 4 }) {
  const [left, right, top, bottom] = [46, WIDE - 12, 16, height - 40];
  const up = log ? Math.log10 : (y) => y;
  const [u0, u1] = [up(y0), up(y1)];
  const px = (x) => left + ((right - left) * (x - x0)) / (x1 - x0);
  const py = (y) => bottom - ((bottom - top) * (Math.max(u0, log && y <= 0 ? u0 : up(y)) - u0)) / (u1 - u0);
  const parts = [];
  const ticks = log ? powers(y0, y1) : steps(y0, y1, 4);
  const skip = Math.ceil(ticks.length / 7);
  ticks.forEach((y, n) => {
    if ((ticks.length - 1 - n) % skip) return;
    const text = log && y < 1e-3 ? number(y, 1).replace(/^1·/, "") : String(Number(y.toPrecision(6)));
    parts.push(draw("line", { class: "rule", x1: left, x2: right, y1: py(y), y2: py(y) }), label(left - 6, py(y) + 4, text, "tick", "end"));
  });
  for (const x of steps(x0, x1, count)) {
    parts.push(draw("line", { class: "axis", x1: px(x), x2: px(x), y1: bottom, y2: bottom + 4 }), label(px(x), bottom + 17, String(Number(x.toPrecision(6))), "tick"));
  }
  parts.push(draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }), label(right, bottom + 30, name, "tick", "end"));
  return { parts, px, py, left, right, top, bottom };
}
