// The map of words: places between -1 and 1, which glide to where the next map has them.
"use strict";

class WordMap {
  constructor(host) {
    this.svg = svg("svg", { role: "img", "aria-label": "Map of words" });
    this.texts = new Map();
    host.append(this.svg);
    this.host = host;
    new ResizeObserver(() => this.map && this.draw()).observe(host);
  }

  update(map) {
    if (map === this.map || (this.map && map.number === this.map.number)) return;
    this.map = map;
    this.draw();
  }

  draw() {
    const { words, xs, ys } = this.map;
    const wide = Math.max(260, this.host.clientWidth), high = Math.round(Math.min(460, wide * 0.72));
    setAttrs(this.svg, { viewBox: `0 0 ${wide} ${high}`, height: high,
      "aria-label": `Map of ${words.length} frequent words; words that are used alike come near each other: ${words.slice(0, 12).join(", ")} …` });
    const taken = new Set(words);
    for (const [word, text] of this.texts) {
      if (!taken.has(word)) {
        text.remove();
        this.texts.delete(word);
      }
    }
    const boxes = [];
    words.forEach((word, i) => {
      let text = this.texts.get(word);
      if (!text) {
        text = svg("text", {}, word);
        this.texts.set(word, text);
        this.svg.append(text);
      }
      const half = Math.min(wide / 2 - 4, word.length * 3.7 + 3);
      const x = Math.max(half, Math.min(wide - half, wide / 2 + xs[i] * (wide / 2 - 30)));
      const y = Math.max(12, Math.min(high - 6, high / 2 - ys[i] * (high / 2 - 16)));
      // Frequent words come first: later ones that would lie on them step back.
      const hit = boxes.some((box) => Math.abs(box.x - x) < box.half + half - 2 && Math.abs(box.y - y) < 12);
      if (!hit) boxes.push({ x, y, half });
      text.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
      text.style.opacity = hit ? "0" : "1";
    });
  }
}
