// Page: sliders, drawings and readings of each construction, and what follows when one is moved.
const TITLES = {
  keys: "Scores: the query on the keys", weights: "Weights: softmax of the scores", values: "Output: the weighted mean", error: "The error and its law",
  histogram: "The weight on a, over the samples", variance: "How much c varies", matrix: "Scores and weights", star: "Values and outputs",
};

class Lab {
  constructor(root) {
    this.root = root;
    this.name = root.dataset.name;
    this.spec = SPECS[this.name];
    this.fields = this.spec.sliders.map((slider) => this.control(slider));
    this.panels = this.spec.views.map((view) => {
      const sheet = make("div", { class: "sheet" });
      return { view, sheet, element: make("div", { class: `panel p-${view}`, "data-view": view }, make("h3", {}, TITLES[view]), sheet, make("p", { class: "quiet" }, ...rich(this.spec.words[view]))) };
    });
    this.readings = make("dl", { class: "readings" });
    this.said = make("p", { class: "said", role: "status" });
    const back = make("button", { type: "button", onclick: () => this.reset() }, "Back to the start");
    const [beta, ...others] = this.fields.map(({ element }) => element);
    root.querySelector(".lab-body").replaceChildren(
      beta, make("div", { class: "controls" }, ...others, back), this.said,
      savers({ name: () => this.name, drawing: () => drawings(this), table: () => rows(this, this.inputs, this.state) }),
      make("div", { class: "panels" }, ...this.panels.map(({ element }) => element), make("div", { class: `numbers after-${this.panels.length}` }, make("h3", {}, "The numbers"), this.readings)),
    );
    this.update();
  }

  control(slider) {
    const id = `${this.name}-${slider.key}`;
    if (slider.options) {
      const inputs = slider.options.map(([value, words]) => make("label", {}, make("input", { type: "radio", name: id, value, checked: value === slider.value, onchange: () => this.update() }), " ", ...rich(words)));
      const element = make("fieldset", { class: "choice" }, make("legend", {}, slider.name), ...inputs);
      return { slider, element, read: () => element.querySelector("input:checked").value, set: (value) => (element.querySelector(`input[value="${value}"]`).checked = true), show: () => {} };
    }
    const { min, max, step } = slider;
    const input = make("input", { type: "range", id, min, max, step, value: slider.value, "data-input": slider.key, oninput: () => this.soon() });
    const output = make("span", { class: "reading", "data-name": slider.key });
    const element = make("div", { class: `slider${slider.key === "beta" ? " beta" : ""}` }, make("label", { for: id }, make("i", {}, slider.sign), " ", ...rich(slider.name)), output, input);
    const read = () => (slider.power ? 10 ** Number(input.value) : Number(input.value));
    const show = () => {
      const text = slider.power ? number(read()) : fixed(read());
      output.dataset.value = read();
      output.replaceChildren(text);
      input.setAttribute("aria-valuetext", `${slider.sign} ${text}`);
      element.style.setProperty("--share", (Number(input.value) - min) / (max - min));
    };
    return { slider, element, read, show, set: (value) => (input.value = value) };
  }

  reset() {
    for (const { slider, set } of this.fields) set(slider.value);
    this.update();
  }

  // However often a slider moves between two frames, all is drawn once.
  soon() {
    this.waiting ??= requestAnimationFrame(() => this.update());
  }

  update() {
    if (this.waiting) cancelAnimationFrame(this.waiting);
    this.waiting = null;
    const inputs = Object.fromEntries(this.fields.map(({ slider, read }) => [slider.key, read()]));
    for (const { show } of this.fields) show();
    const refused = this.spec.least && inputs.dim < this.spec.least(inputs);
    this.root.classList.toggle("refused", Boolean(refused));
    this.root.querySelector(".tools").hidden = Boolean(refused);
    if (refused) {
      const count = this.spec.least(inputs);
      for (const { sheet } of [...this.panels, { sheet: this.readings }]) sheet.replaceChildren();
      this.said.replaceChildren(`${count} orthogonal ${this.spec.of || "keys"} do not fit into ${inputs.dim} dimensions. Give ${count} or more dimensions${this.spec.of ? "" : ", or fewer keys"}.`);
      return;
    }
    const state = this.spec.state(inputs);
    Object.assign(this, { inputs, state });
    for (const { view, sheet } of this.panels) sheet.replaceChildren(VIEWS[view](state));
    this.readings.replaceChildren(...state.readings.map(([name, words, value]) =>
      make("div", {}, make("dt", {}, ...rich(words)), make("dd", {}, make("span", { class: "reading", "data-name": name, "data-value": value }, number(value, 4)))),
    ));
    const ended = this.spec.ended?.(inputs, state);
    this.said.replaceChildren(...rich(this.spec.say(inputs, state)), ended ? make("b", { class: "ended" }, " ", ...rich(ended)) : "");
  }
}

const packed = document.querySelector("#draws");
load(packed.textContent.trim(), packed.dataset);
for (const root of document.querySelectorAll(".lab")) new Lab(root);
// A link to a construction opens it.
const unfold = () => document.getElementById(location.hash.slice(1))?.querySelector("details")?.setAttribute("open", "");
addEventListener("hashchange", unfold);
unfold();
document.documentElement.classList.add("alive");
