// Given: fixed inputs, constructions 1, 2, 7 and 8; each gives a state that the views draw and the readings quote.
const onehot = (count, at) => range(count, (n) => (n === at ? 1 : 0));

// Weights less those of an even mean over the positions `wanted`, good to rounding however small they are.
function deviations(weights, wanted) {
  const inside = mean(wanted.map((n) => weights[n]));
  const outside = sum(weights.filter((_, n) => !wanted.includes(n))) / wanted.length;
  return weights.map((weight, n) => (wanted.includes(n) ? weight - inside - outside : weight));
}
const unitKeys = (count) => range(count, (n) => [n === 0 ? 1 : 0, n === 1 ? 1 : 0]);
const letters = (count, first) => range(count, (n) => first[n] || String(n + 1));

function curveOf(betas, { at, law, beta }) {
  return { betas, law: betas.map(law), points: betas.map(at), now: [beta, at(beta)] };
}

// Constructions 1 and 2: orthonormal keys and values, so that weights are coordinates and any d ≥ n shows the same.
function orthonormal({ beta, keys, shift = 0 }, { first, query, law }) {
  const longest = 14;
  const attend = (b) => {
    const q = query(b);
    const scores = unitKeys(keys).map((key) => dot(q, key) + shift);
    return { q, scores, weights: softmax(scores) };
  };
  const found = attend(beta);
  const at = (b) => norm(deviations(attend(b).weights, first.map((_, n) => n))); // |c − target|, since the values are orthonormal
  return {
    heads: [{ ...found, name: "q" }], keys: unitKeys(keys), letters: letters(keys, first), names: letters(keys, first).map((letter) => `v_${letter}`),
    weights: found.weights, target: range(keys, (n) => (n < first.length ? 1 / first.length : 0)), longest, error: at(beta), lawNow: law(beta),
    curve: curveOf(grid(0.2, 14, 70), { at, law, beta }),
  };
}

function copying(inputs) {
  const n = inputs.keys;
  const law = (beta) => ((n - 1) / (n - 1 + Math.exp(beta))) * Math.SQRT2;
  const state = orthonormal(inputs, { first: ["j"], query: (beta) => [beta, 0], law });
  const { scores, weights } = state.heads[0];
  const others = sum(scores.slice(1).map(Math.exp));
  return { ...state, readings: [
    ["weight", "α_j", weights[0]], ["error", "|c − v_j|", state.error], ["expected", "at most, by the law", state.lawNow], ["gap", "gap g", scores[0] - scores[1]], ["score", "score k_{j}ᵀq", scores[0]], ["others", "Σ exp of the others", others],
  ] };
}

function average(inputs) {
  const n = inputs.keys;
  const share = (beta) => Math.exp(beta) / (n - 2 + 2 * Math.exp(beta));
  const law = (beta) => (n > 2 ? ((n - 2) / (n - 2 + 2 * Math.exp(beta))) * Math.sqrt(0.5 + 1 / (n - 2)) : 0);
  const state = orthonormal(inputs, { first: ["a", "b"], query: (beta) => [beta, beta], law });
  const { weights } = state.heads[0];
  return { ...state, readings: [
    ["weight", "α_a", weights[0]], ["weight_b", "α_b", weights[1]], ["predicted", "α_a by the law", share(inputs.beta)], ["rest", "weight of all others", sum(weights.slice(2))],
    ["error", "|c − ½(v_a + v_b)|", state.error], ["expected", "the same, by the law", state.lawNow],
  ] };
}

// Vectors of constructions 7 and 8 in the basis u_a, u_b, u_c, u_d, in units of β.
const [UA, UB, UC, UD] = range(4, (axis) => onehot(4, axis));
const outer = (left, right, times = 1) => left.map((x) => right.map((y) => times * x * y));
const plus = (A, B) => A.map((row, n) => add(row, B[n]));
const apply = (A, x) => A.map((row) => dot(row, x));

// Every weight, score and output of three words; scores are in true units, the rest in units of β.
function attendAll(queries, keys, values, power) {
  const scores = queries.map((q) => keys.map((k) => dot(k, q) * power));
  const weights = scores.map(softmax);
  return { scores, weights, outputs: weights.map((row) => blend(row, values)) };
}

