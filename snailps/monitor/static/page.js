// The page: asks for the newest picture of a run, one request at a time, and shows it.
// A report has its one picture inside and no server to ask.
"use strict";

const RETRY_MS = 1500;
const ROWS_MAX = 60;
const KEPT = 120;
const PHASES = {
  forming: "wait", preparing: "wait", ready: "wait", restoring: "wait", survey: "run", loading: "run",
  training: "run", exporting: "run", done: "run", failed: "bad",
};
const KINDS = {
  joined: ["good", "joined"], lost: ["bad", "lost"], replaced: ["good", "replaced"], left: ["", "left"], moved: ["", "moved"],
  checkpoint: ["", "checkpoint"], input: ["", "input"], files: ["", "files"], restored: ["good", "restored"], master: ["warn", "master"], warning: ["warn", "warning"],
};
const SHAPES = {
  bad: "M2 2l10 10M12 2 2 12", good: "M1.5 7.5 5.5 11.5 12.5 3", warn: "M7 1.5v7M7 12v.5", "": "M7 4.5a2.5 2.5 0 1 0 .01 0",
};

const view = { version: 0, name: "", curves: null, past: new Map(), seen: 0, picture: null, picked: "" };

function start() {
  view.curves = {
    speed: new Curve(byId("curves"), { title: "Speed", kind: "", zero: true, unit: "words a second" }),
    loss: new Curve(byId("curves"), { title: "Loss", kind: "c-worker", text: decimals }),
    test: new Curve(byId("curves"), { title: "Test", kind: "c-worker", text: decimals }),
    cpu: new Curve(byId("curves"), { title: "Processor", kind: "c-master", zero: true, unit: "cores busy" }),
    memory: new Curve(byId("curves"), { title: "Memory", kind: "c-master", zero: true, text: bytes }),
  };
  view.cluster = new Cluster(byId("cluster"), (name) => { view.picked = name; showDetails(true); });
  view.words = new WordMap(byId("words"));
  byId("filter").addEventListener("input", () => view.status && showTable(view.status));
  legend();
  const inside = byId("report-data");
  if (inside) {
    document.documentElement.classList.add("report");
    show(JSON.parse(inside.textContent));
    for (const id of ["facts-panel", "machine-panel"]) byId(id).open = true;
    return;
  }
  view.name = new URLSearchParams(location.search).get("run") || "";
  document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
  follow();
  listRuns();
}

let wake = () => {};
const pause = (ms) => new Promise((done) => { const timer = setTimeout(done, ms); wake = () => { clearTimeout(timer); done(); }; });

async function follow() {
  for (;;) {
    if (document.hidden && view.picture) await pause(1e9);
    try {
      const answer = await fetch(`api/run?run=${encodeURIComponent(view.name)}&after=${view.version}`, { cache: "no-store" });
      if (answer.status === 401) return link("lost", await answer.text());
      const picture = await answer.json();
      if (answer.ok && picture.state !== "none") {
        view.version = picture.version;
        show(picture);
        if (picture.state === "ended") await pause(5000);
      } else {
        if (!view.picture || view.picture.state !== "ended") empty(picture);
        view.version = 0;
        await pause(RETRY_MS);
      }
    } catch (error) {
      link("lost", view.picture && view.picture.state === "ended" ? view.picture.why : "the page's own process, snailps ui, does not answer");
      await pause(RETRY_MS);
      view.version = 0;
    }
  }
}

async function listRuns() {
  for (;;) {
    try {
      const answer = await fetch("api/runs", { cache: "no-store" });
      if (answer.ok) showRuns((await answer.json()).runs);
    } catch (error) { /* `follow` says so */ }
    await pauseHidden(4000);
  }
}
const pauseHidden = (ms) => new Promise((done) => setTimeout(done, document.hidden ? 10 * ms : ms));

function showRuns(runs) {
  const nav = byId("runs");
  nav.hidden = runs.length < 2;
  const current = view.picture ? view.picture.run.name : view.name;
  nav.replaceChildren(...runs.map((run) => el("a", {
    href: `./?run=${encodeURIComponent(run.name)}`, "aria-current": run.name === current ? "page" : null,
    title: `${run.address} ${run.output}`,
  }, `${run.title || "run"} ${run.output.split("/").pop()}`.trim())));
}

function empty(answer) {
  byId("empty").hidden = false;
  byId("run").hidden = true;
  setText(byId("empty-text"), answer.why === "no such run" ? "This run is not known here any more." :
    "No master runs on this machine. This page shows the next one as soon as it begins.");
  link("", "no run");
}

