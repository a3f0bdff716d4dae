// View: what changes: the text shaded by how far each position moves, and predictions before and after.
class Outcome {
  constructor(choose) {
    Object.assign(this, { choose, words: null });
    this.title = make("h2", {}, "What changes");
    this.lede = make("p", { class: "x-quiet s-lede" });
    this.even = make("p", { class: "x-quiet s-even" }, "A query of 0 and a key of 0 do the same: every score q·k becomes 0, so that the head attends evenly, but for what the model itself adds to scores.");
    this.text = make("div", { class: "x-text s-strip", tabindex: "0", role: "group" });
    this.heads = make("tr");
    this.body = make("tbody");
    this.table = make("table", { class: "s-table" }, make("thead", {}, this.heads), this.body);
    this.element = make("section", { class: "s-outcome", "aria-label": "What changes" }, this.title, this.lede, this.even, this.text, make("div", { class: "x-scroll" }, this.table));
    this.text.addEventListener("click", (event) => {
      const span = event.target.closest?.("[data-n]");
      if (span && this.words?.predicts) this.choose(Number(span.dataset.n));
    });
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined || !this.words?.predicts || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.choose(Math.min(this.words.tokens.length - 1, Math.max(0, this.words.place + step)));
    });
  }

  update(words) {
    this.words = words;
    const { tokens, glued, moved, whole, predicts, place, switches } = words;
    const top = Math.max(1e-12, ...moved);
    const parts = [];
    tokens.forEach((token, n) => {
      const value = whole ? 0 : moved[n];
      const span = make("span", { class: `x-token${glued[n] && n ? " x-glued" : ""}${predicts && n === place ? " s-place" : ""}`, "data-n": n, "data-moved": value, title: `token ${n + 1}: ${this.said(value)}` }, token);
      span.style.backgroundColor = switches.length ? SHADE[Math.round(SHADES * Math.sqrt(value / top))] : "";
      if (!glued[n] && n) parts.push(" ");
      parts.push(span);
    });
    this.text.replaceChildren(...parts);
    this.text.classList.toggle("s-choosing", predicts);
    this.text.setAttribute("aria-label", predicts ? `The text; predictions are shown at token ${place + 1}, ${tokens[place]}. Left and right choose another.` : "The text, shaded by how far each token's output moves.");
    this.even.hidden = !switches.some(([site, how]) => how === "zero" && /[qk]/.test(site.replace(/@.*/, "").replace(/.*\./, "")));
    this.table.hidden = !predicts && (!switches.length || whole);
    if (predicts) this.predictions(words);
    else this.moves(words);
  }

  said(value) {
    return this.words.predicts ? `${number(value)} nats` : percentage(value);
  }

  predictions({ tokens, place, predictions, moved, switches }) {
    this.lede.replaceChildren("What the model predicts at ", make("b", {}, tokens[place]), ` (token ${place + 1})`, switches.length ? ": it moves by " : ".");
    if (switches.length) this.lede.append(make("b", { class: "s-moved", "data-value": moved[place] }, `${number(moved[place])} nats`), " (KL divergence). Darker tokens: predictions there move further. Choose one to see them.");
    this.columns(["token", "before", "after", "difference"]);
    const top = Math.max(...predictions.flatMap(([, before, after]) => [before, after]), 1e-12);
    this.body.replaceChildren(
      ...predictions.map(([token, before, after]) =>
        make("tr", {}, make("th", { scope: "row", title: readableToken(token) }, readableToken(token)), this.bar(before, top, "s-before"), this.bar(after, top, "s-after"), this.change(before, after, switches.length)),
      ),
    );
  }

  bar(value, top, kind) {
    const bar = make("span", { class: `x-bar-value ${kind}` });
    bar.style.width = `${(100 * value) / top}%`;
    return make("td", { "data-value": value, "data-kind": kind }, make("span", { class: "x-track" }, bar), percentage(value));
  }

  change(before, after, any) {
    const points = 100 * (after - before);
    const text = !any || Math.abs(points) < 0.005 ? "0" : `${points > 0 ? "+" : "−"}${Math.abs(points) < 10 ? Math.abs(points).toFixed(2) : Math.abs(points).toFixed(1)}`;
    return make("td", { class: "s-number" }, text);
  }

  moves({ tokens, moved, whole, switches }) {
    const mean = moved.reduce((sum, value) => sum + value, 0) / moved.length;
    if (!switches.length) this.lede.textContent = "This model predicts no token: what is shown is how far each token's output moves. Nothing is switched yet.";
    else if (whole) this.lede.replaceChildren("The model's output moves by ", make("b", { class: "s-moved", "data-value": moved[0] }, percentage(moved[0])), " of its length.");
    else this.lede.replaceChildren("The outputs move by ", make("b", { class: "s-moved", "data-value": mean }, percentage(mean)), " of their length on average. Darker tokens move further.");
    if (!switches.length || whole) return;
    this.columns(["token", "moves by"]);
    const order = moved.map((value, n) => [value, n]).sort((a, b) => b[0] - a[0]).slice(0, 12);
    this.body.replaceChildren(...order.map(([value, n]) => make("tr", {}, make("th", { scope: "row", title: tokens[n] }, tokens[n], make("span", { class: "x-quiet" }, ` ${n + 1}`)), this.bar(value, order[0][0] || 1, "s-after"))));
  }

  columns(names) {
    this.heads.replaceChildren(...names.map((name) => make("th", { scope: "col" }, name)));
  }
}

const percentage = (share) => (share === 0 ? "0 %" : share < 0.0001 ? "< 0.01 %" : `${number(100 * share)} %`);
// White space as signs, since a token of it would be nothing to see.
const readableToken = (token) => token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +| +$/g, (blank) => "␣".repeat(blank.length)) || "∅";
