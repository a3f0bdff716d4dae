// Saving: a figure as one drawing that stands without the page's style sheet, as a picture, and as rows.
function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A drawing as it looks now, in words that stand without the page's style sheet.
function still(svg) {
  const copy = svg.cloneNode(true);
  const mine = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(mine[i]);
    for (const name of ["fill", "stroke"]) if (element.hasAttribute(name)) element.setAttribute(name, style[name]);
  });
  for (const gone of copy.querySelectorAll(".off, .ring")) gone.remove();
  return copy;
}

function text(words, x, y, size, fill, more = {}) {
  const element = document.createElementNS(NS, "text");
  for (const [name, value] of Object.entries({ x, y, "font-size": size, fill, ...more })) element.setAttribute(name, value);
  element.textContent = words;
  return element;
}

// The whole figure as one drawing: title, key, panels three to a row.
function whole(figure, off) {
  const style = getComputedStyle(document.body);
  const [ink, paper, soft] = [style.color, style.backgroundColor, getComputedStyle(figure.querySelector("figcaption")).color];
  const root = document.createElementNS(NS, "svg");
  const put = (element, x, y) => {
    element.setAttribute("x", x);
    element.setAttribute("y", y);
    root.append(element);
  };
  const panels = [...figure.querySelectorAll(".view .panel > svg")].map(still);
  const size = (svg) => [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const across = panels.length === 4 ? 2 : 3;
  const rows = panels.flatMap((_, i) => (i % across ? [] : [panels.slice(i, i + across)]));
  const width = Math.max(360, ...rows.map((row) => row.reduce((sum, svg) => sum + size(svg)[0] + 16, 0))) + 16;
  const title = figure.querySelector(".figure-title").textContent.trim().replace(/\s+/g, " ");
  root.append(text(title, 16, 30, 16, ink, { "font-weight": "bold" }));
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = `12px ${FONT}`;
  let [x, y] = [16, 54];
  for (const item of figure.querySelectorAll(".view .key li")) {
    if (off.has(item.dataset.key)) continue;
    const name = item.textContent.trim();
    const swatch = still(item.querySelector("svg"));
    const wide = size(swatch)[0] + 5 + measure.measureText(name).width + 18;
    if (x + wide > width && x > 16) [x, y] = [16, y + 20];
    put(swatch, x, y - 11);
    root.append(text(name, x + size(swatch)[0] + 5, y, 12, ink));
    x += wide;
  }
  const ramp = figure.querySelector(".ramp");
  if (ramp) y = legend(root, ramp, soft, y);
  y += 14;
  for (const row of rows) {
    x = 16;
    for (const svg of row) {
      put(svg, x, y);
      x += size(svg)[0] + 16;
    }
    y += Math.max(...row.map((svg) => size(svg)[1])) + 12;
  }
  const back = document.createElementNS(NS, "rect");
  for (const [name, value] of Object.entries({ width, height: y, fill: paper })) back.setAttribute(name, value);
  root.prepend(back);
  const frame = { xmlns: NS, width, height: y, "font-family": FONT };
  for (const [name, value] of Object.entries(frame)) root.setAttribute(name, value);
  return { svg: new XMLSerializer().serializeToString(root), width, height: y };
}

function legend(root, ramp, soft, y) {
  const [low, bar, high] = ramp.children;
  const stops = bar.dataset.stops.split(" ");
  stops.forEach((colour, i) => {
    const cell = document.createElementNS(NS, "rect");
    const places = { x: 70 + (i * 200) / stops.length, y: y - 10, width: 200 / stops.length + 0.5, height: 12, fill: colour };
    for (const [name, value] of Object.entries(places)) cell.setAttribute(name, value);
    root.append(cell);
  });
  root.append(text(low.textContent, 62, y, 12, soft, { "text-anchor": "end" }), text(high.textContent, 280, y, 12, soft));
  return y;
}

async function picture(figure, off) {
  const { svg, width, height } = whole(figure, off);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = make("canvas", { width: Math.round(width * SCALE), height: Math.round(height * SCALE) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