function link(state, text) {
  byId("link").className = `link ${state}`;
  setText(byId("link-text"), text);
}

const objects = (table) => table.rows.map((row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i]])));

// Times of the run and not of its present master, which counts from its own beginning: what an
// earlier one saw is below 0.
function fromTheStart(picture) {
  const { status, series } = picture;
  const first = Math.min(0, ...series.at_s.slice(0, 1), ...(status.events || []).map((event) => event.at_s));
  return {
    ...picture,
    status: { ...status, origin_s: first, began_s: known(status.began_s) ? status.began_s + first : null, elapsed_s: status.elapsed_s - first, events: (status.events || []).map((event) => ({ ...event, at_s: event.at_s - first })) },
    series: { ...series, at_s: series.at_s.map((at) => at - first) },
  };
}

function show(told) {
  const picture = told.status ? fromTheStart(told) : told;
  view.picture = picture;
  const words = { live: "live", connecting: "connecting to the master", lost: "the master does not answer", ended: "ended" };
  const report = picture.state === "report";
  link(report ? "ended" : picture.state, report ? "report" : words[picture.state] || picture.state);
  byId("link").title = picture.why || "";
  if (!picture.status) {
    byId("empty").hidden = false;
    setText(byId("empty").querySelector("h1"), "Connecting");
    setText(byId("empty-text"), picture.why || `Asking the master at ${picture.run.address}.`);
    return;
  }
  byId("empty").hidden = true;
  byId("run").hidden = false;
  const status = { ...picture.status, nodes: objects(picture.status.nodes), shards: objects(picture.status.shards) };
  status.master = { role: "master", id: 0, state: "", waits: "", words: status.phase_words, ...status.master };
  if (view.clusterId !== status.cluster_id) view.replicated = false;
  view.replicated = view.replicated || status.shards.some((shard) => shard.standby);
  status.replicated = view.replicated;
  view.status = status;
  remember(status);
  showHead(picture, status);
  showAlarm(picture, status);
  showCurves(picture, status);
  view.cluster.update(status, performance.now() / 1000);
  setText(byId("cluster-sum"), sumOf(status));
  byId("waits-panel").hidden = report;
  showWaits(status);
  showEvents(status);
  showModel(picture, status);
  showTable(status);
  showDetails(false);
  showFacts(picture, status);
  showSettings(picture.settings || []);
  showLog(picture.log || []);
  setText(byId("foot"), `snailps ${status.version} · master at ${status.address}${picture.report ? ` · ${picture.report}` : ""}`);
}

// The last values of each process, for the small curves of its details.
function remember(status) {
  if (view.clusterId !== status.cluster_id) view.past.clear();
  view.clusterId = status.cluster_id;
  for (const node of status.nodes) {
    const name = nameOf(node);
    const past = view.past.get(name) || view.past.set(name, { rate: [], cpu: [], rss: [] }).get(name);
    for (const [key, value] of [["rate", node.rate], ["cpu", node.cpu], ["rss", node.rss_bytes]]) {
      past[key].push(value);
      if (past[key].length > KEPT) past[key].shift();
    }
    // The rate of one short block says little: the middle one of the last five does.
    const rates = past.rate.slice(-5).filter(known).sort((a, b) => a - b);
    node.rate = rates.length ? rates[Math.floor(rates.length / 2)] : null;
  }
}

