// State: what a page is about, as a link holds it, with undo and redo.
const HOW = [["", "as it is"], ["zero", "zero"], ["half", "½"], ["double", "2×"], ["mean", "mean"], ["second", "second"]];
const BURST = 800; // milliseconds within which typing is one step

// A name of a page, or of a view in a notebook, that no other has.
const ownName = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

const blankState = (paired) => ({ text: paired ? ["", ""] : [""], second: paired ? ["", ""] : [""], switches: [], place: null, positions: [] });

function toLink(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// The state in a link's fragment; null where there is none, or where it is no state.
function fromLink(fragment, paired) {
  try {
    const plain = atob(fragment.replace(/^#/, "").replaceAll("-", "+").replaceAll("_", "/"));
    const found = JSON.parse(new TextDecoder().decode(Uint8Array.from(plain, (c) => c.charCodeAt(0))));
    const texts = (list) => Array.isArray(list) && list.length <= 2 && list.every((text) => typeof text === "string");
    const pairs = Array.isArray(found.switches) && found.switches.every((pair) => Array.isArray(pair) && pair.length === 2 && pair.every((part) => typeof part === "string"));
    if (!texts(found.text) || !texts(found.second) || !pairs || !(found.place === null || Number.isInteger(found.place))) return null;
    const positions = found.positions ?? [];
    if (!Array.isArray(positions) || !positions.every((n) => Number.isInteger(n) && n >= 0)) return null;
    const sides = (list) => (paired ? [list[0] || "", list[1] || ""] : [list[0] || ""]);
    return { text: sides(found.text), second: sides(found.second), switches: found.switches, place: found.place, positions };
  } catch {
    return null;
  }
}

class Timeline {
  constructor(first) {
    Object.assign(this, { states: [first], at: 0, typed: -Infinity });
  }

  get now() {
    return this.states[this.at];
  }

  // A new state; what is typed in one burst is one step.
  push(state, typing = false) {
    const time = performance.now();
    if (JSON.stringify(state) === JSON.stringify(this.now)) return;
    if (typing && time - this.typed < BURST && this.at > 0) this.states.length = this.at;
    else this.states.length = this.at + 1;
    this.typed = typing ? time : -Infinity;
    this.states.push(state);
    this.at = this.states.length - 1;
  }

  step(by) {
    this.at = Math.min(this.states.length - 1, Math.max(0, this.at + by));
    this.typed = -Infinity;
    return this.now;
  }
}

// An answer: the length of its words in four bytes, the words as JSON, and the chunks of the picture.
function unpackAnswer(buffer) {
  const size = new DataView(buffer).getUint32(0);
  const words = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  let at = 4 + size;
  const chunks = (words.chunks || []).map((length) => new Uint8Array(buffer, (at += length) - length, length));
  return { words, chunks };
}

// A second text that is blank is none.
const sent = (state) => ({ ...state, second: state.second.some((text) => text.trim()) ? state.second : [] });
