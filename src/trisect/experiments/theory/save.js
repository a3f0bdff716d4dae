// Save: the drawings of a construction as one picture that stands without the page, and its numbers as rows.
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "paint-order", "font-size", "font-weight", "font-variant-numeric"];
const [GAP, HEAD, FINE] = [20, 26, 2];
const PLAIN = 'Arial, "Helvetica Neue", "Liberation Sans", sans-serif';

function hand(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A drawing as it looks now, every rule of the page's style sheet written beside what it rules.
function still(svg) {
  const copy = svg.cloneNode(true);
  const mine = [svg, ...svg.querySelectorAll("*")];
  const gone = [];
  [copy, ...copy.querySelectorAll("*")].forEach((element, n) => {
    const style = getComputedStyle(mine[n]);
    if (style.display === "none") gone.push(element);
    if (n) for (const name of DRAWN) element.setAttribute(name, style[name.replace(/-(.)/g, (_, letter) => letter.toUpperCase())]);
    element.removeAttribute("class");
  });
  for (const element of gone) element.remove();
  return copy;
}

// All drawings of a lab side by side, below their titles, two to a row.
function together(lab) {
  const style = getComputedStyle(document.body);
  const panels = lab.panels.filter(({ sheet }) => sheet.querySelector("svg"));
  const across = Math.min(2, panels.length);
  const write = (words, x, y, size) => draw("text", { x, y, fill: style.color, "font-size": size, "font-weight": "bold" }, words);
  const title = lab.root.closest("section").querySelector("h2").textContent.trim().replace(/\s+/g, " ");
  const parts = [write(title, GAP, 30, 17)];
  let y = 44;
  for (let first = 0; first < panels.length; first += across) {
    let high = 0;
    panels.slice(first, first + across).forEach(({ view, sheet }, n) => {
      const [svg, x] = [still(sheet.querySelector("svg")), GAP + n * (WIDE + GAP)];
      const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
      fill(svg, { x, y: y + HEAD, width, height }, []);
      parts.push(write(TITLES[view], x, y + 18, 14), svg);
      high = Math.max(high, HEAD + height);
    });
    y += high + GAP;
  }
  const width = GAP + across * (WIDE + GAP);
  const root = draw("svg", { xmlns: NS, width, height: y, viewBox: `0 0 ${width} ${y}`, "font-family": PLAIN }, draw("rect", { width, height: y, fill: style.backgroundColor }), ...parts);
  return { text: new XMLSerializer().serializeToString(root), width, height: y };
}

async function picture({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas", { width: width * FINE, height: height * FINE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// Every number that is drawn or stands beside the drawings: what it is, where, its value, and what the law says.
function rows(lab, inputs, state) {
  const found = Object.entries(inputs).map(([name, value]) => ["slider", name, "", value, ""]);
  for (const [name, , value] of state.readings) found.push(["reading", name, "", value, ""]);
  const heads = state.heads || [];
  heads.forEach(({ scores, weights }, h) => state.names.forEach((name, n) => {
    const at = `${plain(name)}${heads.length > 1 ? `, head ${h + 1}` : ""}`;
    found.push(["score", "q·k", at, scores[n], ""], ["weight", "α", at, weights[n], ""]);
  }));
  if (!heads.length && state.scores) state.weights.forEach((row, i) => row.forEach((weight, j) => {
    found.push(["score", "q·k", `q${i + 1} k${j + 1}`, state.scores[i][j], ""], ["weight", "α", `q${i + 1} k${j + 1}`, weight, ""]);
  }));
  for (const { name, output, target } of state.outputs || []) output.forEach((x, n) => found.push(["output", plain(name), `u${"abcd"[n]}`, x, target[n]]));
  if (state.curve) state.curve.betas.forEach((beta, n) => found.push(["curve", "error", beta, state.curve.points[n], state.curve.law[n]]));
  for (const { name, law, points } of state.variance?.series || []) state.variance.betas.forEach((beta, n) => found.push(["curve", `variance ${plain(name)}`, beta, points[n], law[n]]));
  for (const sample of state.histogram?.samples || []) found.push(["sample", plain(state.histogram.name), "", sample, ""]);
  return found;
}

const COLUMNS = ["kind", "name", "at", "value", "law"];
const quoted = (cell) => (/[",\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
const csv = (found) => [COLUMNS, ...found].map((row) => row.map(quoted).join(",")).join("\n") + "\n";

// The same without the samples of a histogram, which no table would hold.
function latex(found) {
  const signs = { "\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}", "α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "μ": "$\\mu$", "·": "$\\cdot$", "−": "$-$" };
  const word = (text) => String(text).replace(/[\\^~αβγμ·−]|[&%$#_{}]/g, (sign) => signs[sign] || `\\${sign}`);
  const cell = (value) => (typeof value === "number" ? `$${Number(value.toPrecision(4))}$`.replace(/e([-+]\d+)\$$/, (_, power) => `\\cdot 10^{${Number(power)}}$`) : word(value));
  const lines = found.filter(([kind]) => kind !== "sample").map((row) => `${row.map(cell).join(" & ")} \\\\`);
  return ["\\begin{tabular}{lllrr}", "\\hline", `${COLUMNS.join(" & ")} \\\\`, "\\hline", ...lines, "\\hline", "\\end{tabular}", ""].join("\n");
}

// The four buttons of a lab; what they save is what is shown when they are pressed.
function savers(lab, now) {
  const text = (content, kind) => new Blob([content], { type: `${kind};charset=utf-8` });
  const named = (end) => `${lab.name}.${end}`;
  const button = (words, title, onclick) => make("button", { type: "button", title, onclick }, words);
  return make("div", { class: "tools" },
    button("Save SVG", "These drawings as they look now", () => hand(named("svg"), text(together(lab).text, "image/svg+xml"))),
    button("Save PNG", "These drawings as they look now, as a picture", async () => hand(named("png"), await picture(together(lab)))),
    button("Save CSV", "Every number that is drawn, as rows", () => hand(named("csv"), text(csv(now()), "text/csv"))),
    button("Save LaTeX", "The same numbers as a table", () => hand(named("tex"), text(latex(now()), "text/x-tex"))),
  );
}
