// Spec: for each construction its sliders, its views in order, and its words.
const fixed = (value) => String(Number(value.toPrecision(6))).replace("-", "−");
const BETA = { key: "beta", sign: "β", name: "how sharp the query is", min: 0.2, max: 14, step: 0.1 };
const KEYS = { key: "keys", sign: "n", name: "keys", min: 2, max: 8, step: 1, value: 5 };
const DIM = { key: "dim", sign: "d", name: "dimension", min: 2, max: 32, step: 1, value: 16 };
const VARIANCE = { key: "variance", sign: "α", name: "variance of each key", min: -6, max: -0.5, step: 0.05, power: true };
const STRETCH = { key: "gamma", sign: "γ", name: "stretch: the length of this k_a", min: -1, max: 3, step: 0.05, value: 1.3 };
const SAMPLE = { key: "sample", sign: "no.", name: "of the sample that is drawn", min: 1, max: 300, step: 1, value: 1 };

const KEYS_WORDS = "Seen in the plane of k_a and k_b, in which q lies. Along a grey line the score is the same; from one to the next it changes by a fixed step. The arrow of q is on a scale of its own.";
const WEIGHTS_WORDS = "A score one higher makes a weight e ≈ 2.72 times as large.";
const VALUES_WORDS = "The values are orthonormal; here they stand as the corners of a polygon. The ring is the target, the diamond is c.";
const ERROR_WORDS = "Line: the law. Dots: computed at each β. Diamond: where β stands now. The scale is logarithmic.";
const pastBound = ({ variance }, { gap, bound }) => (gap > bound ? `The distance ${number(gap)} passes its bound ${number(bound)}. Here the law, one for vanishing α, has ended: α is ${number(variance)}.` : "");

