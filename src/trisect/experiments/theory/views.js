// Views: a state of a construction as drawings, each with its words for who cannot see it.
const inWords = (weights, names) => names.map((name, n) => `${name.replace("_", " ")} ${number(weights[n])}`).join(", ");
const plain = (text) => text.replaceAll(/[_{}]/g, "");

// Lines of equal score: where q·x is a whole number of steps. Far from each other where q is short.
function contours(q, [ox, oy], unit, height) {
  const long = norm(q);
  if (long < 0.05) return [];
  const step = [1, 2, 5, 10].find((times) => (times * unit) / long > 5) || 20;
  const [ux, uy] = scaled(q, 1 / long);
  const reach = Math.ceil(((WIDE + height) / unit) * long / step);
  return range(2 * reach + 1, (n) => n).flatMap((n) => {
    const far = (((n - reach) * step) / long) * unit;
    const [x, y] = [ox + far * ux, oy - far * uy];
    const inside = [[x, uy || 1e-9, WIDE], [y, ux || 1e-9, height]].map(([at, by, most]) => [-at / by, (most - at) / by].sort((a, b) => a - b));
    const [from, to] = [Math.max(...inside.map(([a]) => a)), Math.min(...inside.map(([, b]) => b))];
    return from < to ? [draw("line", { class: n === reach ? "rule zero" : "rule", x1: x + from * uy, y1: y + from * ux, x2: x + to * uy, y2: y + to * ux })] : [];
  });
}

// Keys and queries in the plane of the two means: a query of that plane sees nothing else of a key.
function keysView(state) {
  const { most, origin } = state.random ? { most: 92, origin: [104, 198] } : { most: 150, origin: [78, 216] };
  // Smaller where k_a or k_b would leave the drawing.
  const room = (share, ahead, back) => (share > 0 ? ahead : back) / Math.max(Math.abs(share), 1e-9);
  const unit = Math.min(most, ...state.keys.slice(0, 2).flatMap(([x, y]) => [room(x, 308 - origin[0], origin[0] - 16), room(y, origin[1] - 16, 238 - origin[1])]));
  const height = 268;
  const place = ([x, y]) => [origin[0] + unit * x, origin[1] - unit * y];
  const parts = state.heads.flatMap(({ q }) => contours(q, origin, unit, height));
  if (state.clouds) state.clouds.keys.slice(2).concat(state.clouds.keys.slice(0, 2)).forEach((cloud, n, all) => parts.push(dots(cloud.map(place), n >= all.length - 2 ? "dots-k" : "dots-k faint")));
  state.heads.forEach(({ q, name }) => {
    const to = add(origin, [q[0], -q[1]], 150 / state.longest);
    parts.push(arrow(origin, to, "a-q"), sign("q", ...origin), label(to[0] + (q[0] ? 12 : 14), to[1] + (q[1] ? -8 : 16), name, "w-q"));
  });
  const spots = state.keys.map(place);
  spots.slice(2).forEach((spot) => parts.push(sign("k", ...spot, "s-faint")));
  if (spots.length > 2 && !state.random) parts.push(label(spots[2][0] - 8, spots[2][1] + 24, spots.length === 3 ? "the other" : "the others", "w-soft"));
  spots.slice(0, 2).forEach((spot, n) => parts.push(sign("k", ...spot), label(spot[0] + (n ? -16 : 4), spot[1] + (n ? 5 : 24), state.names[n].replace("v", "k"), "w-k")));
  const alt = `Keys in the plane: ${state.keys.slice(0, 2).map(([x, y], n) => `k ${state.letters[n]} at ${number(x)}, ${number(y)}`).join("; ")}. ${state.heads.map(({ q, name }) => `${plain(name)} is ${number(q[0])}, ${number(q[1])}`).join("; ")}.`;
  return canvas(height, alt, ...parts);
}

// A weight to three places: in a list of weights that sum to one, more would not be read.
const share = (weight) => (weight >= 0.0005 ? weight.toFixed(3) : weight > 0 ? "< 0.001" : "0");
const score = (value, digits = 2) => (Math.abs(value) < 0.5 / 10 ** digits ? "0" : value.toFixed(digits).replace("-", "−"));

function weightsView(state) {
  const several = state.heads.length > 1;
  const [row, top] = [Math.min(34, 240 / state.names.length), 24];
  const [left, right] = [112, 268];
  const parts = [label(96, 14, several ? "scores" : "score", "tick", "end"), label(left, 14, several ? "weights by head 1, by head 2" : "weight", "tick", "start")];
  state.names.forEach((name, n) => {
    const y = top + row * n;
    parts.push(sign("k", 10, y + row / 2, n > 1 ? "s-faint" : ""), label(22, y + row / 2 + 5, name.replace("v", "k"), "w-k", "start"));
    state.heads.forEach(({ scores, weights }, h) => {
      const [high, at] = several ? [row / 2 - 3, y + 1 + (h * row) / 2] : [row - 12, y + 6];
      parts.push(label(96, at + high / 2 + 4, score(scores[n]), "figure", "end"));
      parts.push(draw("rect", { class: "track", x: left, y: at, width: right - left, height: high }));
      parts.push(draw("rect", { class: h ? "bar second" : "bar", x: left, y: at, width: (right - left) * weights[n], height: high }));
      parts.push(label(right + 6, at + high / 2 + 4, share(weights[n]), "figure", "start"));
    });
  });
  const alt = state.heads.map(({ weights }, h) => `Weights${several ? ` of head ${h + 1}` : ""}: ${inWords(weights, state.names.map((name) => name.replace("v", "k")))}.`).join(" ");
  return canvas(268, alt, ...parts);
}

