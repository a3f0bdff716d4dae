// Drawn: keys that are random, constructions 3 to 6, over the same normal draws for every setting of the sliders.
const DRAWS = { count: 0, keys: 0, chance: 0, along: null, stretch: null };
const SHOWN = 300; // samples drawn as dots
const HALF = Math.SQRT1_2; // the standard deviation of γ, the length of k_a along μ_a

function load(base64, { count, keys, chance }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const floats = new Float32Array(bytes.buffer);
  Object.assign(DRAWS, { count: Number(count), keys: Number(keys), chance: Number(chance) });
  Object.assign(DRAWS, { stretch: floats.subarray(0, DRAWS.count), along: floats.subarray(DRAWS.count) });
}

const kept = new Map();
function once(name, { keys, variance }, find) {
  const key = `${name} ${keys} ${variance}`;
  if (!kept.has(key)) {
    if (kept.size > 24) kept.delete(kept.keys().next().value);
    kept.set(key, find());
  }
  return kept.get(key);
}

// Where the keys of every sample lie along μ_a and μ_b, [samples × n] each: k_i = μ_i + √α·noise, and k_a stretched.
function keysOf({ keys: n, variance }, stretched) {
  return once(`keys ${stretched}`, { keys: n, variance }, () => {
    const along = [new Float64Array(DRAWS.count * n), new Float64Array(DRAWS.count * n)];
    const small = Math.sqrt(variance);
    for (let s = 0; s < DRAWS.count; s++) {
      for (let i = 0; i < n; i++) {
        const at = 2 * (s * DRAWS.keys + i);
        for (const axis of [0, 1]) along[axis][s * n + i] = (i === axis ? 1 : 0) + small * DRAWS.along[at + axis];
      }
      if (stretched) along[0][s * n] += HALF * DRAWS.stretch[s];
    }
    return along;
  });
}

// Weights of every sample for one query, given by its two coordinates: [samples × n].
function weightsOf([alongA, alongB], n, [qa, qb]) {
  const found = new Float64Array(alongA.length);
  for (let start = 0; start < found.length; start += n) {
    let [top, total] = [-Infinity, 0];
    for (let i = start; i < start + n; i++) top = Math.max(top, (found[i] = qa * alongA[i] + qb * alongB[i]));
    for (let i = start; i < start + n; i++) total += found[i] = Math.exp(found[i] - top);
    for (let i = start; i < start + n; i++) found[i] /= total;
  }
  return found;
}

// Log-odds of a against all others together: they keep what a weight rounds away near 0 and 1.
function oddsOf([alongA, alongB], n, [qa, qb]) {
  return range(alongA.length / n, (s) => {
    const scores = range(n, (i) => qa * alongA[s * n + i] + qb * alongB[s * n + i]);
    const top = Math.max(...scores.slice(1));
    return scores[0] - top - Math.log(sum(scores.slice(1).map((score) => Math.exp(score - top))));
  });
}

const ONE = (beta) => [[beta, beta]];
const TWO = (beta) => [[beta, 0], [0, beta]];
const row = (weights, n, s) => Array.from(weights.subarray(s * n, (s + 1) * n));
const both = (heads) => heads[0].map((_, at) => mean(heads.map((weights) => weights[at])));
const columnMeans = (weights, n) => range(n, (i) => mean(range(weights.length / n, (s) => weights[s * n + i])));

// Goes over |c − ½(v_a + v_b)|² of every sample that `which` keeps, for orthonormal values; sums over the samples.
function sumsOf(heads, n, which) {
  const [first, at] = [new Float64Array(n), new Float64Array(n)];
  let [count, second] = [0, 0];
  for (let s = 0; s < DRAWS.count; s++) {
    if (!which(s)) continue;
    at.fill(0);
    for (const weights of heads) for (let i = 0; i < n; i++) at[i] += weights[s * n + i] / heads.length;
    let outside = 0;
    for (let i = 2; i < n; i++) outside += at[i];
    const half = (at[0] - at[1]) / 2;
    [at[0], at[1]] = [half - outside / 2, -half - outside / 2];
    for (let i = 0; i < n; i++) {
      first[i] += at[i];
      second += at[i] * at[i];
    }
    count += 1;
  }
  return { mean: scaled(Array.from(first), 1 / count), square: second / count };
}
const rootMeanSquare = (heads, n) => Math.sqrt(sumsOf(heads, n, () => true).square);
function varianceOf(heads, n, which = () => true) {
  const { mean: middle, square } = sumsOf(heads, n, which);
  return square - dot(middle, middle);
}

// Moments of σ(y), y ~ N(middle, spread²).
function logitNormal(middle, spread) {
  const at = (x) => 1 / (1 + Math.exp(-middle - spread * x));
  const first = overNormal(at);
  return { variance: overNormal((x) => (at(x) - first) ** 2), fromHalf: overNormal((x) => (at(x) - 0.5) ** 2) };
}

