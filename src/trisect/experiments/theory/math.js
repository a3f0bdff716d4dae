// Math: what the page computes, without an element in sight; all in float64, as in Python.
const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);
const dot = (a, b) => a.reduce((total, x, n) => total + x * b[n], 0);
// Also where squares are too small for floats, as in Python.
function norm(a) {
  const most = Math.max(...a.map(Math.abs));
  return most > 0 ? most * Math.sqrt(sum(a.map((x) => (x / most) ** 2))) : 0;
}
const add = (a, b, times = 1) => a.map((x, n) => x + times * b[n]);
const scaled = (a, times) => a.map((x) => times * x);
const range = (count, make = (n) => n) => Array.from({ length: count }, (_, n) => make(n));
const grid = (low, high, count) => range(count, (n) => low + ((high - low) * n) / (count - 1));
const mean = (numbers) => sum(numbers) / numbers.length;

function softmax(scores) {
  const top = Math.max(...scores);
  const shares = scores.map((score) => Math.exp(score - top));
  const total = sum(shares);
  return shares.map((share) => share / total);
}

// Σ_i weight_i · vector_i
function blend(weights, vectors) {
  return vectors[0].map((_, axis) => weights.reduce((total, weight, n) => total + weight * vectors[n][axis], 0));
}

const bell = (x) => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);

// The normal distribution function, by its series of positive terms; exact to rounding.
function below(x) {
  const size = Math.abs(x);
  if (size > 8.5) return x > 0 ? 1 : 0;
  let [term, total] = [size, size];
  for (let n = 3; term > 1e-18 * total; n += 2) total += term *= (size * size) / n;
  return x < 0 ? 0.5 - bell(size) * total : 0.5 + bell(size) * total;
}

// The largest gap between what was counted and a distribution function (Kolmogorov and Smirnov).
function distance(samples, law) {
  const ordered = Float64Array.from(samples).sort();
  let most = 0;
  ordered.forEach((x, n) => {
    const expected = law(x);
    most = Math.max(most, (n + 1) / ordered.length - expected, expected - n / ordered.length);
  });
  return most;
}

// An integral over a standard normal, by the trapezoid rule, which for smooth functions is exact to rounding.
const NODES = grid(-9, 9, 721);
const overNormal = (of) => sum(NODES.map((x) => bell(x) * of(x))) * (NODES[1] - NODES[0]);
