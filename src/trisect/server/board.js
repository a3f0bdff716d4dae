// Board: a site is chosen, and its q, k and v are switched; below it all that is switched.
class Board {
  constructor(about, change, chosen, only) {
    Object.assign(this, { about, change, chosen, only, positions: [] });
    this.stacks = [...new Set(about.layers.map(({ stack }) => stack))];
    const select = (label, options, act) => {
      const box = make("select", { "aria-label": label, onchange: act }, ...options);
      return { box, label: make("label", {}, make("span", {}, label), box) };
    };
    this.stack = select("Stack", this.stacks.map((name) => make("option", { value: name }, STACK_NAMES[name] || name)), () => this.fill());
    this.layer = select("Layer", [], () => this.pick());
    this.head = select("Head", [], () => this.pick());
    this.stack.label.hidden = this.stacks.length < 2;
    this.rows = ["q", "k", "v"].map((component) => this.row(component));
    this.list = make("ul", { class: "s-switches", "aria-label": "What is switched" });
    this.clear = make("button", { type: "button", onclick: () => this.change([]) }, "Switch all back");
    this.which = make("p", { class: "x-quiet" });
    this.tokens = make("div", { class: "s-positions", role: "group", "aria-label": "Tokens that are switched" });
    this.every = make("button", { type: "button", onclick: () => this.only([]) }, "All tokens");
    this.at = make("details", { class: "s-at" }, make("summary", {}, "At chosen tokens only"), this.which, this.tokens, this.every);
    this.at.hidden = about.paired; // two sequences, of which the page shows one
    const where = make("div", { class: "s-where" }, this.stack.label, this.layer.label, this.head.label);
    const table = make("div", { class: "s-rows" }, ...this.rows.map(({ element }) => element));
    this.element = make("section", { class: "s-board", "aria-label": "Switches" }, make("h2", {}, "Switch"), where, table, this.at, this.list, this.clear);
    this.fill(false);
  }

  row(component) {
    const group = segmented(`Switch ${component}`, HOW.map(([how, text]) => [how, text, HINTS[how]]), "", (how) => this.set(component, how));
    const site = make("code", { class: "s-site" });
    const by = make("span", { class: "x-quiet s-by" });
    const element = make("div", { class: "s-row" }, make("b", { class: `s-${component}` }, component), group.element, site, by);
    return { component, group, site, by, element };
  }

  // Layers and heads of the chosen stack.
  fill(tell = true) {
    const stack = this.stack.box.value;
    this.own = this.about.layers.filter((layer) => layer.stack === stack);
    const options = (names) => names.map((name) => make("option", { value: String(name) }, name === "all" ? "all" : String(name)));
    this.layer.box.replaceChildren(...options(["all", ...this.own.map(({ layer }) => layer)]));
    this.head.box.replaceChildren(...options(["all", ...Array.from({ length: Math.max(...this.own.map(({ heads }) => heads[0])) }, (_, n) => n + 1)]));
    this.layer.box.value = String(this.own[0].layer);
    if (tell) this.pick();
  }

  // The explorer opened a head (from 1; null is all of them).
  show(stack, layer, head) {
    if (this.stack.box.value !== stack) {
      this.stack.box.value = stack;
      this.fill(false);
    }
    this.layer.box.value = String(layer);
    this.head.box.value = head === null ? "all" : String(head);
    this.draw();
  }

  pick() {
    this.draw();
    const [layer, head] = [this.layer.box.value, this.head.box.value];
    if (layer !== "all") this.chosen(this.stack.box.value, Number(layer), head === "all" ? null : Number(head));
  }

  // The site of a component; keys and values of grouped heads have numbers of their own.
  site(component) {
    const [stack, layer, head] = [this.stack.box.value, this.layer.box.value, this.head.box.value];
    const [queries, keys] = (this.own.find((one) => String(one.layer) === layer) || this.own[0]).heads;
    const own = head === "all" ? 0 : component === "q" ? Number(head) : Math.floor((Number(head) - 1) / (queries / keys)) + 1;
    return `${stack === "plain" ? "" : `${stack}.`}${component}@${layer}${own ? `.h${own}` : ""}`;
  }

  set(component, how) {
    const site = this.site(component);
    const rest = this.switches.filter(([name]) => name !== site);
    this.change(how ? [...rest, [site, how]] : rest);
  }

  // What is switched now; `second` says whether there is a second text to switch to.
  update(switches, second) {
    Object.assign(this, { switches, second });
    this.list.replaceChildren(
      ...switches.map(([site, how]) => {
        const off = make("button", { type: "button", "aria-label": `Switch ${site} back`, onclick: () => this.change(switches.filter(([name]) => name !== site)) }, "×");
        const component = /([qkv+]+)@/.exec(site)?.[1] || "";
        return make("li", {}, make("code", { class: component.length === 1 ? `s-${component}` : "" }, site), ` ${WORDS[how] || how} `, off);
      }),
    );
    this.clear.hidden = !switches.length;
    this.draw();
  }

  // The tokens of the text, and which of them are switched: none chosen are all.
  place(tokens) {
    const words = tokens.join("\u0000");
    if (words !== this.words) {
      this.words = words;
      this.tokens.replaceChildren(...tokens.map((token, n) => make("button", { type: "button", "data-n": n, "aria-label": `${token}, token ${n + 1}`, onclick: () => this.turn(n) }, token)));
    }
    this.mark(this.positions);
  }

  mark(positions) {
    this.positions = positions;
    const tokens = [...this.tokens.children];
    this.which.textContent = positions.length ? `Switched at ${positions.length} of ${tokens.length} tokens.` : "Switched at all tokens. Choose some to switch them alone.";
    this.every.hidden = !positions.length;
    if (positions.length) this.at.open = true;
    tokens.forEach((button, n) => button.setAttribute("aria-pressed", positions.includes(n)));
  }

  turn(n) {
    const rest = this.positions.filter((one) => one !== n);
    this.only(rest.length < this.positions.length ? rest : [...rest, n].sort((a, b) => a - b));
  }

  draw() {
    for (const { component, group, site, by } of this.rows) {
      const name = this.site(component);
      const how = this.switches?.find(([one]) => one === name)?.[1] || "";
      group.pick(how, true);
      const last = group.element.lastElementChild;
      last.disabled = !this.second && how !== "second";
      last.title = this.second ? HINTS.second : "Type a second text first";
      site.textContent = name;
      const wide = how ? null : this.switches?.findLast(([one]) => covers(one, name, component));
      by.textContent = wide ? `${WORDS[wide[1]]}, by ${wide[0]}` : "";
    }
  }
}

const STACK_NAMES = { plain: "all", enc: "encoder", dec: "decoder", cross: "cross" };
const WORDS = { zero: "zero", half: "half", double: "double", mean: "its mean", second: "the second text's" };
const HINTS = { "": null, zero: "Zeros in its place", half: "Half as large", double: "Twice as large", mean: "Its mean over this text's positions", second: "What the second text has at the same positions" };

// Whether the site `wide` holds the site `name` of one component: all layers, or all heads.
function covers(wide, name, component) {
  const read = (site) => /^(?:(\w+)\.)?([qkv+]+)@([^.]+)(?:\.h(.+))?$/.exec(site)?.slice(1);
  const [a, b] = [read(wide), read(name)];
  return Boolean(a && b && a[0] === b[0] && a[1].split("+").includes(component) && (a[2] === "all" || a[2] === b[2]) && (!a[3] || a[3] === b[3]) && wide !== name);
}