// Time of day at the reader's place, with the date where that is asked for.
function clock(at_s, dated) {
  const at = new Date(1000 * at_s);
  const time = at.toLocaleTimeString("en-GB");
  if (!dated) return time;
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

const hostsOf = (status) => [...new Set([status.master, ...status.nodes].map((node) => node.host).filter(Boolean))].sort();

const titleOf = (picture, status) => status.job_name || picture.run.title || "snailps";

function showHead(picture, status) {
  const title = titleOf(picture, status);
  setText(byId("title"), title);
  setText(byId("phase"), status.phase_words);
  byId("phase").className = `phase ${PHASES[status.phase] || ""}`;
  const output = status.output || picture.run.output;
  const hosts = hostsOf(status);
  setText(byId("about"), [output && `to ${output}`, `master at ${status.address}`, known(status.began_s) && `since ${clock(status.began_s, true)}`,
    `on ${plural(hosts.length, "host")}: ${hosts.slice(0, 8).join(", ")}${hosts.length > 8 ? ", ..." : ""}`].filter(Boolean).join(" · "));
  const over = status.phase === "done";
  const share = ["survey", "training", "exporting", "loading", "done"].includes(status.phase) ? status.progress : 0;
  byId("bar-fill").style.transform = `scaleX(${share})`;
  setAttrs(byId("bar"), { "aria-valuenow": Math.floor(share * 100), class: `bar ${status.phase === "failed" ? "bad" : share === 1 && over ? "good" : ""}` });
  const eta = known(status.eta_s) ? status.eta_s : etaOf(picture, status);
  setText(byId("doing"), [share > 0 && percent(share), !over && status.pass_, known(eta) && !over && share > 0 && `${(status.pass_ || "").includes("at most") ? "at most" : "about"} ${seconds(eta)} left`,
    status.waiting_for && `waits for ${status.waiting_for}`, status.message].filter(Boolean).join(" · "));
  document.title = `${share > 0 && !over ? `${Math.floor(share * 100)}% ` : ""}${title} – snailps`;
  const unit = status.unit || "words";
  const processes = [...status.nodes, status.master];
  const busy = processes.map((node) => node.cpu).filter(known);
  const memory = processes.map((node) => node.rss_bytes).filter(known);
  const checkpoint = status.checkpoint;
  const blocks = status.blocks;
  const total = status.total_units ? ` of ${count(status.total_units)}` : "";
  tiles([
    [`${unit} a second`, count(status.units_per_s), status.rate_note],
    [`${unit} trained`, count(status.units), total.trim()],
    status.loss !== null && ["loss", decimals(status.loss), known(status.lr) && `learning rate ${decimals(status.lr)}`],
    tested(status) && [`test ${spoken(testName(status))}`, decimals(tested(status)[testName(status)]), `after ${percent(tested(status).progress)}`],
    ["time", seconds(status.elapsed_s), ""],
    [`blocks done`, blocks.done.toLocaleString("en"), `${blocks.leased.toLocaleString("en")} in work, ${blocks.left.toLocaleString("en")} left`],
    busy.length && ["cores busy", busy.reduce((a, b) => a + b, 0).toFixed(2), memory.length ? `${bytes(memory.reduce((a, b) => a + b, 0))} of memory` : ""],
    checkpoint && ["checkpoint", checkpoint.number ? String(checkpoint.number) : "none yet",
      checkpoint.writing ? "being written" : checkpoint.number ? `${percent(checkpoint.progress)}, ${known(checkpoint.age_s) ? `${seconds(checkpoint.age_s)} ago` : "of an earlier run"}` : ""],
    ["requests a second", count(status.requests_per_s), "pulls and pushes"],
  ].filter(Boolean));
}

// The last test during the training, and the name of its first figure.
const tested = (status) => (status.tests || []).at(-1);
// A label in the name of a figure, as in f1:__label__spam, stays as it is.
const spoken = (name) => name.replace(/:.*|_/gs, (part) => part === "_" ? " " : part);
const testName = (status) => Object.keys(tested(status)).find((name) => !["epoch", "progress", "at_s"].includes(name));

function tiles(wanted) {
  const list = byId("tiles");
  while (list.children.length > wanted.length) list.lastChild.remove();
  wanted.forEach(([name, value, note], i) => {
    const tile = list.children[i] || list.appendChild(el("div", {}, el("dt"), el("dd"), el("small")));
    setText(tile.children[0], name);
    setText(tile.children[1], value);
    setText(tile.children[2], note || "\u00a0");
  });
}

// Names of figures; those without one are for programs.
const FIGURES = {
  chunks: "", parts_max: "", block_words_max: "", report: "", progress: "",
  words_per_s: "words a second", examples_per_s: "examples a second", train_loss: "loss",
  survey_s: "counting, s", load_s: "loading, s", train_s: "training, s", test_s: "testing, s", export_s: "saving, s", wall_s: "in all, s",
  peak_rss_mb: "peak memory, MB", bytes_per_word: "bytes a word sent", bytes_per_example: "bytes an example sent",
  blocks_per_epoch: "blocks an epoch", vocabulary: "words in the vocabulary", ended_by: "ended by",
};

// Seconds left, by the progress of the last half minute.
function etaOf(picture, status) {
  const { at_s: at, progress } = picture.series;
  const last = at.length - 1;
  if (status.phase !== "training" || last < 3) return null;
  let first = last;
  while (first > 0 && at[last] - at[first] < 30 && progress[first - 1] !== null) first--;
  const gained = progress[last] - progress[first];
  return gained > 0 ? ((1 - status.progress) * (at[last] - at[first])) / gained : null;
}

function showAlarm(picture, status) {
  const alarm = byId("alarm");
  const losses = status.events.filter((event) => event.kind === "lost");
  const last = losses[losses.length - 1];
  let text = "", mended = false;
  if (status.phase === "failed") text = status.message || "The run failed.";
  else if (picture.state === "lost") text = `The master does not answer: ${picture.why}. The picture is the last one that it gave.`;
  else if (last && status.elapsed_s - last.at_s < 30 && status.phase !== "done") {
    text = last.text;
    mended = status.events.some((event) => event.kind === "replaced" && event.at_s >= last.at_s);
  }
  alarm.hidden = !text;
  alarm.className = `alarm ${mended ? "mended" : ""}`;
  if (text && alarm.dataset.text !== text) {
    alarm.dataset.text = text;
    alarm.replaceChildren(el("b", { "aria-hidden": "true" }, "!"), el("span", {}, text));
  }
}

function showCurves(picture, status) {
  const { series } = picture;
  const marks = status.events.filter((event) => ["lost", "replaced", "checkpoint", "master", "restored"].includes(event.kind))
    .map((event) => ({ at: event.at_s, kind: KINDS[event.kind][0] === "bad" ? "bad" : KINDS[event.kind][0] === "good" ? "good" : "note", text: event.text }))
    .sort((a, b) => (a.kind === "bad") - (b.kind === "bad")); // a loss on top of what followed at once
  const { speed, loss, cpu, memory } = view.curves;
  speed.unit = `${status.unit} a second`;
  speed.update(series.at_s, series.units_per_s, marks);
  loss.update(series.at_s, series.loss, marks);
  showTests(status, marks);
  for (const [curve, values] of [[cpu, series.cpu], [memory, series.rss_bytes]]) {
    const any = (values || []).some(known);
    curve.svg.parentNode.hidden = !any;
    if (any) curve.update(series.at_s, values, marks);
  }
}

function showTests(status, marks) {
  const tests = status.tests || [], curve = view.curves.test;
  curve.svg.parentNode.hidden = tests.length < 2;
  if (tests.length > 1) curve.update(tests.map((test) => test.at_s), tests.map((test) => test[testName(status)]), marks);
}

function sumOf(status) {
  const roles = { server: 0, worker: 0 };
  for (const node of status.nodes) if (node.role in roles) roles[node.role]++;
  const rows = status.shards.reduce((sum, shard) => sum + shard.rows, 0);
  const size = status.shards.reduce((sum, shard) => sum + shard.bytes, 0);
  const bare = status.shards.filter((shard) => !shard.standby).length;
  return [plural(roles.server, "server"), plural(roles.worker, "worker"), plural(status.shards.length, "shard"),
    rows && `${count(rows)} rows, ${bytes(size)}`, status.replicated && bare && `${bare} without a standby`].filter(Boolean).join(" · ");
}

function legend() {
  const sign = (name, ...inner) => el("li", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, ...inner), name);
  byId("legend").replaceChildren(
    sign("shard, served here", svg("rect", { class: "shard", width: 14, height: 14, rx: 3 })),
    sign("standby of a shard", svg("rect", { class: "shard standby", x: 1, y: 1, width: 12, height: 12, rx: 3 })),
    sign("standby being filled", svg("rect", { class: "shard standby moving", x: 1, y: 1, width: 12, height: 12, rx: 3 })),
    sign("waits", svg("path", { class: "flow", d: "M1 7h12" })),
    sign("a shard moves", svg("path", { class: "flow move", d: "M0 7h14" })),
  );
}