function identity({ beta, add_c, add_d }) {
  const words = [add(UD, UB), add(add(UA, UC, add_c), UD, add_d), add(UC, UB)];
  const attend = (b) => attendAll(words, words, words, b * b);
  const found = attend(beta);
  const target = words[1];
  const at = (b) => norm(blend(deviations(attend(b).weights[1], [1]), words));
  const wrong = add(words[0], words[1], -1);
  const third = add(words[2], words[1], -1);
  const law = (b) => {
    const [first, last] = [add_d, add_c].map((times) => Math.exp(b * b * (times - 1 - add_c ** 2 - add_d ** 2)));
    return norm(add(scaled(wrong, first / (1 + first + last)), third, last / (1 + first + last)));
  };
  const c = found.outputs[1];
  return {
    ...found, values: words.map((vector, n) => ({ name: `x_${n + 1}`, vector })), outputs: [{ name: "c_2", output: c, target }], error: at(beta), lawNow: law(beta),
    curve: curveOf(grid(0.5, 5, 46), { at, law, beta }),
    readings: [
      ["weight", "α_{22}", found.weights[1][1]], ["error", "|c_2 − x_2| / β", at(beta)], ["expected", "the same, by the law", law(beta)], ["miss", "|c_2 − u_b| / β", norm(add(c, UB, -1))],
      ...c.map((x, n) => [`c_${"abcd"[n]}`, `c_2 along u_${"abcd"[n]}`, x]),
    ],
  };
}

const MATRICES = {
  K: plus(outer(UD, UD), outer(UC, UC)), Q: plus(outer(UD, UA), outer(UC, UD)), V: plus(outer(UB, UB), outer(UC, UC, -1)),
};
const WORDS = [add(UD, UB), UA, add(UC, UB)];
// As it should be; K and Q exchanged; and Q put equal to V's formula. The powers of β that the matrices hold go into the scores.
const ROLES = { right: ["Q", "K", 6], swapped: ["K", "Q", 6], typo: ["V", "K", 4] };

function keyQueryValue({ beta, roles }) {
  const [asks, answers, power] = ROLES[roles];
  const [queries, keys, values] = [asks, answers, "V"].map((name) => WORDS.map((x) => apply(MATRICES[name], x)));
  const attend = (b) => attendAll(queries, keys, values, b ** power);
  const targets = [add(UB, UC, -1), UB];
  // With the right matrices as weights times values, which keeps errors far below rounding.
  const errors = (b) => {
    const { weights, outputs } = attend(b);
    if (roles !== "right") return targets.map((target, n) => norm(add(outputs[n], target, -1)));
    return [2, 0].map((wanted, n) => norm(blend(deviations(weights[n], [wanted]), values)));
  };
  const at = (b) => Math.max(...errors(b));
  const found = attend(beta);
  const law = (b) => Math.sqrt(5) / (Math.exp(b ** 6) + 2);
  const [first, second] = errors(beta);
  return {
    ...found, values: values.map((vector, n) => ({ name: `v_${n + 1}`, vector })), outputs: found.outputs.slice(0, 2).map((output, n) => ({ name: `c_${n + 1}`, output, target: targets[n] })),
    error: at(beta), lawNow: law(beta), curve: curveOf(grid(0.6, 1.7, 56), { at, law, beta }),
    readings: [
      ["weight_1", "α_{13}", found.weights[0][2]], ["weight_2", "α_{21}", found.weights[1][0]], ["error_1", "|c_1 − (u_b − u_c)| / β", first], ["error_2", "|c_2 − u_b| / β", second],
      ["error", "the larger of the two", at(beta)], ["expected", "the law, for K and Q as above", law(beta)],
      ...found.outputs.slice(0, 2).flatMap((c, n) => [1, 2].map((axis) => [`c${n + 1}_${"abcd"[axis]}`, `c_${n + 1} along u_${"abcd"[axis]}`, c[axis]])),
    ],
  };
}