// One sample's keys and heads, and the clouds of many: what the drawings need. `stretch` replaces the drawn γ of the sample.
function sampleState(inputs, queries, along, sample, gamma = null) {
  const { beta, keys: n } = inputs;
  const keys = range(n, (i) => [along[0][sample * n + i], along[1][sample * n + i]]);
  if (gamma !== null) keys[0] = [gamma + Math.sqrt(inputs.variance) * DRAWS.along[2 * sample * DRAWS.keys], keys[0][1]];
  const heads = queries(beta).map((q, h, all) => {
    const scores = keys.map((key) => dot(q, key));
    return { q, scores, weights: softmax(scores), name: all.length > 1 ? `q_${h + 1}` : "q" };
  });
  const clouds = range(n, (i) => range(SHOWN, (s) => [along[0][s * n + i], along[1][s * n + i]]));
  const marks = letters(n, ["a", "b"]);
  return {
    random: true, longest: 14, keys, heads, letters: marks, names: marks.map((letter) => `v_${letter}`),
    weights: both(heads.map(({ weights }) => weights)), target: range(n, (i) => (i < 2 ? 0.5 : 0)), clouds: { keys: clouds, outputs: [] },
  };
}

// What the dimension does: it makes keys longer in directions that no query looks along.
const lengthOf = ({ variance, dim }) => ["length", "√(1 + αd), length of k_b", Math.sqrt(1 + variance * dim)];
const cloud = (heads, n, which = () => true) => range(SHOWN).filter(which).map((s) => both(heads.map((weights) => row(weights, n, s))));
const BETAS = grid(0.2, 14, 47);

// Constructions 3 and 5: how the error over all samples goes with β.
function random(inputs, queries, law, parts) {
  const { beta, keys: n, variance } = inputs;
  const along = keysOf(inputs, false);
  const headsAt = (b) => queries(b).map((q) => weightsOf(along, n, q));
  const at = (b) => rootMeanSquare(headsAt(b), n);
  const heads = headsAt(beta);
  const state = sampleState(inputs, queries, along, inputs.sample - 1);
  state.clouds.outputs.push([cloud(heads, n), "dots-c"]);
  const points = once(`errors ${queries.name}`, inputs, () => BETAS.map(at));
  const [now, lawNow] = [at(beta), law(beta, n, variance)];
  const means = heads.map((weights) => columnMeans(weights, n));
  const curve = { betas: BETAS, law: BETAS.map((b) => law(b, n, variance)), points, now: [beta, now], parts: parts.map(({ name, of }) => ({ name, values: BETAS.map((b) => of(b, n, variance)) })) };
  return { ...state, error: now, lawNow, curve, readings: [
    ["error", "root mean square of |c − ½(v_a + v_b)|", now], ["expected", "the same, by the law", lawNow],
    ...means.flatMap((weights, h) => (means.length > 1 ? [[`mean_${"ab"[h]}`, `mean of α_${"ab"[h]}, head ${h + 1}`, weights[h]]] : [["mean_a", "mean of α_a", weights[0]], ["mean_b", "mean of α_b", weights[1]]])),
    lengthOf(inputs), ["off", "|c − ½(v_a + v_b)| of this sample", norm(both(state.heads.map(({ weights }) => deviations(weights, [0, 1]))))],
  ] };
}

// Weights of exact keys whose first `count` have the score β and the others 0, and Σ α_i² |v_i − c|² of orthonormal values:
// how far independent noise of variance 1 on every score moves c, to first order.
const exact = (beta, n, count) => softmax(range(n, (i) => (i < count ? beta : 0)));
function moves(weights) {
  const square = dot(weights, weights);
  return sum(weights.map((weight) => weight * weight * (1 - 2 * weight + square)));
}

const others = (beta, n) => norm(deviations(exact(beta, n, 2), [0, 1]));
const swing = (beta, n, variance) => Math.sqrt(8 * logitNormal(0, 2 * beta * Math.sqrt(variance)).fromHalf * moves(exact(beta, n, 2)));
const oneHeadLaw = (beta, n, variance) => Math.hypot(others(beta, n), swing(beta, n, variance));

// Lognormal moments of the weights that head 1 leaves to others, the same for head 2; no output is farther away than √2.
function twoHeadLaw(beta, n, variance) {
  const noise = variance * beta ** 2;
  const factor = (times, halvings) => Math.exp(Math.min(600, times * noise - halvings * beta)) / (1 + (n - 1) * Math.exp(-beta)) ** halvings;
  const [whole, single] = [n * (n - 1), 2 * (n - 1)];
  const share = moves(exact(beta, n, 1)) / (factor(0, 2) * (single + whole));
  const total = 2 * share * ((factor(4, 2) - factor(3, 2)) * single + (factor(3, 2) - factor(2, 2)) * whole);
  const means = factor(1, 1) ** 2 * (2 * whole - 2 * n);
  return Math.min(Math.SQRT2, Math.sqrt(Math.max(0, total + means)) / 2);
}
const randomOne = (inputs) => random(inputs, ONE, oneHeadLaw, [{ name: "others", of: others }, { name: "swing", of: swing }]);
const randomTwo = (inputs) => random(inputs, TWO, twoHeadLaw, []);

