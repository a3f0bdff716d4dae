// Paint: elements, numbers, the ramp, and canvases as sharp as the screen.
const STOPS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"];
const KINDS = ["weights", "norms"];
const TITLES = { weights: "By weight", norms: "By norm", contributions: "By contribution" };
const SIGNS = { weights: "a", norms: "‖a f(x)‖", contributions: "a f(x)·o / ‖o‖²" };
const SIGNED = ["7f3b08", "b35806", "e08214", "fdb863", "fee0b6", "f7f7f7", "d8daeb", "b2abd2", "8073ac", "542788", "2d004b"]; // 0 in the middle

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Three digits that count, and a true minus sign.
function number(value, digits = 3) {
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  const text = size < 1e-4 ? value.toExponential(1) : size < 10 ** digits ? value.toPrecision(digits) : value.toFixed(0);
  return text.replaceAll("-", "−");
}

// A value with what its storage leaves open; without it where that is less than the digits shown.
const within = (value, error) => (error > 0.004 * Math.abs(value) ? `${number(value, 2)} ± ${number(error, 1)}` : number(value));
const percent = (share) => (share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);

// 256 colours, as the bytes of an ImageData.
function table(colours) {
  const stops = colours.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const bytes = new Uint8Array(256 * 4);
  for (let n = 0; n < 256; n++) {
    const place = (n / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) bytes[4 * n + c] = Math.round(stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (place - low));
    bytes[4 * n + 3] = 255;
  }
  return new Uint32Array(bytes.buffer);
}
const [LUT, SIGNED_LUT] = [table(STOPS), table(SIGNED)];

// A canvas of `width` × `height` CSS pixels, cleared, with one unit a device pixel.
function fit(canvas, width, height) {
  const dpr = globalThis.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * dpr)), Math.max(1, Math.round(height * dpr))];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    [canvas.style.width, canvas.style.height] = [`${w / dpr}px`, `${h / dpr}px`];
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, w, h);
  return { pen, dpr, w, h };
}

// The page's own colours, light or dark, as they are now.
function colours(element) {
  const style = getComputedStyle(element);
  const names = ["paper", "ink", "soft", "rule", "line", "wash", "q", "k", "v", "hit", "mark"];
  return Object.fromEntries([...names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]), ["font", style.fontFamily]]);
}

// Colour numbers 0 to 255 as a picture; where `blank(i, j)` holds nothing is drawn.
function picture(levels, width, height, blank = null, lut = LUT) {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < pixels.length; at++) pixels[at] = lut[levels[at]];
  if (blank) {
    for (let i = 0, at = 0; i < height; i++) for (let j = 0; j < width; j++, at++) if (blank(i, j)) pixels[at] = 0;
  }
  const sheet = new OffscreenCanvas(width, height);
  sheet.getContext("2d").putImageData(image, 0, 0);
  return sheet;
}

// The scale of a map: colour grows with the square root, and the ends say so; where it is signed, 0 is in the middle.
const ticks = (signed) => (signed ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]);
function legend(top, sign, signed = false) {
  const marks = ticks(signed).map((share) => make("span", {}, number(share * Math.abs(share) * top, 2)));
  const bar = make("span", { class: "x-ramp" });
  bar.style.background = `linear-gradient(to right, ${(signed ? SIGNED : STOPS).map((hex) => `#${hex}`).join(", ")})`;
  return make("span", { class: "x-legend", title: `${sign}; the colour grows with its square root` }, bar, make("span", { class: "x-ticks" }, ...marks));
}

function segmented(label, options, chosen, choose) {
  const buttons = options.map(([value, text, title = null]) =>
    make("button", { type: "button", title, "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text),
  );
  const pick = (value, silent = false) => {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(options[n][0] === value)));
    if (!silent) choose(value);
  };
  const element = make("div", { class: "x-switch", role: "group", "aria-label": label }, ...buttons);
  return { element, pick };
}
