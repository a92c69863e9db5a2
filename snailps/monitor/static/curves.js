// Numbers as text, elements, and curves over time.
// Everything that came from a run becomes text by textContent: no markup is ever parsed here.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attrs = {}, ...children) {
  return dress(document.createElement(tag), attrs, children);
}
function svg(tag, attrs = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attrs, children);
}
function dress(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const byId = (id) => document.getElementById(id);
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
function setAttrs(node, attrs) {
  for (const [name, value] of Object.entries(attrs)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

const known = (value) => value !== null && value !== undefined;
function count(value) {
  if (!known(value)) return "–";
  for (const [limit, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= limit) {
      const scaled = value / limit;
      return scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + unit;
    }
  }
  return Number.isInteger(value) || value >= 100 ? value.toFixed(0) : String(+value.toPrecision(3));
}
function bytes(value) {
  return known(value) ? `${count(value)}B`.replace(/^(\d+)B$/, "$1 B") : "–";
}
function seconds(value) {
  if (!known(value)) return "–";
  const whole = Math.round(value);
  if (value < 10 && value > 0 && whole !== value) return `${value.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}
const decimals = (value) => (known(value) ? String(+value.toPrecision(4)) : "–");
const percent = (value) => `${(Math.floor(value * 1000) / 10).toFixed(1)}%`;
const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

// Round values between two bounds, about `wanted` of them.
function ticks(low, high, wanted) {
  const span = high - low || 1;
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(12));
  return found;
}
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
function timeTicks(low, high, wanted) {
  const step = STEPS_S.find((s) => (high - low) / s <= wanted) || Math.ceil((high - low) / wanted / 86400) * 86400;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}
const timeLabel = (s) =>
  s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")} min`
    : `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} h`;

// A curve of one value over the seconds of the run, with marks where something happened.
// Pointer or arrow keys read it; the reading is in an <output>, so that it is spoken as well.
class Curve {
  constructor(host, { title, kind = "", zero = false, text = count, unit = "" }) {
    Object.assign(this, { zero, text, unit, xs: [], ys: [], marks: [], at: null });
    this.output = el("output");
    this.none = el("p", { class: "none" });
    this.svg = svg("svg", { tabindex: 0, role: "img" });
    this.title = title;
    host.append(el("section", { class: `panel curve ${kind}` },
      el("div", { class: "panel-head" }, el("h2", {}, title), this.output), this.svg, this.none));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(xs, ys, marks) {
    const pairs = xs.map((x, i) => [x, ys[i]]).filter(([x, y]) => known(x) && known(y));
    this.xs = pairs.map((pair) => pair[0]);
    this.ys = pairs.map((pair) => pair[1]);
    this.marks = marks;
    if (this.at !== null) this.at = Math.min(this.at, this.xs.length - 1);
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || 560, height = 190;
    const { xs, ys } = this;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    setText(this.none, xs.length < 2 ? "The first points come with the training." : "");
    if (xs.length < 2) {
      this.svg.replaceChildren();
      setText(this.output, "");
      this.svg.setAttribute("aria-label", `${this.title}: no points yet`);
      return;
    }
    let low = this.zero ? 0 : Math.min(...ys), high = Math.max(...ys);
    if (low === high) [low, high] = this.zero ? [0, high || 1] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
    const pad = (high - low) * 0.08;
    high += pad;
    if (!this.zero) low = low >= 0 ? Math.max(0, low - pad) : low - pad;
    const box = { left: 48, right: width - 8, top: 8, bottom: height - 24 };
    const first = xs[0], span = xs[xs.length - 1] - first || 1;
    const x = (value) => box.left + ((value - first) / span) * (box.right - box.left);
    const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
    Object.assign(this, { x, y, box });
    const parts = [];
    for (const tick of ticks(low, high, 4)) {
      parts.push(svg("line", { class: "c-grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
        svg("text", { class: "c-label", x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, this.text(tick)));
    }
    const stamps = timeTicks(first, first + span, Math.max(2, Math.floor(width / 110)));
    for (const tick of stamps) {
      const near = x(tick) > box.right - 22 ? "end" : x(tick) < box.left + 14 ? "start" : "middle";
      parts.push(svg("text", { class: "c-label", x: x(tick), y: height - 6, "text-anchor": near }, timeLabel(tick)));
    }
    const dots = xs.map((value, i) => `${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}`);
    parts.push(svg("path", { class: "c-area", d: `M${x(xs[0])},${box.bottom}L${dots.join("L")}L${x(xs[xs.length - 1])},${box.bottom}Z` }),
      svg("path", { class: "c-line", d: `M${dots.join("L")}` }));
    for (const mark of this.marks) {
      if (mark.at < first || mark.at > first + span) continue;
      const at = x(mark.at);
      parts.push(svg("g", { class: `c-${mark.kind}` },
        svg("line", { class: "c-mark", x1: at, x2: at, y1: box.top, y2: box.bottom }),
        svg("path", { class: "c-sign", d: `M${at - 4},${box.bottom + 7}h8l-4,-7z` }), svg("title", {}, mark.text)));
    }
    this.cross = svg("g");
    parts.push(this.cross);
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("aria-label", `${this.title}, now ${this.text(ys[ys.length - 1])} ${this.unit}, `
      + `between ${this.text(Math.min(...ys))} and ${this.text(Math.max(...ys))}. Arrow keys read single points.`);
    this.show();
  }

  show() {
    const at = this.at === null ? this.xs.length - 1 : this.at;
    const when = this.at === null ? "" : ` at ${seconds(this.xs[at])}`;
    this.output.replaceChildren(el("b", {}, this.text(this.ys[at])), ` ${this.unit}${when}`);
    this.cross.replaceChildren();
    const cx = this.x(this.xs[at]), cy = this.y(this.ys[at]);
    if (this.at !== null) {
      this.cross.append(svg("line", { class: "c-cross", x1: cx, x2: cx, y1: this.box.top, y2: this.box.bottom }));
    }
    this.cross.append(svg("circle", { class: "c-point", cx, cy, r: 4 }));
  }

  read(at) {
    if (this.at === at || this.xs.length < 2) return;
    this.at = at;
    this.show();
  }

  point(event) {
    if (this.xs.length < 2) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const wanted = this.xs[0] + ((at - this.box.left) / (this.box.right - this.box.left)) * (this.xs[this.xs.length - 1] - this.xs[0]);
    let best = 0;
    for (let i = 1; i < this.xs.length; i++) if (Math.abs(this.xs[i] - wanted) < Math.abs(this.xs[best] - wanted)) best = i;
    this.read(best);
  }

  key(event) {
    const last = this.xs.length - 1, at = this.at === null ? last : this.at;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, PageUp: at - 20, PageDown: at + 20 };
    if (event.key === "Escape") this.read(null);
    else if (event.key in moves) {
      event.preventDefault();
      this.read(Math.max(0, Math.min(last, moves[event.key])));
    }
  }
}

// A small line without axes, of the last values of one process.
function spark(values, width = 200, height = 36) {
  const told = values.filter(known);
  const high = Math.max(...told, 1e-9), step = width / Math.max(1, told.length - 1);
  const dots = told.map((v, i) => `${(i * step).toFixed(1)},${(height - 2 - (v / high) * (height - 4)).toFixed(1)}`);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("path", { class: "c-line", d: dots.length > 1 ? `M${dots.join("L")}` : "" }));
}