// Rows of a list, reusing its elements, so that a reader's place in it stays.
function rows(list, wanted, make, fill) {
  while (list.children.length > wanted.length) list.lastChild.remove();
  wanted.forEach((item, i) => fill(list.children[i] || list.appendChild(make()), item));
}

function showWaits(status) {
  const shown = status.waits.slice(0, 40);
  const wanted = shown.length ? shown : [null];
  const more = status.waits.length - shown.length;
  rows(byId("waits"), more > 0 ? [...wanted, more] : wanted, () => el("li", {}, el("span"), el("span")), (item, wait) => {
    const quiet = wait === null || typeof wait === "number";
    item.children[0].className = quiet ? "" : "since";
    item.children[0].hidden = quiet;
    item.children[1].className = quiet ? "quiet" : "";
    setText(item.children[0], quiet || wait.seconds < 1 ? "" : seconds(wait.seconds));
    setText(item.children[1], wait === null ? "No process waits." : quiet ? `and ${wait} more` : `${wait.who} waits for ${wait.whom}`);
  });
}

// Newest first; only new ones are added, so that they alone are spoken.
function showEvents(status) {
  const list = byId("events");
  const events = status.events;
  const key = (event) => `${event.at_s} ${event.kind} ${event.text}`;
  // A master that takes over counts anew, and the first point of the curves may come later.
  const master = `${status.cluster_id} ${status.master.pid} ${status.origin_s}`;
  if (view.eventsOf !== master) {
    view.eventsOf = master;
    view.eventKeys = new Set();
    list.replaceChildren();
  }
  for (const event of events) {
    if (view.eventKeys.has(key(event))) continue;
    view.eventKeys.add(key(event));
    const kind = (KINDS[event.kind] || ["", event.kind])[0];
    const at = known(status.began_s) ? status.began_s + event.at_s : null;
    list.prepend(el("li", { class: kind }, el("time", { title: at === null ? null : `${clock(at, true)}, ${seconds(event.at_s)} after the beginning` }, at === null ? seconds(event.at_s) : clock(at)),
      svg("svg", { viewBox: "0 0 14 14", role: "img", "aria-label": event.kind, fill: "none", stroke: "currentColor", "stroke-width": 2.4, "stroke-linecap": "round" }, svg("path", { d: SHAPES[kind] })),
      el("span", {}, event.text)));
  }
  while (list.children.length > 200) list.lastChild.remove();
  if (!list.children.length) list.append(el("li", { class: "quiet-row" }, "Nothing yet."));
  else if (list.children.length > 1) list.querySelectorAll(".quiet-row").forEach((item) => item.remove());
}