// Values as the corners of a regular polygon: every weighted mean of them keeps its place inside.
function valuesView(state) {
  const [count, radius, middle, height] = [state.names.length, 104, [164, 138], 268];
  const turn = count === 2 ? 0 : -Math.PI / 2 - Math.PI / count;
  const corners = range(count, (n) => add(middle, [-Math.cos(turn + (2 * Math.PI * n) / count), Math.sin(turn + (2 * Math.PI * n) / count)].map((x) => -x * radius)));
  const place = (weights) => blend(weights, corners);
  const parts = [draw("path", { class: "shell", d: `${corners.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("")}Z` })];
  for (const [points, more] of state.clouds?.outputs || []) parts.push(dots(points.map(place), more));
  corners.forEach(([x, y], n) => {
    const out = scaled(add([x, y], middle, -1), 1 / radius);
    parts.push(sign("v", x, y, n > 1 ? "s-faint" : ""), label(x + 19 * out[0], y + 19 * out[1] + 5, state.names[n], "w-v"));
  });
  const [goal, output] = [place(state.target), place(state.weights)];
  parts.push(sign("target", ...goal), arrow(goal, output, "a-c"), sign("c", ...output), label(output[0] + 17, output[1] + 20, "c", "w-c"));
  return canvas(height, `The output c is the weighted mean of the values: ${inWords(state.weights, state.names)}. It is ${number(state.error)} from the target.`, ...parts);
}

function errorView(state) {
  const { betas, law, points, now, parts: pieces = [] } = state.curve;
  const low = 1e-30;
  const shown = points.filter((y) => y > low);
  const [y0, y1] = shown.length ? [Math.max(low, 0.5 * Math.min(...shown)), 2.2 * Math.max(...shown)] : [1e-3, 1];
  const frame = axes({ x: [betas[0], betas.at(-1)], y: [y0, y1], height: 268, log: true, below: "β" });
  const { px, py, parts } = frame;
  for (const { name, values } of pieces) {
    const seen = betas.map((beta, n) => [beta, values[n]]).filter(([, y]) => y >= y0 && y <= y1);
    if (seen.length > 1) parts.push(line(seen.map(([x, y]) => [px(x), py(y)]), "l-part"), label(px(seen.at(-1)[0]) - 2, py(seen.at(-1)[1]) - 6, name, "tick", "end"));
  }
  parts.push(line(betas.map((beta, n) => [beta, law[n]]).filter(([, y]) => y >= y0 && y <= y1).map(([x, y]) => [px(x), py(y)]), "l-law"));
  parts.push(dots(betas.map((beta, n) => [beta, points[n]]).filter(([, y]) => y >= y0).map(([x, y]) => [px(x), py(y)]), "dots-c"));
  if (now[0] >= betas[0]) parts.push(draw("line", { class: "now", x1: px(now[0]), x2: px(now[0]), y1: frame.top, y2: frame.bottom }), sign("c", px(now[0]), py(now[1])));
  if (!shown.length) parts.push(label(WIDE / 2, 130, "the error is zero at every β", "w-soft"));
  return canvas(268, `Error against β on a logarithmic scale. At β = ${number(now[0])} it is ${number(now[1])}; the law says ${number(state.lawNow)}.`, ...parts);
}

// Shares of the samples in even bins, and what the closed form expects in each.
function histogramView(state) {
  const { samples, law, name, more = [] } = state.histogram;
  const bins = 25;
  const shares = (numbers) => numbers.reduce((found, x) => { found[Math.min(bins - 1, Math.max(0, Math.floor(x * bins)))] += 1 / numbers.length; return found; }, new Array(bins).fill(0));
  const edges = range(bins + 1, (n) => law(n / bins));
  edges[0] = 0;
  edges[bins] = 1;
  const [counted, expected] = [shares(samples), range(bins, (n) => edges[n + 1] - edges[n])];
  const { parts, px, py } = axes({ x: [0, 1], y: [0, 1.08 * Math.max(...counted, ...expected)], height: 268, below: name });
  counted.forEach((share, n) => parts.push(draw("rect", { class: "bar", x: px(n / bins) + 0.5, width: px(1 / bins) - px(0) - 1, y: py(share), height: py(0) - py(share) })));
  parts.push(line(expected.flatMap((share, n) => [[px(n / bins), py(share)], [px((n + 1) / bins), py(share)]]), "l-law"));
  more.forEach((part) => parts.push(part));
  return canvas(268, `Histogram of the weight on a over ${samples.length} samples: ${number(counted[0])} of them below ${1 / bins}, ${number(counted[bins - 1])} above ${1 - 1 / bins}. The closed form expects ${number(expected[0])} and ${number(expected[bins - 1])}; the largest gap of the distribution functions is ${number(state.gap)}.`, ...parts);
}

