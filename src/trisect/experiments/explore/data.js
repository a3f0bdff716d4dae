// Data: what was packed, unpacked when it is asked for.
const KEPT = 4; // layers whose arrays stay unpacked

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
  return bytes;
}

// One head's maps, row by row: what query i takes from key j by weight (W), by norm (N, null without norms) and by contribution (C).
class Maps {
  constructor(T, S, W, N, tops, error) {
    Object.assign(this, { T, S, W, N, tops, error });
  }

  row(map, i) {
    return map.subarray(i * this.S, (i + 1) * this.S);
  }

  column(map, j) {
    return Float32Array.from({ length: this.T }, (_, i) => map[i * this.S + j]);
  }

  of(kind) {
    return { weights: this.W, norms: this.N }[kind] ?? (kind === "contributions" ? this.C : null);
  }

  // Made of the weights and `sources` when it is first looked at.
  get C() {
    if (!this.made && this.sources) {
      this.made = new Float32Array(this.T * this.S);
      for (let i = 0; i < this.T; i++) this.made.set(this.sources.row(this.h, i, this.row(this.W, i)), i * this.S);
    }
    return this.made || null;
  }
}

class Layer {
  constructor(facts, manifest, buffer) {
    const [H, , T, S] = facts.shape;
    this.facts = facts;
    this.levels = manifest.levels;
    this.norms = facts.summed === null ? null : new Float32Array(buffer, 0, H * S);
    const Steps = manifest.levels > 255 ? Uint16Array : Uint8Array;
    const start = this.norms ? this.norms.byteLength : 0;
    // of a long text: the low and the high bytes of the gaps between the stored keys of each query, before the steps
    const gaps = (H + (this.norms ? 1 : 0)) * T * (facts.stored || 0);
    [this.low, this.high] = [new Uint8Array(buffer, start, gaps), new Uint8Array(buffer, start + gaps, gaps)];
    this.steps = new Steps(buffer, start + 2 * gaps);
  }

  // Steps of √(value / top) of head n (H: the layer), as values query by query.
  plane(n, top, into = null, share = 1) {
    const { shape: [, , T, S], stored } = this.facts;
    const out = into || new Float32Array(T * S);
    const [unit, steps] = [(top * share) / this.levels ** 2, this.steps];
    if (stored) {
      for (let i = 0, at = n * T * stored; i < T; i++) {
        for (let r = 0, to = i * S; r < stored; r++, at++) {
          to += this.low[at] + 256 * this.high[at];
          out[to] += unit * steps[at] * steps[at];
        }
      }
      return out;
    }
    for (let j = 0, at = n * T * S; j < S; j++) {
      for (let i = 0, to = j; i < T; i++, at++, to += S) out[to] += unit * steps[at] * steps[at];
    }
    return out;
  }

  head(h) {
    const [, , T, S] = this.facts.shape;
    const tops = this.facts.tops;
    if (h < 0) return this.whole();
    const W = this.plane(h, 1);
    let N = null;
    if (this.norms) {
      const norms = this.norms.subarray(h * S, (h + 1) * S);
      N = new Float32Array(T * S);
      for (let i = 0, at = 0; i < T; i++) for (let j = 0; j < S; j++, at++) N[at] = W[at] * norms[j];
    }
    const error = (value, kind, j, i) => {
      const top = kind === "norms" ? this.norms[h * S + j] : 1;
      return value ? this.off(value, top) : top * this.rest(h, i);
    };
    return new Maps(T, S, W, N, [tops.weights[h], tops.norms?.[h]], error);
  }

  // The layer as a whole: the mean weight of its heads, and the norm of the sum of what they carry.
  whole() {
    const [H, , T, S] = this.facts.shape;
    const W = new Float32Array(T * S);
    for (let h = 0; h < H; h++) this.plane(h, 1, W, 1 / H);
    const N = this.norms ? this.plane(H, this.facts.summed) : null;
    // a head that does not store the cell may add as much as the least that it stores of the row
    const rests = (i, j) => [...Array(H).keys()].reduce((sum, h) => sum + (this.step(h, i, j) ? 0 : this.rest(h, i)), 0) / H;
    const error = (value, kind, j, i) => {
      if (kind === "norms") return this.facts.summed * (value ? this.off(value / this.facts.summed, 1) : this.rest(H, i));
      return this.off(value, 1) + (this.facts.stored ? rests(i, j) : 0);
    };
    return new Maps(T, S, W, N, [this.facts.tops.mean[0], this.facts.tops.summed?.[0]], error);
  }