function showModel(picture, status) {
  const found = Object.entries(status.validation || {});
  byId("near-panel").hidden = !found.length;
  rows(byId("near"), found, () => el("div", {}, el("dt"), el("dd")), (item, [word, pairs]) => {
    setText(item.children[0], word);
    const text = JSON.stringify(pairs);
    if (item.dataset.text === text) return;
    item.dataset.text = text;
    item.children[1].replaceChildren(...pairs.map(([other, cosine]) => el("span", {}, `${other} `, el("small", {}, decimals(cosine)))));
    if (!pairs.length) item.children[1].textContent = "not known";
  });
  byId("words-panel").hidden = !picture.words;
  if (picture.words) {
    view.words.update(picture.words);
    const { words, sharp } = picture.words;
    setText(byId("words-note"), `${words.length} frequent words, by ${sharp ? "principal components: words used alike are near each other" : "a random projection, until some is learnt"}`);
  }
}

const COLUMNS = [
  ["process", (n) => nameOf(n)], ["host:pid", (n) => `${n.host}:${n.pid}`], ["state", stateOf],
  ["waits for", (n) => (n.waits ? `${n.waits}${n.waits_s >= 1 ? `, ${seconds(n.waits_s)}` : ""}` : "")],
  ["rate", (n) => (known(n.rate) ? `${count(n.rate)}/s` : ""), "n"],
  ["blocks", (n) => (n.role === "worker" ? n.done.toLocaleString("en") : ""), "n"],
  ["cores", (n) => (known(n.cpu) ? n.cpu.toFixed(2) : ""), "n"],
  ["memory", (n) => (known(n.rss_bytes) ? bytes(n.rss_bytes) : ""), "n"],
  ["heard", (n) => (known(n.heartbeat_s) && n.state !== "bye" ? `${n.heartbeat_s.toFixed(1)} s ago` : ""), "n"],
];

function showTable(status) {
  const table = byId("table");
  if (!table.tHead) {
    table.createTHead().append(el("tr", {}, ...COLUMNS.map(([name, , kind]) => el("th", { scope: "col", class: kind }, name))));
    table.append(el("tbody"));
  }
  byId("filter-label").hidden = status.nodes.length < 9;
  const wanted = byId("filter").value.trim().toLowerCase();
  const fits = (node) => !wanted || COLUMNS.slice(0, 4).some(([, text]) => text(node).toLowerCase().includes(wanted));
  const found = status.nodes.filter(fits);
  rows(table.tBodies[0], found.slice(0, ROWS_MAX), () => el("tr", {}, ...COLUMNS.map(([, , kind]) => el("td", { class: kind }))),
    (row, node) => COLUMNS.forEach(([, text], i) => setText(row.children[i], text(node))));
  COLUMNS.forEach(([, text], i) => {
    const bare = i > 2 && !found.some((node) => text(node));
    for (const row of table.rows) row.cells[i].hidden = bare;
  });
  setText(byId("table-more"), found.length > ROWS_MAX ? `${ROWS_MAX} of ${found.length.toLocaleString("en")} are shown: narrow them down above.` : "");
}