// Constructions 4 and 6: the weight on a as a distribution, and how much c varies.
const STRETCHED = {
  one: { query: (beta) => [beta, beta], offset: (beta, n) => beta + Math.log1p((n - 2) * Math.exp(-beta)), rest: (beta, n) => (Math.exp(2 * beta) + n - 2) / (Math.exp(beta) + n - 2) ** 2 },
  first: { query: (beta) => [beta, 0], offset: (beta, n) => Math.log(n - 1), rest: (beta, n) => 1 / (n - 1) },
};

function distribution({ beta, keys: n }, along, head) {
  const [middle, width] = [beta - head.offset(beta, n), HALF * beta];
  const samples = oddsOf(along, n, head.query(beta));
  const gap = distance(samples, (odds) => below((odds - middle) / width));
  const law = (weight) => below((Math.log(weight / (1 - weight)) - middle) / width);
  return { gap, bound: DRAWS.chance / Math.sqrt(DRAWS.count), histogram: { samples: samples.map((odds) => 1 / (1 + Math.exp(-odds))), law, name: "α_a" } };
}
const varianceLaw = ({ offset, rest }, beta, n) => logitNormal(beta - offset(beta, n), HALF * beta).variance * (1 + rest(beta, n));

function stretched(inputs, queries, head) {
  const along = keysOf(inputs, true);
  const state = sampleState(inputs, queries, along, 0, inputs.gamma);
  const found = distribution(inputs, along, head);
  return { along, state: { ...state, ...found, error: norm(both(state.heads.map(({ weights }) => deviations(weights, [0, 1])))) } };
}

function stretchedOne(inputs) {
  const { along, state } = stretched(inputs, ONE, STRETCHED.one);
  const weights = weightsOf(along, inputs.keys, [inputs.beta, inputs.beta]);
  state.clouds.outputs.push([cloud([weights], inputs.keys), "dots-c"]);
  const means = columnMeans(weights, inputs.keys);
  const ends = mean(range(DRAWS.count, (s) => (Math.max(weights[s * inputs.keys], weights[s * inputs.keys + 1]) > 0.9 ? 1 : 0)));
  return { ...state, ends, readings: [
    ["weight", "α_a at this γ", state.weights[0]], ["weight_b", "α_b at this γ", state.weights[1]], ["mean_a", "mean of α_a", means[0]], ["mean_b", "mean of α_b", means[1]],
    lengthOf(inputs), ["error", "Kolmogorov–Smirnov distance", state.gap], ["expected", "its bound, passed once in 1,000", state.bound],
  ] };
}

function stretchedTwo(inputs) {
  const { beta, keys: n, variance } = inputs;
  const { along, state } = stretched(inputs, TWO, STRETCHED.first);
  const headsAt = (queries, b) => queries(b).map((q) => weightsOf(along, n, q));
  const [one, two] = [headsAt(ONE, beta), headsAt(TWO, beta)];
  const away = (s) => along[0][s * n] < 0;
  const near = (s) => !away(s);
  state.clouds.outputs.push([cloud(one, n), "dots-one"], [cloud(two, n, near), "dots-c"], [cloud(two, n, away), "dots-away"]);
  const varies = { one: varianceOf(one, n), two: varianceOf(two, n) };
  const points = once("variances", inputs, () => [ONE, TWO].map((queries) => BETAS.map((b) => varianceOf(headsAt(queries, b), n))));
  const laws = [(b) => varianceLaw(STRETCHED.one, b, n), (b) => varianceLaw(STRETCHED.first, b, n) / 4];
  const series = laws.map((law, at) => ({ name: ["one head", "two heads"][at], law: BETAS.map(law), points: points[at], now: [varies.one, varies.two][at], more: at ? "" : "l-one" }));
  const share = range(DRAWS.count).filter(away).length / DRAWS.count;
  return { ...state, varies, share, variance: { betas: BETAS, series, beta }, readings: [
    ["weight", "α_a of head 1 at this γ", state.heads[0].weights[0]], ["weight_b", "α_b of head 2", state.heads[1].weights[1]],
    ["one", "variance of c, one head", varies.one], ["one_law", "the same, by the law", laws[0](beta)], ["two", "variance of c, two heads", varies.two], ["two_law", "the same, by the law", laws[1](beta)],
    ["one_kept", "one head, without those set apart", varianceOf(one, n, near)], ["two_kept", "two heads, without those set apart", varianceOf(two, n, near)],
    ["share", "share with q_1ᵀk_a < 0", share], ["law_share", "the same, by the law", below(-1 / Math.sqrt(HALF ** 2 + variance))],
    lengthOf(inputs), ["error", "Kolmogorov–Smirnov distance, head 1", state.gap], ["expected", "its bound, passed once in 1,000", state.bound],
  ] };
}
