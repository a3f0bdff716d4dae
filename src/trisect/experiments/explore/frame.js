// Frame: the explorer's page around its views, and how it is mounted in a page or in a notebook.
function build(app) {
  const button = (text, title, act) => make("button", { type: "button", class: "x-button", title, "aria-label": title, onclick: act }, text);
  app.step = make("span", { class: "x-here" });
  const longest = Math.max(...app.manifest.layers.map(({ shape }, n) => app.name(n, shape[0]).length));
  app.step.style.minWidth = `min(${(0.54 * longest).toFixed(1)}em, 38cqi)`;
  app.field = make("input", { type: "search", placeholder: "Search a token", "aria-label": "Search a token", spellcheck: "false" });
  app.count = make("span", { class: "x-quiet x-count", role: "status" });
  app.field.addEventListener("input", () => app.search(app.field.value));
  app.field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") app.search(app.field.value, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") app.search((app.field.value = ""));
    event.stopPropagation();
  });
  const scale = segmented("Scale", [[true, "One scale", "All heads share one scale"], [false, "Own scales", "Each head has its own"]], true, (value) => app.rescale(value));
  app.scaleSwitch = scale;
  const names = { plain: "All layers", enc: "Encoder", dec: "Decoder", cross: "Cross" };
  const heads = button("All heads", "Back to all heads", () => app.root.scrollIntoView());
  app.stackSwitch = app.stacks.length > 1 ? segmented("Stack", app.stacks.map((stack) => [stack, names[stack]]), app.stack, (stack) => app.choose(stack)) : null;
  const walk = make("div", { class: "x-walk" }, button("‹", "Head before", () => app.go(-1)), app.step, button("›", "Next head", () => app.go(1)));
  const bar = make("div", { class: "x-bar" }, walk, app.stackSwitch?.element || "", heads, make("div", { class: "x-search" }, app.count, app.field));

  const save = saversOf(app);
  app.about = make("p", { class: "x-about" });
  const grids = make("section", { class: "x-section" }, make("div", { class: "x-head" }, make("h2", {}, "Every head"), scale.element),
    make("p", { class: "x-quiet" }, "Layers down, heads across; last, each layer as a whole, on a scale of its own. Rows: query tokens; columns: attended tokens. Click one to open it."),
    make("div", { class: "x-pairs" }, ...app.grids.map(({ element }) => element)), save.heads, app.about);

  app.title = make("h2", { class: "x-title" });
  app.spot = make("p", { class: "x-said x-spot" });
  const beside = segmented("Beside the weight", [["norms", "norm"], ["contributions", "contribution"]], app.beside, (kind) => app.compare(kind));
  app.signs = make("p", { class: "x-quiet", hidden: true }, "The contribution a f(x)·o / ‖o‖² is the share of what is added, o = Σ a f(x), that comes from a token. Over a row it sums to 1; below 0, in orange, the token points against the rest.");
  app.opened = make("div", { class: "x-opened" }, app.title, app.spot, make("div", { class: "x-turn" }, make("span", { class: "x-quiet" }, "Beside the weight"), beside.element), app.signs);
  app.zoomIn = button("+", "Zoom in", () => app.zoom(1));
  app.zoomOut = button("–", "Zoom out", () => app.zoom(-1));
  app.zoomAll = button("All", "Show all tokens", () => app.zoom(null));
  const tools = make("div", { class: "x-tools" }, app.zoomOut, app.zoomIn, app.zoomAll);
  const maps = make("section", { class: "x-section x-maps" }, make("div", { class: "x-head" }, make("h3", {}, "Token by token"), tools),
    make("div", { class: "x-pairs" }, ...app.plots.map(({ element }) => element)), save.map);

  const turn = segmented("Direction", [[false, "takes from"], [true, "gives to"]], false, (value) => app.turnRound(value));
  const texts = make("section", { class: "x-section x-texts" },
    make("div", { class: "x-head" }, make("h3", {}, "The text"), make("div", { class: "x-turn" }, make("span", { class: "x-quiet" }, "A token"), turn.element)),
    app.readers.element, make("div", { class: "x-pairs" }, ...app.texts.map(({ element }) => element)), save.text);
  app.cell.element.append(save.cell);

  app.aloud = make("div", { class: "x-unseen", role: "status", "aria-live": "polite" });
  app.root.replaceChildren(bar, grids, make("div", { class: "x-open" }, app.opened, texts, maps, app.cell.element, app.manifest.logits ? app.says.element : ""), app.aloud);
}

// Draws the explorer into `root`; returns what takes it down again.
function mount(root, manifest, chunk, options = {}) {
  const app = new Explorer(root, new Store(manifest, chunk), options);
  root.classList.add("explorer");
  const started = app.start();
  const watched = new ResizeObserver(() => requestAnimationFrame(() => root.clientWidth !== app.width && ((app.width = root.clientWidth), app.resize())));
  watched.observe(root);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const repaint = () => app.resize();
  dark.addEventListener("change", repaint);
  const keys = options.keys || root;
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea")) return;
    if (event.key === "/") app.field.focus();
    else if (event.key === "[") app.go(-1);
    else if (event.key === "]") app.go(1);
    else if (event.key === "Escape") app.hover(null);
    else return;
    event.preventDefault();
  };
  keys.addEventListener("keydown", onKey);
  const stop = () => {
    watched.disconnect();
    dark.removeEventListener("change", repaint);
    keys.removeEventListener("keydown", onKey);
    root.replaceChildren();
  };
  return { app, started, stop };
}
