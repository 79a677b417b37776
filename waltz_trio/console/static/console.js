// Draws what the server says. No rule about the cluster lives here: levels, states and findings come ready to show.
"use strict";

const TABS = ["overview", "partitions", "log", "clients"];
const byId = (id) => document.getElementById(id);
let page = null;
let heardAt = 0;
let shownLog = null;

// Everything that a peer wrote goes through here, as text and never as markup.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

function drawing(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// A redraw must not take the focus, nor what somebody is just marking to copy.
function fill(id, children) {
  const place = byId(id);
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
  const focus = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...children);
  if (focus) {
    const again = [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus);
    if (again) again.focus({ preventScroll: true });
  }
}

const grouped = (number) => (number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US"));
const rate = (number) => (number >= 100 ? grouped(Math.round(number)) : String(number));
const milliseconds = (number) => (number === null || number === undefined ? "–" : `≤ ${grouped(number)} ms`);

function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; number >= 1024 && unit < units.length - 1; unit++) number /= 1024;
  return `${number >= 100 || unit === 0 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

function duration(value) {
  const seconds = Math.round(value / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

const worst = (rows) => (rows.some((row) => row.level === "bad") ? "bad" : rows.some((row) => row.level === "warn") ? "warn" : "ok");

// ---- overview ---------------------------------------------------------------------------------

function command(text, of) {
  const copy = element("button", { type: "button", "data-key": `copy ${of} ${text}`, onclick: () => copyText(text, copy) }, "Copy");
  return element("div", { class: "command" }, element("code", {}, text), copy);
}

function finding(row, kind) {
  const only = row.commands.length === 1 && row.commands[0] === row.advice;
  return element("div", { class: `finding ${kind}` },
    element("b", {}, row.cause),
    row.settles ? element("span", { class: "dim" }, "may end by itself") : null,
    element("p", {}, row.evidence),
    only ? null : element("p", { class: "dim" }, `→ ${row.advice}`),
    ...row.commands.map((one) => command(one, row.evidence)),
    row.follows.length ? element("ul", {}, ...row.follows.slice(0, 5).map((one) => element("li", {}, `${one.cause}: ${one.evidence}`)),
      row.follows.length > 5 ? element("li", {}, `${row.follows.length - 5} more`) : null) : null);
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Press Ctrl+C";
    document.getSelection().selectAllChildren(button.previousElementSibling);
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function drawFindings() {
  const rows = page.findings.map((row) => finding(row, row.settles ? "settles" : ""));
  if (!rows.length) {
    rows.push(element("div", { class: "finding well" }, element("b", {}, "Nothing is wrong"),
      element("span", { class: "dim" }, `${page.cluster.partitions} partitions, ${page.servers.length} servers, ${page.storages.length} storage nodes`)));
  }
  fill("findings", rows);
  fill("notices", page.notices.length ? [element("h2", {}, "To decide"), ...page.notices.map((row) => finding(row, "note"))] : []);
}

function tile(label, value) {
  return element("div", { class: "tile" }, element("span", {}, label), element("strong", {}, value));
}

function drawTotals() {
  const ready = page.partitions.filter((row) => row.state === "ready").length;
  fill("totals", [
    tile("commits / s", rate(page.totals.commits)),
    tile("latency, half of appends", milliseconds(page.totals.p50_ms)),
    tile("latency, 99 %", milliseconds(page.totals.p99_ms)),
    tile("refused for locks / s", rate(page.totals.refused)),
    tile("partitions ready", `${ready} of ${page.cluster.partitions}`),
  ]);
}

function plot(title, times, series, unit) {
  const known = series.flatMap((one) => one.values.filter((value) => value !== null));
  const top = Math.max(...known, 1e-9);
  const begin = times[0], span = Math.max(times[times.length - 1] - begin, 1);
  const svg = drawing("svg", { viewBox: "0 0 300 90", preserveAspectRatio: "none", role: "img", "aria-label": title });
  svg.append(drawing("line", { class: "base", x1: 0, x2: 300, y1: 89, y2: 89 }));
  series.forEach((one, number) => {
    let path = "", area = "", pen = false, from = 0, x = 0;
    one.values.forEach((value, index) => {
      if (value === null) { if (pen) area += `L${x},89L${from},89Z`; pen = false; return; }
      x = ((times[index] - begin) / span * 300).toFixed(1);
      const y = (88 - value / top * 84).toFixed(1);
      path += `${pen ? "L" : "M"}${x},${y}`;
      area += `${pen ? "L" : "M"}${x},${y}`;
      if (!pen) from = x;
      pen = true;
    });
    if (pen) area += `L${x},89L${from},89Z`;
    if (number === 0 && area) svg.append(drawing("path", { class: "area", d: area }));
    if (path) svg.append(drawing("path", { class: number ? "second" : "first", d: path }));
  });
  const keys = series.length > 1 ? [element("span", { class: "key" }, `— ${series[0].name} `), element("span", { class: "key two" }, `— ${series[1].name}`)] : [];
  return element("div", { class: "plot" },
    element("h3", {}, element("span", {}, title, " ", ...keys), element("span", {}, known.length ? `top ${rate(Math.round(top * 10) / 10)} ${unit}` : "")),
    svg, element("span", { class: "dim" }, times.length > 1 ? `last ${duration(span)}` : "…"));
}

function drawPlots() {
  const past = page.history;
  fill("plots", [
    plot("Commits per second", past.at_ms, [{ name: "commits", values: past.commits }], "/s"),
    plot("Latency of appends", past.at_ms, [{ name: "half", values: past.p50_ms }, { name: "99 %", values: past.p99_ms }], "ms"),
    plot("Refused for locks", past.at_ms, [{ name: "refused", values: past.refused }], "/s"),
  ]);
}

function node(name, row, facts) {
  return element("div", { class: `node ${row.level}`, "data-node": name, "data-level": row.level },
    element("div", { class: "title" }, element("span", { class: "dot" }), element("span", {}, name), element("span", { class: "state" }, row.state)),
    ...facts.filter((fact) => fact).map((fact) => element("div", { class: "facts" }, fact)));
}

function drawNodes() {
  const gateways = page.gateways.map((row) => node(row.name, row, ["gateway", ...row.trouble]));
  fill("servers", [...(page.servers.length ? page.servers.map((row) => node(row.name, row, [
    `${row.kind} ${row.id} · partitions ${ranges(row.partitions) || "none"}`,
    row.connections === null ? "" : `${row.connections} connections`,
    ...row.trouble])) : [element("p", { class: "dim" }, "No server is registered.")]), ...gateways]);
  fill("storages", page.storages.map((row) => node(row.name, row, [
    row.replicas === null ? "" : `${row.replicas} replicas · ${bytes(row.disk_free)} free`,
    ...row.trouble])));
  fill("zookeeper", [node("ZooKeeper", { level: page.zookeeper.level, state: page.zookeeper.level === "ok" ? "connected" : "away" },
    [page.zookeeper.level === "ok" ? page.cluster.root : page.zookeeper.text])]);
}

function drawSquares() {
  fill("squares", page.partitions.map((row) => element("button", {
    type: "button", class: row.level, "data-key": `square ${row.id}`, "aria-label": `partition ${row.id}: ${row.state}`, title: `${row.state}, ${rate(row.rate)} commits/s`,
    onclick: () => { show("partitions"); const card = byId(`partition-${row.id}`); if (card) card.scrollIntoView({ block: "start" }); },
  }, String(row.id))));
}

// ---- partitions -------------------------------------------------------------------------------

function fact(label, value) {
  return element("div", {}, element("span", {}, label), value);
}

function replica(row) {
  return element("div", { class: `replica ${row.level}` },
    element("span", { class: `dot ${row.level}` }), element("span", { class: "where" }, row.storage),
    element("span", { class: `pill ${row.level}` }, row.state),
    element("span", {}, row.max_id === null ? "" : `ends at ${grouped(row.max_id)}`),
    element("span", { class: "dim" }, row.lag ? `${grouped(row.lag)} behind` : ""),
    row.reason ? element("span", { class: "dim" }, row.reason) : null);
}

function archived(row) {
  return row.end ? `${grouped(row.end - 1)}${row.lag ? `, ${grouped(row.lag)} wait` : ""}` : `nothing, ${grouped(row.lag)} wait`;
}

function drawPartitions() {
  fill("partition-rows", page.partitions.map((row) => element("div", { class: `card ${row.level}`, id: `partition-${row.id}` },
    element("div", { class: "title" }, element("span", { class: "dot" }), `Partition ${row.id}`, element("span", { class: "state" },
      row.since_ms === null ? row.state : `${row.state} for ${duration(row.since_ms)}`)),
    row.waits_for ? element("p", { class: "waits" }, `Waits for: ${row.waits_for}`) : null,
    element("div", { class: "facts-grid" },
      fact("owner", row.owner || "none"), fact("session", grouped(row.session)), fact("generation", grouped(row.generation)),
      fact("committed up to", grouped(row.mark)), fact("commits / s", rate(row.rate)), fact("99 % within", milliseconds(row.p99_ms)),
      fact("refused / s", rate(row.refused)), fact("queued · in flight", `${grouped(row.queued)} · ${grouped(row.pending)}`),
      fact("feeds live · behind", `${grouped(row.live_feeds)} · ${grouped(row.lagging_feeds)}`),
      fact("sound replicas", `${row.sound_replicas} of ${row.replicas.length}, needs ${row.needed_replicas}`),
      row.archive ? fact("archived up to", archived(row.archive)) : null,
      row.archive ? fact("log begins at", grouped(row.archive.log_start)) : null),
    row.archive && row.archive.trouble ? element("p", { class: "waits" }, `Archive: ${row.archive.trouble}`) : null,
    ...row.replicas.map(replica),
    element("p", {}, element("button", { type: "button", "data-key": `log ${row.id}`, onclick: () => { byId("log-partition").value = row.id; byId("log-first").value = ""; show("log"); readLog(); } }, "Read its log")))));
}

// ---- log --------------------------------------------------------------------------------------

function indented(text) {
  // Layout only: numbers stay the characters that they are, for 0.10 is not 0.1 to whoever counts money.
  let out = "", depth = 0, quoted = false;
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (quoted) {
      out += sign;
      if (sign === "\\") out += text[++at];
      else if (sign === '"') quoted = false;
    } else if (sign === '"') { quoted = true; out += sign; }
    else if (sign === "{" || sign === "[") out += sign + "\n" + "  ".repeat(++depth);
    else if (sign === "}" || sign === "]") out += "\n" + "  ".repeat(--depth) + sign;
    else if (sign === ",") out += sign + "\n" + "  ".repeat(depth);
    else if (sign === ":") out += ": ";
    else if (!/\s/.test(sign)) out += sign;
  }
  return out.replace(/([\[{])\s*\n\s*([\]}])/g, "$1$2");
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.slice(at, at + 16)];
    const digits = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const signs = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}

function payload(row, form) {
  const data = Uint8Array.from(atob(row.data), (sign) => sign.charCodeAt(0));
  if (!data.length) return "(no payload)";
  if (form === "hex") return hex(data);
  let text = null;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { /* no text, or cut within a character */ }
  if (text === null && row.size > data.length) {
    text = new TextDecoder("utf-8").decode(data.slice(0, -4));
    if (text.includes("\ufffd")) text = null;
  }
  if (form !== "text" && text !== null && row.size === data.length) {
    try { JSON.parse(text); return text.length <= 100 ? text : indented(text); } catch { if (form === "json") return `(no JSON)\n${text}`; }
  }
  if (text !== null && (form !== "auto" || !/[\u0000-\u0008\u000e-\u001f]/.test(text))) return text;
  return form === "auto" ? hex(data) : `(no ${form === "json" ? "JSON" : "text"})\n${hex(data)}`;
}

function locksOf(row) {
  if (!row.locks) return [];
  const kinds = ["write", "read", "append"].filter((kind) => row.locks[kind].length);
  const taken = kinds.map((kind) => `${kind} ${row.locks[kind].join(", ")}`).join(" · ");
  return [element("div", { class: "locks" }, taken ? `${taken}; decided at mark ${grouped(row.locks.mark)}` : "no locks")];
}

function drawLog() {
  const form = byId("log-form-of").value;
  if (!shownLog) return;
  if (shownLog.problem) {
    byId("log-about").textContent = shownLog.problem;
    fill("log-rows", []);
    return;
  }
  const { records, log_start, high_water_mark, partition } = shownLog;
  byId("log-about").textContent = high_water_mark < 0 ? `Partition ${partition} is empty.` :
    `Partition ${partition} holds ${grouped(log_start)} to ${grouped(high_water_mark)}` + (records.length ? "." : "; none of them is in this range.");
  if (shownLog.journal_problem) byId("log-about").textContent += ` Locks are not shown: ${shownLog.journal_problem}.`;
  fill("log-rows", records.map((row) => element("div", { class: "record" },
    element("div", { class: "head" }, element("b", {}, grouped(row.id)), element("span", {}, `header ${row.header}`), element("span", {}, `client ${row.client}`),
      element("span", {}, row.size > 4096 ? `${bytes(row.size)}, the first 4 KiB shown` : `${grouped(row.size)} bytes`)),
    ...locksOf(row), element("pre", {}, payload(row, form)))));
}

async function readLog() {
  const query = new URLSearchParams({ partition: byId("log-partition").value.trim(), first: byId("log-first").value.trim(), count: byId("log-count").value.trim() });
  byId("log-about").textContent = "Reading…";
  try {
    const answer = await fetch(`log.json?${query}`);
    const kind = answer.headers.get("content-type") || "";
    shownLog = kind.includes("json") ? await answer.json() : { problem: `${answer.status} ${answer.statusText}` };
  } catch (error) {
    shownLog = { problem: `The console does not answer: ${error.message}` };
  }
  drawLog();
}

function turn(direction) {
  if (!shownLog || shownLog.problem) { readLog(); return; }
  const count = Math.max(1, Number(byId("log-count").value) || 20);
  const length = shownLog.records.length;
  const first = direction < 0 ? Math.max(shownLog.log_start, 0, shownLog.first - count) : Math.min(shownLog.first + Math.max(length, 1), Math.max(shownLog.high_water_mark, 0));
  byId("log-first").value = first;
  readLog();
}

// ---- clients and locks ------------------------------------------------------------------------

function table(heads, rows, empty) {
  if (!rows.length) return element("p", { class: "dim" }, empty);
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map(([head, number]) => element("th", { class: number ? "number" : null }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, index) => element("td", { class: heads[index][1] ? "number" : null }, String(cell)))))));
}

function drawClients() {
  fill("client-rows", [table([["client"], ["server"], ["behind", true]], page.clients.map((row) => [row.client, row.server, grouped(row.lag)]), "No client is mounted, or the servers do not tell.")]);
  fill("lock-rows", [table([["partition"], ["lock hash"], ["refused / s", true], ["refused so far", true]],
    page.hot_locks.map((row) => [row.partition, row.hash, rate(row.rate), grouped(row.refused)]), "No append was refused for a lock, as far as clients ask for the reason.")]);
}

// ---- all --------------------------------------------------------------------------------------

function draw() {
  if (!page) return;
  byId("name").textContent = page.cluster.name || "Waltz";
  byId("root").textContent = page.cluster.root;
  const level = page.problem ? "bad" : page.findings.some((row) => !row.settles) ? "bad" : worst([...page.servers, ...page.storages, ...page.gateways, ...page.partitions]);
  byId("lamp").className = `lamp ${level}`;
  byId("lamp").setAttribute("aria-label", { ok: "all is well", warn: "something needs time", bad: "something is wrong" }[level]);
  document.title = `${level === "ok" ? "" : level === "warn" ? "△ " : "● "}${page.cluster.name || "Waltz"}`;
  drawFindings(); drawTotals(); drawPlots(); drawNodes(); drawSquares(); drawPartitions(); drawClients();
  byId("seen").textContent = `Seen at ${new Date(page.at_ms).toLocaleTimeString()}.`;
}

function drawLive() {
  const age = Math.round((Date.now() - heardAt) / 1000);
  const old = heardAt > 0 && age > 8;
  byId("live").textContent = !heardAt ? "connecting…" : old ? `no news for ${age} s` : "live";
  document.body.classList.toggle("old", old);
}

function show(name) {
  for (const tab of TABS) {
    const chosen = tab === name;
    byId(tab).hidden = !chosen;
    const button = byId(`tab-${tab}`);
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  if (name === "log" && !shownLog) readLog();
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("waltz-theme", root.dataset.theme); } catch { /* kept for this page only */ }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.target.getAttribute("role") === "tab" && /^Arrow(Left|Right)$/.test(event.key)) {
    const at = TABS.indexOf(event.target.id.slice(4)) + (event.key === "ArrowRight" ? 1 : TABS.length - 1);
    const next = TABS[at % TABS.length];
    show(next);
    byId(`tab-${next}`).focus();
  } else if (typing) {
    if (event.key === "Escape") event.target.blur();
  } else if (/^[1-4]$/.test(event.key)) show(TABS[event.key - 1]);
  else if (event.key === "t") turnTheme();
  else if (event.key === "/") { event.preventDefault(); show("log"); byId("log-first").focus(); }
}

function start() {
  try { const kept = localStorage.getItem("waltz-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* as the system says */ }
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => show(tab));
  byId("theme").addEventListener("click", turnTheme);
  byId("log-form").addEventListener("submit", (event) => { event.preventDefault(); readLog(); });
  byId("log-form-of").addEventListener("change", drawLog);
  byId("log-older").addEventListener("click", () => turn(-1));
  byId("log-newer").addEventListener("click", () => turn(1));
  document.addEventListener("keydown", onKey);
  show(TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "overview");
  const events = new EventSource("events");
  events.addEventListener("message", (event) => { page = JSON.parse(event.data); heardAt = Date.now(); draw(); drawLive(); });
  setInterval(drawLive, 1000);
}

start();
