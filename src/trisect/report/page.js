// The figures come alive: keys that hide, other arrangements of the panels, buttons that save.
function furnish(figure, script) {
  let book = null;
  let view = 0;
  const plots = new Map();
  const off = new Set();
  const read = () => (book ??= new Book(JSON.parse(script.textContent)));

  function plot(panel) {
    if (!plots.has(panel)) {
      const place = [...figure.querySelectorAll(".view .panel")].indexOf(panel);
      const made = new Plot(panel, read().views[view].panels[place].strokes, book.keys, book);
      made.hide(off);
      plots.set(panel, made);
    }
    return plots.get(panel);
  }

  function enliven(arrangement) {
    for (const panel of arrangement.querySelectorAll(".panel")) {
      const title = panel.querySelector("svg").getAttribute("aria-label").split(/[:,]/)[0];
      const named = { tabindex: 0, role: "group", "aria-label": `${title}: arrow keys read the values` };
      if ("counted" in script.dataset) for (const [name, value] of Object.entries(named)) panel.setAttribute(name, value);
    }
    for (const item of arrangement.querySelectorAll(".key li[data-key]")) {
      const button = make("button", { type: "button", "aria-pressed": true }, ...item.childNodes);
      button.addEventListener("click", () => toggle(item.dataset.key, button));
      item.replaceChildren(button);
    }
    return arrangement;
  }

  function toggle(key, button) {
    const shown = off.delete(key);
    if (!shown) off.add(key);
    button.setAttribute("aria-pressed", shown);
    for (const panel of figure.querySelectorAll(".view .panel")) plot(panel).hide(off);
  }

  const homes = [figure.querySelector(".view"), ...figure.querySelectorAll("template")];
  const built = [homes[0]];
  function arrange(next, buttons) {
    if (next === view) return;
    for (const key of [...off]) toggle(key, figure.querySelector(`.view [data-key="${CSS.escape(key)}"] button`));
    built[next] ??= enliven(homes[next].content.querySelector(".view"));
    built[view].replaceWith(built[next]);
    view = next;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === next));
  }

  function tools() {
    const bar = make("div", { class: "tools" });
    const names = homes.map((home) => home.dataset.view);
    if (names.length > 1) {
      const buttons = names.map((name, i) => make("button", { type: "button", "aria-pressed": i === 0 }, name));
      buttons.forEach((button, i) => button.addEventListener("click", () => arrange(i, buttons)));
      bar.append(make("div", { class: "switch", role: "group", "aria-label": "Panels by" }, make("span", {}, "Panels by"), ...buttons));
    }
    const png = make("button", { type: "button", title: "This figure as it looks now, as a picture" }, "Save PNG");
    png.addEventListener("click", async () => save(`${figure.id}.png`, await picture(figure, off)));
    const csv = make("button", { type: "button", title: "The rows of these panels, as a table" }, "Save CSV");
    csv.addEventListener("click", () => save(`${figure.id}.csv`, new Blob([read().csv(view)], { type: "text/csv" })));
    const svg = make("button", { type: "button", title: "This figure as it looks now, as a drawing" }, "Save SVG");
    svg.addEventListener("click", () => save(`${figure.id}.svg`, new Blob([whole(figure, off).svg], { type: "image/svg+xml" })));
    const tex = make("button", { type: "button", title: "The means of these panels, as a table for LaTeX" }, "Save LaTeX");
    const title = figure.querySelector(".figure-title").textContent.trim();
    tex.addEventListener("click", () => save(`${figure.id}.tex`, new Blob([read().latex(view, title)], { type: "text/x-tex" })));
    const counted = "counted" in script.dataset ? [csv, tex] : [];
    bar.append(make("div", { class: "save" }, svg, png, ...counted));
    return bar;
  }

  const panelOf = (event) => event.target.closest?.(".view .panel");
  for (const kind of ["pointermove", "pointerdown"]) {
    figure.addEventListener(kind, (event) => {
      const panel = panelOf(event);
      if (!panel) return;
      const here = plot(panel);
      here.show(here.nearest(event));
    });
  }
  figure.addEventListener("pointerout", (event) => {
    const panel = panelOf(event);
    if (panel && event.pointerType === "mouse" && !panel.contains(event.relatedTarget)) plot(panel).leave();
  });
  figure.addEventListener("focusout", (event) => {
    if (panelOf(event) === event.target) plot(event.target).leave();
  });
  figure.addEventListener("keydown", (event) => {
    const panel = panelOf(event);
    if (panel !== event.target || !panel || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    plot(panel).walk(event.key);
  });
  figure.querySelector("figcaption").before(tools());
  enliven(homes[0]);
}

for (const figure of document.querySelectorAll("figure[id]")) {
  const script = figure.querySelector('script[type="application/json"]');
  if (script) furnish(figure, script);
}
const reading = "Hover over a mark, tap it, or use the arrow keys in a panel to read its value. Click a name in a legend to hide or show its marks.";
const arranging = document.querySelector("figure template") ? " Some figures can be split by component, layer or label." : "";
document.querySelector("figure[id] figcaption")?.after(make("p", { class: "quiet hint" }, reading + arranging));
const clear = () => {
  document.querySelector(".ring")?.remove();
  tip.hidden = true;
};
addEventListener("keydown", (event) => event.key === "Escape" && clear());
// What the keys have chosen goes along with its panel; what was pointed at has moved away.
const scrolled = () => {
  const ring = document.querySelector(".ring");
  if (ring?.closest(".panel") === document.activeElement) beside(ring.getBoundingClientRect());
  else clear();
};
addEventListener("scroll", scrolled, { passive: true });
addEventListener("pointerdown", (event) => event.target.closest?.(".view .panel") || clear());
addEventListener("beforeprint", clear);
// A link opens what it leads to, and all that this is folded into.
const unfold = () => {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!place) return;
  for (const own of place.querySelectorAll(":scope > details")) own.open = true;
  for (let around = place.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  place.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
document.documentElement.classList.add("alive");
