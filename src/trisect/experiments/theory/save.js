// Save: the drawings of a construction as they look now, and its numbers as rows.
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "fill-opacity", "stroke-opacity", "paint-order", "font-size", "font-weight", "font-variant-numeric"];
const PLAIN = 'Arial, "Helvetica Neue", "Liberation Sans", sans-serif';

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

// All drawings of a lab, below their titles.
function drawings(lab) {
  const style = getComputedStyle(document.body);
  const panels = lab.panels.filter(({ sheet }) => sheet.querySelector("svg")).map(({ view, sheet }) => {
    const svg = still(sheet.querySelector("svg"));
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    return { name: TITLES[view], svg, width, height };
  });
  const title = lab.root.closest("section").querySelector("h2").textContent.trim().replace(/\s+/g, " ");
  return together(title, panels, { ink: style.color, paper: style.backgroundColor, font: PLAIN });
}

// Every number that is drawn or stands beside the drawings: what it is, where, its value, and what the law says.
// The table for LaTeX is without the samples of a histogram, which none would hold.
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
  return { columns: ["kind", "name", "at", "value", "law"], rows: found, few: found.filter(([kind]) => kind !== "sample"), sides: "lllrr" };
}
