// The cluster as a picture: master, servers with their shards, workers; who waits, what moves.
// Elements are kept between two pictures and only their attributes change.
"use strict";

const CARD = { width: 168, gap: 10 };
const TILES_FROM = { server: 25, worker: 41 };
const GHOST_S = 20;

const nameOf = (node) => (node.role === "master" ? "the master" : node.name || `${node.role} ${node.id}`);
const stateOf = (node) => (node.state === "lost" ? "lost" : node.words || node.state);

class Cluster {
  constructor(host, choose) {
    this.choose = choose;
    this.svg = svg("svg", { role: "group", "aria-label": "Picture of the cluster" });
    this.under = svg("g");
    this.bands = svg("g");
    this.nodes = svg("g");
    this.over = svg("g", { "aria-hidden": "true" });
    this.svg.append(this.under, this.bands, this.nodes, this.over);
    host.append(this.svg);
    this.shown = new Map(); // name -> {group, ...}
    this.ghosts = new Map(); // name -> {node, until}
    this.before = new Map();
    this.picked = "";
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.status && this.draw()).observe(host);
    this.host = host;
  }

  update(status, now) {
    const names = new Map(status.nodes.map((node) => [nameOf(node), node]));
    if (this.clusterId === status.cluster_id && !["stopping", "done", "failed", "exporting"].includes(status.phase)) {
      for (const [name, node] of this.before) {
        if (!names.has(name) && node.role !== "driver") this.ghosts.set(name, { ...node, state: "lost", waits: "", since: now });
      }
    } else this.ghosts.clear();
    for (const [name, ghost] of this.ghosts) if (names.has(name) || now - ghost.since > GHOST_S) this.ghosts.delete(name);
    this.before = names;
    this.clusterId = status.cluster_id;
    this.status = status;
    this.waiting = new Set(status.waits.filter((wait) => wait.seconds >= 1).map((wait) => wait.who));
    this.draw();
  }

  draw() {
    const { status } = this;
    const width = Math.max(280, this.host.clientWidth);
    const all = [...status.nodes, ...this.ghosts.values()].sort((a, b) => a.id - b.id);
    const servers = all.filter((node) => node.role === "server");
    const workers = all.filter((node) => node.role === "worker");
    const master = all.find((node) => node.role === "master") || { role: "master", id: 0, state: "", words: status.phase_words, waits: "", ...status.master };
    const rows = new Map();
    for (const shard of status.shards) {
      for (const [place, as] of [[shard.primary, "primary"], [shard.standby, "standby"]]) {
        if (place) rows.set(place, [...(rows.get(place) || []), { ...shard, as }]);
      }
    }
    this.cpuMost = Math.max(1, ...status.nodes.map((node) => node.cpu || 0));
    this.places = new Map();
    const kept = new Set();
    this.trunk = [];
    this.bandTexts = [];
    let top = 4;
    top = this.band("", [master], width, top, rows, kept) + 26;
    top = this.band("Servers", servers, width, top, rows, kept) + 26;
    top = this.band("Workers", workers, width, top, rows, kept) + 4;
    for (const [name, one] of this.shown) {
      if (!kept.has(name)) {
        one.group.remove();
        this.shown.delete(name);
      }
    }
    setAttrs(this.svg, { viewBox: `0 0 ${width} ${top}`, height: top });
    this.under.replaceChildren(...this.trunk);
    this.bands.replaceChildren(...this.bandTexts);
    this.flows(status);
    this.rove();
  }

  // One kind of process, in rows of cards or, if there are many, of tiles; returns where it ends.
  band(title, nodes, width, top, shardsOf, kept) {
    if (!nodes.length) return top - 26;
    const role = nodes[0].role;
    const small = nodes.length >= (TILES_FROM[role] || Infinity);
    const shardsMost = role === "server" ? Math.max(1, ...nodes.map((node) => (shardsOf.get(node.id) || []).length)) : 0;
    let size;
    if (!small) {
      const columns = Math.max(1, Math.min(nodes.length, Math.floor((width + CARD.gap) / (Math.min(CARD.width, (width - CARD.gap) / 2) + CARD.gap))));
      const wide = Math.min(230, (width - CARD.gap * (columns - 1)) / columns);
      const perRow = Math.max(1, Math.floor((wide - 24) / 22));
      size = { wide, high: role === "master" ? 46 : 62 + (role === "server" ? Math.ceil(shardsMost / perRow) * 22 + 2 : 0), columns, gap: CARD.gap };
    } else if (role === "server") {
      const perRow = Math.min(8, Math.max(4, Math.ceil(Math.sqrt(shardsMost * 2))));
      const wide = perRow * 7 + 9;
      size = { wide, high: 18 + Math.ceil(shardsMost / perRow) * 7 + 4, gap: 6, perRow };
    } else size = { wide: 11, high: 11, gap: 3 };
    size.columns = size.columns || Math.max(1, Math.floor((width + size.gap) / (size.wide + size.gap)));
    if (title) {
      const lost = nodes.filter((node) => node.state === "lost").length;
      const text = `${title} ${nodes.length - lost}${lost ? `, ${lost} lost` : ""}`;
      this.bandTexts.push(svg("text", { class: "t-band", x: 0, y: top + 2 }, text.toUpperCase()));
      this.trunk.push(svg("path", { class: "trunk", d: `M${width / 2},${top - 24}V${top - 10}` }));
      top += 12;
    }
    const used = Math.min(size.columns, nodes.length) * (size.wide + size.gap) - size.gap;
    const left = (width - used) / 2;
    nodes.forEach((node, i) => {
      const x = left + (i % size.columns) * (size.wide + size.gap);
      const y = top + Math.floor(i / size.columns) * (size.high + size.gap);
      const name = nameOf(node);
      kept.add(name);
      this.places.set(name, { x, y, wide: size.wide, high: size.high, cx: x + size.wide / 2, cy: y + size.high / 2 });
      this.process(name, node, { ...size, x, y, small }, shardsOf.get(node.id) || []);
    });
    return top + Math.ceil(nodes.length / size.columns) * (size.high + size.gap) - size.gap;
  }

  process(name, node, place, shards) {
    const make = `${node.role}${place.small}${Math.round(place.wide)}${place.high}`;
    let one = this.shown.get(name);
    if (!one || one.make !== make) {
      if (one) one.group.remove();
      one = { make, group: svg("g", { role: "button", tabindex: -1 }) };
      one.group.addEventListener("click", () => this.pick(name));
      if (place.small) this.makeTile(one, node, place);
      else this.makeCard(one, node, place);
      this.shown.set(name, one);
      this.nodes.append(one.group);
    }
    one.node = node;
    const state = this.looks(node);
    setAttrs(one.group, {
      transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`,
      class: `p ${node.role} ${place.small ? "tile " : ""}${state}${name === this.picked ? " chosen" : ""}`,
      "aria-label": this.spoken(name, node),
    });
    if (one.fill) one.fill(node, shards, place, name);
  }

  looks(node) {
    if (node.state === "lost" || node.mood === "bad") return "s-lost";
    if ((node.waits && node.waits_s >= 1) || (!node.waits && node.mood === "waits")) return "s-wait";
    if (this.waiting.has(nameOf(node))) return "s-wait";
    if (["registered", "connecting"].includes(node.state)) return "s-new";
    return node.mood === "idle" ? "s-idle" : "";
  }

  spoken(name, node) {
    const parts = [name, stateOf(node)];
    if (node.waits) parts.push(`waits for ${node.waits}`);
    if (known(node.rate)) parts.push(`${count(node.rate)} ${this.status.unit} a second`);
    return parts.join(", ");
  }

  makeTile(one, node, place) {
    one.group.append(svg("rect", { class: "p-box", width: place.wide, height: place.high, rx: node.role === "server" ? 5 : 2.5 }));
    const title = svg("title");
    one.group.append(title);
    if (node.role !== "server") {
      one.fill = (now, shards, at, name) => setText(title, this.spoken(name, now));
      return;
    }
    const label = svg("text", { x: 5, y: 13, class: "t-soft" }), cells = svg("g");
    one.group.append(label, cells);
    one.fill = (now, shards, at, name) => {
      setText(title, `${this.spoken(name, now)}: ${plural(shards.filter((s) => s.as === "primary").length, "shard")}`);
      setText(label, String(now.number || now.id));
      this.cells(cells, shards, (i) => [5 + (i % at.perRow) * 7, 18 + Math.floor(i / at.perRow) * 7, 5.4], false);
    };
  }

  makeCard(one, node, place) {
    const { wide, high } = place;
    const title = svg("text", { class: "t-name", x: 14, y: 20 });
    const state = svg("text", { class: "t-soft", x: wide - 10, y: 20, "text-anchor": "end" });
    const line = svg("text", { class: "t-soft", x: 14, y: 37 });
    one.group.append(svg("rect", { class: "p-box", width: wide, height: high, rx: 9 }),
      svg("path", { class: "p-edge", d: `M0,9a9,9 0 0 1 4.5,-7.8V${high - 1.2}A9,9 0 0 1 0,${high - 9}Z` }), title, state, line);
    if (node.role === "master") {
      one.fill = (now) => {
        setText(title, "the master");
        setText(state, wide > 200 ? this.status.phase_words : "");
        setText(line, this.load(now) || this.status.address);
      };
      return;
    }
    const meter = svg("rect", { class: "meter-fill", x: 14, y: 47, height: 4, rx: 2, width: 0 });
    const cells = svg("g"), tip = svg("title");
    one.group.append(svg("rect", { class: "meter", x: 14, y: 47, width: wide - 26, height: 4, rx: 2 }), meter, cells, tip);
    one.fill = (now, shards, at, name) => {
      setText(title, name);
      setText(state, this.stateText(now));
      setText(line, this.lineText(now, wide));
      setText(tip, `${name} on ${now.host}, process ${now.pid}`);
      setAttrs(meter, { width: now.state === "lost" ? 0 : ((wide - 26) * Math.min(1, (now.cpu || 0) / this.cpuMost)).toFixed(1) });
      const perRow = Math.max(1, Math.floor((wide - 24) / 22));
      this.cells(cells, now.state === "lost" ? [] : shards, (i) => [14 + (i % perRow) * 22, 59 + Math.floor(i / perRow) * 22, 18], true);
    };
  }

  stateText(node) {
    if (node.state === "lost") return "lost";
    return node.waits && node.waits_s >= 1 ? `waits ${seconds(node.waits_s)}` : stateOf(node);
  }
  load(node) {
    return known(node.cpu) ? `${node.cpu.toFixed(2)} cores · ${bytes(node.rss_bytes)}` : "";
  }
  lineText(node, wide) {
    if (node.state === "lost") return `${node.host}:${node.pid}`;
    const rate = node.role === "worker" && known(node.rate) ? `${count(node.rate)} ${wide > 150 ? this.status.unit : ""}/s`.replace(" /", "/") : "";
    const load = this.load(node);
    const parts = [rate, load && rate && wide < 190 ? `${node.cpu.toFixed(1)} c` : load].filter(Boolean);
    return parts.join(" · ") || `${node.host}:${node.pid}`;
  }

  // Shards of a server: filled where it serves them, an outline where it keeps the standby.
  cells(group, shards, place, numbered) {
    const wanted = shards.length * (numbered ? 2 : 1);
    while (group.childNodes.length > wanted) group.lastChild.remove();
    while (group.childNodes.length < wanted) {
      if (numbered) group.append(svg("rect", { rx: 4 }), svg("text", { "text-anchor": "middle" }));
      else group.append(svg("rect", { rx: 1.2 }));
    }
    shards.sort((a, b) => (a.as === b.as ? a.shard - b.shard : a.as === "primary" ? -1 : 1)).forEach((shard, i) => {
      const [x, y, size] = place(i);
      const moving = !["ready", "none"].includes(shard.state);
      const alone = shard.as === "primary" && !shard.standby && this.status.replicated;
      const inset = shard.as === "standby" ? 0.7 : 0;
      const box = group.childNodes[numbered ? 2 * i : i];
      setAttrs(box, {
        class: `shard ${shard.as}${moving && shard.as === "standby" ? " moving" : ""}${alone ? " alone" : ""}`,
        x: x + inset, y: y + inset, width: size - 2 * inset, height: size - 2 * inset,
      });
      if (!numbered) return;
      const text = group.childNodes[2 * i + 1];
      setAttrs(text, { class: `shard-text ${shard.as}`, x: x + size / 2, y: y + size / 2 + 3.5 });
      setText(text, String(shard.shard));
    });
  }

  // Lines over the processes: waits from the one that waits, moves to where a shard is copied.
  flows(status) {
    const parts = [];
    const nodes = new Map(status.nodes.map((node) => [node.id, nameOf(node)]));
    const moves = status.shards.filter((shard) => shard.standby && !["ready", "none"].includes(shard.state));
    moves.slice(0, 12).forEach((shard, i) => {
      const share = shard.state === "seeding" ? ` ${Math.floor(shard.seeded * 100)}%` : "";
      parts.push(...this.flow(nodes.get(shard.primary), nodes.get(shard.standby), moves.length <= 3 ? `shard ${shard.shard}${share}` : "", "move", i));
    });
    const waits = status.waits.filter((wait) => wait.seconds >= 1);
    waits.slice(0, 12).forEach((wait, i) => {
      const whom = (wait.whom.match(/(?:server|worker) \d+|the master/) || [""])[0];
      if (whom !== wait.who) parts.push(...this.flow(wait.who, whom, waits.length <= 6 ? seconds(wait.seconds) : "", "", i));
    });
    this.over.replaceChildren(...parts);
  }

  flow(from, to, text, kind, i) {
    const a = this.places.get(from), b = this.places.get(to);
    if (!a || !b) return [];
    let d, mx, my, end;
    if (Math.abs(a.cy - b.cy) < 4) { // side by side: an arc below
      const y = a.y + a.high, dip = 14 + (i % 4) * 5;
      [mx, my] = [(a.cx + b.cx) / 2, y + dip * 0.75];
      end = [b.cx, y + 1, -1];
      d = `M${a.cx},${y}C${a.cx},${y + dip} ${b.cx},${y + dip} ${b.cx},${y + 6}`;
    } else {
      const down = b.cy > a.cy;
      const y1 = down ? a.y + a.high : a.y, y2 = down ? b.y : b.y + b.high;
      const shift = ((i % 5) - 2) * Math.min(7, a.wide / 6, b.wide / 6), bend = (y2 - y1) / 2;
      [mx, my] = [(a.cx + b.cx) / 2 + shift, (y1 + y2) / 2];
      end = [b.cx + shift, y2, down ? 1 : -1];
      d = `M${a.cx + shift},${y1}C${a.cx + shift},${y1 + bend} ${b.cx + shift},${y2 - bend} ${b.cx + shift},${y2 - (down ? 5 : -5)}`;
    }
    const [hx, hy, sign] = end;
    const found = [svg("path", { class: `flow ${kind}`, d }), svg("path", { class: `flow-head ${kind}`, d: `M${hx},${hy}l-4.5,${-8 * sign}h9z` })];
    if (text) found.push(svg("text", { class: `flow-text ${kind}`, x: mx, y: my + 4, "text-anchor": "middle" }, text));
    return found;
  }

  pick(name) {
    this.picked = this.picked === name ? "" : name;
    this.focused = name;
    for (const [own, one] of this.shown) one.group.classList.toggle("chosen", own === this.picked);
    this.rove();
    this.choose(this.picked);
  }

  // One process is reached by Tab; arrow keys go to the others, Enter shows its details.
  rove() {
    if (!this.shown.has(this.focused)) this.focused = this.shown.keys().next().value;
    for (const [name, one] of this.shown) {
      const value = name === this.focused ? "0" : "-1";
      if (one.group.getAttribute("tabindex") !== value) one.group.setAttribute("tabindex", value);
    }
  }

  key(event) {
    const names = [...this.places.keys()];
    const at = names.indexOf(this.focused);
    const row = (step) => { // the nearest process in the row above or below
      const own = this.places.get(this.focused);
      const near = names.filter((name) => (this.places.get(name).cy - own.cy) * step > 4)
        .sort((p, q) => this.far(own, p) - this.far(own, q));
      return near.length ? names.indexOf(near[0]) : at;
    };
    const moves = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => row(-1), ArrowDown: () => row(1), Home: () => 0, End: () => names.length - 1 };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.pick(this.focused);
    } else if (event.key in moves) {
      event.preventDefault();
      this.focused = names[Math.max(0, Math.min(names.length - 1, moves[event.key]()))];
      this.rove();
      this.shown.get(this.focused).group.focus();
    }
  }
  far(own, name) {
    const other = this.places.get(name);
    return Math.abs(other.cy - own.cy) * 8 + Math.abs(other.cx - own.cx);
  }
}