  // How large a value shown as 0 may be, as a share of the top: of a long text the least that is stored of its row.
  rest(n, i) {
    const { shape: [, , T], stored } = this.facts;
    if (!stored) return this.off(0, 1);
    const least = Math.min(...this.steps.subarray((n * T + i) * stored, (n * T + i + 1) * stored)) / this.levels;
    return least ** 2 + this.off(least ** 2, 1);
  }

  // How far a value may lie from the model's own: half a step of √(value / top).
  off(value, top) {
    return Math.sqrt(value * top) / this.levels + top / (4 * this.levels ** 2);
  }

  // The steps of √(value / top) of head n at one cell; 0 where a long text does not store it.
  step(n, i, j) {
    const { shape: [, , T, S], stored } = this.facts;
    if (!stored) return this.steps[n * T * S + j * T + i];
    const from = (n * T + i) * stored;
    for (let at = from, key = 0; at < from + stored; at++) if ((key += this.low[at] + 256 * this.high[at]) === j) return this.steps[at];
    return 0;
  }

  // What every head does at one cell: weights, and norms or null.
  cell(i, j) {
    const { shape: [H, , , S] } = this.facts;
    const W = Array.from({ length: H }, (_, h) => (this.step(h, i, j) / this.levels) ** 2);
    return { W, N: this.norms && W.map((a, h) => a * this.norms[h * S + j]) };
  }
}

// Of each head the f(x) along axes of its own, and the contribution weights of the layer as a whole.
class Sources {
  constructor({ shape: [H, , T, S], sources: R }, buffer, from) {
    const [tops, whole] = [from + 2 * H * R * S, from + 2 * H * R * S + 4 * T];
    Object.assign(this, { S, R, f: new Int16Array(buffer.slice(from, tops)) });
    Object.assign(this, { tops: new Float32Array(buffer.slice(tops, whole)), whole: new Int8Array(buffer, whole, T * S) });
  }

  // a f(x)·o / ‖o‖² of each key for query i of head h (-1: the layer), o being the sum of all a f(x).
  row(h, i, weights) {
    const { S, R, f } = this;
    if (h < 0) return Float32Array.from(this.whole.subarray(i * S, (i + 1) * S), (step) => (this.tops[i] * step * Math.abs(step)) / 127 ** 2);
    const out = new Float64Array(S);
    let size = 0;
    for (let r = 0, at = h * R * S; r < R; r++, at += S) {
      let o = 0;
      for (let j = 0; j < S; j++) o += weights[j] * f[at + j];
      for (let j = 0; j < S; j++) out[j] += o * f[at + j];
      size += o * o;
    }
    return Float32Array.from(out, (value, j) => (size ? (weights[j] * value) / size : 0));
  }
}

class Vectors {
  constructor(facts, manifest, buffer) {
    const [H, K, T, S, E] = facts.shape;
    Object.assign(this, { E, T, S, group: H / K, scale: facts.scale });
    const Ints = manifest.bits === 16 ? Int16Array : Int8Array;
    this.qStep = new Float32Array(buffer, 0, H * E);
    this.kStep = new Float32Array(buffer, 4 * H * E, K * E);
    this.q = new Ints(buffer, 4 * (H + K) * E, H * T * E);
    this.k = new Ints(buffer, 4 * (H + K) * E + this.q.byteLength, K * S * E);
    const [V, at] = [facts.values || 0, 4 * (H + K) * E + this.q.byteLength + this.k.byteLength];
    this.V = V;
    this.vStep = new Float32Array(buffer.slice(at, at + 4 * K * V)); // copies: what comes before may end between two numbers
    const end = at + 4 * K * V + K * S * V * Ints.BYTES_PER_ELEMENT;
    this.v = new Ints(buffer.slice(at + 4 * K * V, end));
    this.sources = facts.sources ? new Sources(facts, buffer, end) : null;
  }