function varianceView(state) {
  const { betas, series, beta } = state.variance;
  const most = Math.max(...series.flatMap(({ law, points }) => [...law, ...points]));
  const frame = axes({ x: [betas[0], betas.at(-1)], y: [0, 1.08 * most], height: 268, below: "β" });
  const { parts, px, py } = frame;
  parts.push(draw("line", { class: "now", x1: px(beta), x2: px(beta), y1: frame.top, y2: frame.bottom }));
  for (const { name, law, points, now, more } of series) {
    parts.push(line(betas.map((x, n) => [px(x), py(law[n])]), `l-law ${more}`), dots(betas.map((x, n) => [px(x), py(points[n])]), "dots-c"));
    parts.push(label(px(betas.at(-1)) - 4, py(law.at(-1)) + (more ? 26 : -9), name, "w-soft", "end"), sign("c", px(beta), py(now), more ? "s-hollow" : ""));
  }
  return canvas(268, `Variance of c against β: ${series.map(({ name, now }) => `${name} ${number(now)}`).join(", ")} at β = ${number(beta)}.`, ...parts);
}

// Weights of a self-attention over three words: rows ask, columns are asked.
function matrixView(state) {
  const [cell, left, top] = [72, 62, 40];
  const parts = [];
  range(3, (n) => parts.push(label(left + cell * (n + 0.5), 28, `k_${n + 1}`, "w-k"), label(left - 14, top + cell * (n + 0.5) + 5, `q_${n + 1}`, "w-q", "end")));
  state.weights.forEach((row, i) => row.forEach((weight, j) => {
    const [x, y] = [left + cell * j, top + cell * i];
    parts.push(draw("rect", { x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, fill: viridis(weight) }));
    parts.push(label(x + cell / 2, y + cell / 2, share(weight), weight > 0.55 ? "on-light" : "on-dark"));
    parts.push(label(x + cell / 2, y + cell / 2 + 19, `q·k = ${score(state.scores[i][j], 1)}`, `on-small ${weight > 0.55 ? "on-light" : "on-dark"}`));
  }));
  return canvas(268, state.weights.map((row, i) => `Word ${i + 1} gives its weights ${row.map((weight) => number(weight)).join(", ")}.`).join(" "), ...parts);
}

// Four orthogonal directions as spokes: a shadow of R⁴, in which sums still are sums.
const SPOKES = [[0, -1], [0, 1], [0.94, 0.34], [-0.94, 0.34]];
function starView(state) {
  const [middle, height] = [[164, 148], 268];
  // Smaller where a vector would leave the drawing.
  const ends = [...state.values.map(({ vector }) => vector), ...state.outputs.flatMap(({ output, target }) => [output, target])].map((vector) => blend(vector, SPOKES));
  const unit = Math.min(62, ...[[0, 125], [1, 88]].map(([axis, room]) => room / Math.max(...ends.map((end) => Math.abs(end[axis])), 1e-9)));
  const place = (vector) => add(middle, blend(vector, SPOKES), unit).map((x, axis) => (axis ? 2 * middle[1] - x : x));
  const parts = [];
  ["a", "b", "c", "d"].forEach((letter, n) => {
    const unitVector = range(4, (axis) => (axis === n ? 1.55 : 0));
    parts.push(draw("line", { class: "rule", x1: middle[0], y1: middle[1], x2: place(unitVector)[0], y2: place(unitVector)[1] }));
    parts.push(label(...add(place(scaled(unitVector, 1.12)), [0, 5]), `u_${letter}`, "w-soft"));
  });
  state.values.forEach(({ name, vector }) => {
    const [x, y] = place(vector);
    parts.push(sign("v", x, y), label(x + (vector[3] || name === "v_3" || name === "x_2" ? -16 : 16), y - 8, name, "w-v"));
  });
  for (const { name, output, target } of state.outputs) {
    const [goal, found] = [place(target), place(output)];
    parts.push(sign("target", ...goal), arrow(goal, found, "a-c"), sign("c", ...found), label(found[0] + 15, found[1] + 18, name, "w-c"));
  }
  return canvas(height, state.outputs.map(({ name, output }) => `${plain(name)} is ${output.map((x, n) => `${number(x)} u ${"abcd"[n]}`).join(" plus ")}, in units of β.`).join(" "), ...parts);
}

const STOPS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"];
function viridis(share) {
  const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  const ends = [low, low + 1].map((n) => [0, 2, 4].map((at) => parseInt(STOPS[n].slice(at, at + 2), 16)));
  return `rgb(${ends[0].map((from, n) => Math.round(from + (ends[1][n] - from) * (place - low))).join(" ")})`;
}

const VIEWS = {
  keys: keysView, weights: weightsView, values: valuesView, error: errorView, histogram: histogramView, variance: varianceView, matrix: matrixView, star: starView,
};