const SPECS = {
  copying: {
    state: copying, least: ({ keys }) => keys, views: ["keys", "weights", "values", "error"],
    sliders: [{ ...BETA, value: 3 }, KEYS, DIM, { key: "shift", sign: "s", name: "added to every score", min: -20, max: 20, step: 1, value: 0 }],
    words: { keys: KEYS_WORDS.replaceAll("k_a", "k_j").replace("k_b", "another key"), weights: WEIGHTS_WORDS, values: VALUES_WORDS, error: ERROR_WORDS.replace("the law.", "the bound.") },
    say: ({ beta }, { heads: [{ weights }], error, lawNow }) => `At β = ${fixed(beta)} key j has the weight ${number(weights[0])}; c is ${number(error)} away from v_j, and the law allows ${number(lawNow)}.`,
  },
  average: {
    state: average, least: ({ keys }) => keys, views: ["keys", "weights", "values", "error"],
    sliders: [{ ...BETA, value: 2 }, { ...KEYS, value: 6 }, DIM],
    words: { keys: KEYS_WORDS, weights: WEIGHTS_WORDS, values: VALUES_WORDS, error: ERROR_WORDS },
    say: ({ beta }, { heads: [{ weights }], error, lawNow }) => `At β = ${fixed(beta)} keys a and b have the weight ${number(weights[0])} each; c is ${number(error)} away from the mean of v_a and v_b, and the law says ${number(lawNow)}.`,
  },
  random_keys_one_head: {
    state: randomOne, least: ({ keys }) => keys, views: ["keys", "weights", "values", "error"],
    sliders: [{ ...BETA, value: 3 }, KEYS, DIM, { ...VARIANCE, value: -2 }, SAMPLE],
    words: {
      keys: `${KEYS_WORDS} Clouds: the keys of 300 samples.`, weights: "Of the one sample that is drawn.", values: "Dots: the outputs of 300 samples. The ring is the target, the diamond is c of this sample.",
      error: "Line: the law. Dots: the samples. Dashed: its two parts, what the other keys take, and the swing between a and b. No β makes both small.",
    },
    say: ({ beta, variance }, { error, lawNow }) => `At β = ${fixed(beta)} and α = ${number(variance)} the error over all samples is ${number(error)}; the law says ${number(lawNow)}.`,
  },
  stretched_key_one_head: {
    state: stretchedOne, least: ({ keys }) => keys, views: ["keys", "weights", "values", "histogram"],
    sliders: [{ ...BETA, value: 6 }, KEYS, DIM, { ...VARIANCE, value: -4 }, STRETCH],
    words: {
      keys: `${KEYS_WORDS} Clouds: the keys of 300 samples.`, weights: "Of the one sample that is drawn.", values: "Dots: the outputs of 300 samples. The ring is the target, the diamond is c of this sample.",
      histogram: "Bars: the samples. Line: the closed form for vanishing α.",
    },
    ended: pastBound,
    say: ({ beta, gamma }, { gap, weights, ends }) => `At β = ${fixed(beta)} and γ = ${fixed(gamma)} this sample has α_a = ${number(weights[0])}. In ${number(100 * ends)} % of the samples a or b alone has a weight above 0.9${ends > 0.5 ? ": c swings between v_a and v_b" : ""}. Over all samples the distribution functions of α_a, counted and in closed form, differ by ${number(gap)} at most.`,
  },
  random_keys_two_heads: {
    state: randomTwo, least: ({ keys }) => keys, views: ["keys", "weights", "values", "error"],
    sliders: [{ ...BETA, value: 5 }, KEYS, DIM, { ...VARIANCE, value: -2 }, SAMPLE],
    words: {
      keys: `${KEYS_WORDS.replace("in which q lies", "in which q_1 and q_2 lie")} Clouds: the keys of 300 samples.`, weights: "Of the one sample that is drawn: each head has its own weights.", values: "Dots: the outputs of 300 samples, each the mean of its two heads.",
      error: ERROR_WORDS,
    },
    ended: ({ beta, variance }) => (beta * variance >= 0.25 ? "Here αβ is ¼ or more: the law has ended." : ""),
    say: ({ beta, variance }, { error, lawNow }) => `At β = ${fixed(beta)} and α = ${number(variance)} the error over all samples is ${number(error)}; the law says ${number(lawNow)}.`,
  },
  stretched_key_two_heads: {
    state: stretchedTwo, least: ({ keys }) => keys, views: ["keys", "values", "weights", "variance", "histogram"],
    sliders: [{ ...BETA, value: 6 }, KEYS, DIM, { ...VARIANCE, value: -4 }, STRETCH],
    words: {
      keys: `${KEYS_WORDS.replace("in which q lies", "in which q_1 and q_2 lie")} Clouds: the keys of 300 samples.`, weights: "Of the one sample that is drawn: each head has its own weights.",
      values: "Violet: 300 outputs of two heads. Grey: those of one head over the same keys. Pink: two heads, the samples with q_1ᵀk_a < 0, which are set apart.",
      variance: "Lines: closed form for vanishing α. Dots: the samples. Diamonds: where β stands now.", histogram: "Head 1 alone. Bars: the samples. Line: the closed form for vanishing α.",
    },
    ended: pastBound,
    say: ({ beta }, { varies, share }) => `At β = ${fixed(beta)} the variance of c is ${number(varies.one)} with one head and ${number(varies.two)} with two. In ${number(100 * share)} % of the samples k_a points away from q_1.`,
  },
  identity_attention: {
    state: identity, least: () => 4, of: "directions", views: ["matrix", "star", "error"],
    sliders: [{ ...BETA, name: "length of each u", min: 0.5, max: 5, step: 0.05, value: 1.5 }, { ...DIM, value: 4 },
      { key: "add_c", sign: "t", name: "times u_c added to x_2", min: -3, max: 3, step: 0.1, value: 0 }, { key: "add_d", sign: "s", name: "times u_d added to x_2", min: -3, max: 3, step: 0.1, value: 0 }],
    words: { matrix: "Row: the word that asks. Column: the word that is asked.", star: "Four orthogonal directions, drawn as spokes of a plane; in units of β. The ring is x_2, the diamond c_2.", error: ERROR_WORDS },
    say: ({ beta }, { weights, error, readings }) => `At β = ${fixed(beta)} word 2 gives itself the weight ${number(weights[1][1])}: c_2 is ${number(error)} β away from x_2, and ${number(readings.find(([name]) => name === "miss")[2])} β away from u_b.`,
  },
  key_query_value: {
    state: keyQueryValue, least: () => 4, of: "directions", views: ["matrix", "star", "error"],
    sliders: [{ ...BETA, name: "length of each u", min: 0.6, max: 1.7, step: 0.01, value: 1.2 }, { ...DIM, value: 4 },
      { key: "roles", name: "The matrices", value: "right", options: [["right", "K and Q as above"], ["swapped", "K and Q exchanged"], ["typo", "Q = V's formula"]] }],
    words: { matrix: "Row: the word that asks. Column: the word that is asked.", star: "In units of β. Rings: what c_1 and c_2 should be. Diamonds: what they are.", error: `${ERROR_WORDS} The law is for K and Q as above.` },
    ended: ({ roles }) => (roles === "right" ? "" : "Here the law has ended: it is for K and Q as above."),
    say: ({ beta }, { error, lawNow }) => `At β = ${fixed(beta)} the larger of the two errors is ${number(error)} β; the law says ${number(lawNow)} β.`,
  },
};