  // q, k and v behind a cell, what each dimension adds to the score, and how far the score may be off.
  cell(h, i, j) {
    const { E, T, S } = this;
    const kv = Math.floor(h / this.group);
    const scale = this.scale ?? 1;
    const q = Float32Array.from({ length: E }, (_, e) => this.q[(h * T + i) * E + e] * this.qStep[h * E + e]);
    const k = Float32Array.from({ length: E }, (_, e) => this.k[(kv * S + j) * E + e] * this.kStep[kv * E + e]);
    const v = Float32Array.from({ length: this.V }, (_, e) => this.v[(kv * S + j) * this.V + e] * this.vStep[kv * this.V + e]);
    const adds = q.map((value, e) => scale * value * k[e]);
    let error = 0;
    for (let e = 0; e < E; e++) {
      const [a, b] = [this.qStep[h * E + e] / 2, this.kStep[kv * E + e] / 2];
      error += Math.abs(scale) * (Math.abs(q[e]) * b + Math.abs(k[e]) * a + a * b);
    }
    return { q, k, v, adds, score: adds.reduce((sum, x) => sum + x, 0), error };
  }
}

// What each head adds to the logits of the predicted token, at the positions from `first` on, and what would be predicted after each layer.
class Logits {
  constructor({ tokens, first, shape: [T, P, L] }, layers, buffer) {
    const starts = layers.reduce((sum, { shape: [H] }) => [...sum, sum.at(-1) + T * H * P], [0]);
    const [count, lens] = [starts.at(-1), (layers.length + 1) * T * L];
    const numbers = new Int32Array(buffer, 0, count + lens);
    const values = new Float32Array(buffer, 4 * (count + lens));
    const take = (at, size) => Array.from({ length: size }, (_, n) => ({ word: tokens[numbers[at + n]], value: values[at + n] }));
    // the tokens that a head raises most, then those that it lowers most
    this.head = (n, h, i) => take(starts[n] + ((i - first) * layers[n].shape[0] + h) * P, P);
    this.lens = (i) => Array.from({ length: layers.length + 1 }, (_, n) => take(count + (n * T + i - first) * L, L));
    this.first = first;
  }
}

// `chunk(n)` gives the deflated bytes of chunk n: from the page's own text, or from a notebook.
class Store {
  constructor(manifest, chunk) {
    Object.assign(this, { manifest, chunk, open: new Map() });
  }

  async unpacked(n) {
    return inflate(await this.chunk(n));
  }

  async kept(n, build) {
    const found = this.open.get(n) || build(n);
    this.open.delete(n);
    this.open.set(n, found);
    if (this.open.size > 2 * KEPT) this.open.delete(this.open.keys().next().value);
    return found;
  }

  maps(n) {
    const facts = this.manifest.layers[n];
    return this.kept(1 + 2 * n, async (at) => new Layer(facts, this.manifest, await this.unpacked(at)));
  }

  // Nothing where the text is too long for them.
  vectors(n) {
    const facts = this.manifest.layers[n];
    return !this.manifest.vectors ? null : this.kept(2 + 2 * n, async (at) => new Vectors(facts, this.manifest, await this.unpacked(at)));
  }

  // Nothing for a model whose logits are no sum over what heads add.
  logits() {
    const { logits, layers } = this.manifest;
    return logits && this.kept(0, async () => new Logits(logits, layers, await this.unpacked(1 + 2 * layers.length)));
  }

  // The small pictures of every layer: heads by weight, all by weight, heads by norm, all by norm.
  async thumbs() {
    const bytes = new Uint8Array(await this.unpacked(0));
    let at = 0;
    return this.manifest.layers.map(({ shape: [H], thumb: [t, s], summed }) => {
      const take = (count) => Array.from({ length: count }, () => bytes.subarray(at, (at += t * s)));
      const weights = { heads: take(H), whole: take(1)[0] };
      return { weights, norms: summed === null ? null : { heads: take(H), whole: take(1)[0] } };
    });
  }
}