function showDetails(jump) {
  const panel = byId("details");
  const status = view.status;
  const node = status && [status.master, ...status.nodes].find((one) => nameOf(one) === view.picked);
  panel.hidden = !node;
  if (!node) return;
  const shards = status.shards.filter((shard) => shard.primary === node.id);
  const kept = status.shards.filter((shard) => shard.standby === node.id);
  const list = (found) => found.map((shard) => shard.shard).join(", ");
  const facts = [["host and process", `${node.host}:${node.pid}`], ["state", stateOf(node)],
    ["waits for", node.waits && `${node.waits}, ${seconds(node.waits_s)}`], [`${status.unit} a second`, known(node.rate) && count(node.rate)],
    ["blocks done", node.role === "worker" && node.done], ["at this block since", known(node.block_s) && seconds(node.block_s)],
    ["cores busy", known(node.cpu) && node.cpu.toFixed(2)], ["memory", known(node.rss_bytes) && bytes(node.rss_bytes)],
    ["last heartbeat", known(node.heartbeat_s) && `${node.heartbeat_s.toFixed(1)} s ago`], ["address", node.address],
    ["serves shards", list(shards)], ["standby of shards", list(kept)],
    ["rows", shards.length && count(shards.reduce((sum, shard) => sum + shard.rows, 0))],
    ["pulls a second", shards.length && count(shards.reduce((sum, shard) => sum + shard.pulls_per_s, 0))],
    ["pushes a second", shards.length && count(shards.reduce((sum, shard) => sum + shard.pushes_per_s, 0))],
    ["reads through the master", node.fetched && `${node.fetched} blocks`],
  ].filter(([, value]) => value || value === 0);
  const past = view.past.get(view.picked) || { rate: [], cpu: [], rss: [] };
  const sparks = [["speed", past.rate], ["cores", past.cpu], ["memory", past.rss]].filter(([, values]) => values.filter(known).length > 1);
  const close = el("button", { type: "button" }, "Close");
  close.addEventListener("click", () => view.cluster.pick(view.picked));
  const focused = panel.contains(document.activeElement);
  panel.replaceChildren(el("div", { class: "panel-head" }, el("h2", { id: "details-title" }, view.picked), close),
    el("dl", {}, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    el("div", { class: "sparks" }, ...sparks.map(([name, values]) => el("div", {}, name, spark(values)))));
  if (focused) close.focus();
  if (jump) panel.scrollIntoView({ block: "nearest" });
}

function showFacts(picture, status) {
  const about = Object.entries(picture.machine || {});
  byId("machine-panel").hidden = !about.length;
  rows(byId("machine"), about, () => el("div", {}, el("dt"), el("dd")), (item, [name, value]) => {
    setText(item.children[0], name);
    setText(item.children[1], value);
  });
  const plain = ([, value]) => ["string", "number", "boolean"].includes(typeof value);
  const figures = Object.entries(status.figures || {});
  const test = Object.entries(status.figures && status.figures.test || {}).map(([name, value]) => [`test: ${name}`, value]);
  const found = [...test, ...figures].filter(plain).filter(([name]) => FIGURES[name] !== "");
  byId("facts-panel").hidden = !found.length;
  rows(byId("facts"), found, () => el("div", {}, el("dt"), el("dd")), (item, [name, value]) => {
    setText(item.children[0], FIGURES[name] || spoken(name));
    setText(item.children[1], typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 4 }) : String(value));
  });
}

function showSettings(settings) {
  byId("settings-panel").hidden = !settings.length;
  const table = byId("settings");
  if (!table.tHead) {
    table.createTHead().append(el("tr", {}, ...["setting", "value", "from"].map((name) => el("th", { scope: "col" }, name))));
    table.append(el("tbody"));
  }
  rows(table.tBodies[0], settings, () => el("tr", {}, el("td"), el("td"), el("td")),
    (row, [key, value, origin]) => [key, value, origin].forEach((text, i) => setText(row.children[i], String(text))));
}

function showLog(lines) {
  byId("log-panel").hidden = !lines.length;
  const log = byId("log");
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  setText(log, lines.join("\n"));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

start();
