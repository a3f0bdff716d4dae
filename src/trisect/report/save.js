// Save: drawings as one picture that stands without the page, and their numbers as rows and as a table for LaTeX.
const NS = "http://www.w3.org/2000/svg";
const [AROUND, HEAD, FINE] = [20, 26, 2];

function hand(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function vector(tag, attributes, ...children) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Drawings below one title and each below its own, two to a row; `look` has the font, and the colours of ink and paper.
function together(title, panels, look) {
  const across = Math.min(2, panels.length);
  const write = (words, x, y, size) => vector("text", { x, y, fill: look.ink, "font-size": size, "font-weight": "bold" }, words);
  const parts = [write(title, AROUND, 30, 17)];
  const gauge = make("canvas").getContext("2d");
  gauge.font = `bold 14px ${look.font}`;
  const step = AROUND + Math.ceil(Math.max(...panels.flatMap(({ name, width }) => [width, gauge.measureText(name).width])));
  let y = 44;
  for (let first = 0; first < panels.length; first += across) {
    const row = panels.slice(first, first + across);
    row.forEach(({ name, svg, width, height }, n) => {
      const x = AROUND + n * step;
      for (const [key, value] of Object.entries({ x, y: y + HEAD, width, height })) svg.setAttribute(key, value);
      parts.push(write(name, x, y + 18, 14), svg);
    });
    y += HEAD + Math.max(...row.map(({ height }) => height)) + AROUND;
  }
  const width = AROUND + across * step;
  const root = vector("svg", { xmlns: NS, width, height: y, viewBox: `0 0 ${width} ${y}`, "font-family": look.font }, vector("rect", { width, height: y, fill: look.paper }), ...parts);
  return { text: new XMLSerializer().serializeToString(root), width, height: y };
}

async function raster({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas", { width: Math.round(width * FINE), height: Math.round(height * FINE) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

const quoted = (cell) => (/[",\r\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
const csv = ({ columns, rows }) => [columns, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";

// `few` are the rows of the table where all would be too many for one.
function latex({ columns, rows, few = rows, sides = "l".repeat(columns.length) }) {
  const signs = { "\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}", "α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "μ": "$\\mu$", "·": "$\\cdot$", "−": "$-$", "×": "$\\times$", "‖": "$\\|$" };
  const word = (text) => String(text).replace(/[\\^~αβγμ·−×‖]|[&%$#_{}]/g, (sign) => signs[sign] || `\\${sign}`).replace(/\s+/g, " ");
  const cell = (value) => (typeof value === "number" ? `$${Number(value.toPrecision(4))}$`.replace(/e([-+]\d+)\$$/, (_, power) => `\\cdot 10^{${Number(power)}}$`) : word(value));
  const line = (row) => `${row.map(cell).join(" & ")} \\\\`;
  return [`\\begin{tabular}{${sides}}`, "\\hline", line(columns), "\\hline", ...few.map(line), "\\hline", "\\end{tabular}", ""].join("\n");
}

// Four buttons; what they save is what is shown when they are pressed: `name()` of the files, `drawing()`, and the `table()` of its numbers.
function savers({ name, drawing, table }, look = "tools") {
  const put = (end, title, blob) =>
    make("button", { type: "button", title, onclick: async () => hand(`${name()}.${end === "LaTeX" ? "tex" : end.toLowerCase()}`, await blob()) }, `Save ${end}`);
  const text = (content, kind) => new Blob([content], { type: `${kind};charset=utf-8` });
  return make("div", { class: look },
    put("SVG", "These drawings as they look now", async () => text((await drawing()).text, "image/svg+xml")),
    put("PNG", "These drawings as they look now, as a picture", async () => raster(await drawing())),
    put("CSV", "Every number that is drawn, as rows", () => text(csv(table()), "text/csv")),
    put("LaTeX", "The same numbers as a table", () => text(latex(table()), "text/x-tex")),
  );
}
