// The page to play with: what a reader chooses is `state`, and `draw` shows it. The rounds are `SCHEDULES`, which
// `cargo run -p notebook -- site` exports from crates/data-parallel-collective, and the recorded steps are `TRACE`.
"use strict";

const NAMES = Object.keys(SCHEDULES);
/** The rounds of so many members are drawn; for more there are only times and bytes. */
const DRAWN = SCHEDULES[NAMES[0]].length;
/** The members that the slider goes through. */
const MEMBERS = [...Array.from({ length: DRAWN }, (_, i) => i + 1), 32, 64, 128, 256, 512, 1024];
const state = { k: 4, bytes: 44703272, latency: 50e-6, speed: 1.25e9, algorithm: "ring", round: 1 };
let yours = null; // a schedule that the reader pasted

const $ = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const link = () => ({ latency: state.latency, speed: state.speed });
/** The chosen schedule; for more than `DRAWN` members there is none. */
const schedule = () => (state.algorithm === "yours" ? yours : SCHEDULES[state.algorithm][state.k - 1]);

/** The algorithms to compare, all for k members: their names and costs. */
function compared() {
  const { k } = state;
  const costs = (name) => (k <= DRAWN ? cost(SCHEDULES[name][k - 1]) : costOfMany(name, k));
  const all = NAMES.map((name) => ({ name, ...costs(name) }));
  return yours?.members === k ? [...all, { name: "yours", ...cost(yours) }] : all;
}

// Numbers as people read them, with three digits.
const digits = (x) => (x === 0 ? "0" : x >= 999.5 ? Math.round(x).toString() : Number(x.toPrecision(3)).toString());
function withUnit(x, units) {
  const [scale, unit] = units.find(([scale]) => x >= 0.9995 * scale) ?? units.at(-1);
  return `${digits(x / scale)} ${unit}`;
}
const showBytes = (x) => withUnit(x, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]]);
const showTime = (x) => withUnit(x, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]);
const escape = (text) => text.replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt()};`);
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const showSpeed = (x) => `${showBytes(x)}/s`;

/** The controls: a slider of powers of ten for all but k, whose slider has the places of `MEMBERS`. */
const SLIDERS = {
  k: {
    read: (place) => MEMBERS[place],
    write: (k) => MEMBERS.filter((members) => members <= k).length - 1,
    show: String,
    range: [1, MEMBERS.at(-1)],
  },
  bytes: { read: (x) => Math.round(10 ** x), write: Math.log10, show: showBytes, range: [1e3, 1e10] },
  latency: { read: (x) => 10 ** x, write: Math.log10, show: showTime, range: [0, 1e-2] },
  speed: { read: (x) => 10 ** x, write: Math.log10, show: showSpeed, range: [1e8, 1e12] },
};

/** Takes over what is written as `k=8&bytes=1e6&algorithm=ring`; what it does not name stays, what is wrong is left. */
function change(words) {
  for (const [key, word] of new URLSearchParams(words)) {
    const [low, high] = SLIDERS[key]?.range ?? [0, 1e3];
    if (key === "algorithm" && (NAMES.includes(word) || (word === "yours" && yours))) state.algorithm = word;
    else if (key !== "algorithm" && Object.hasOwn(state, key) && word !== "" && Number(word) >= low) {
      const isWhole = key !== "latency" && key !== "speed";
      state[key] = Math.min(isWhole ? Math.round(Number(word)) : Number(word), high);
    }
  }
  if (state.algorithm === "yours" && state.k !== yours.members) state.algorithm = "ring";
  draw();
  if (state.algorithm !== "yours") history.replaceState(null, "", `#${new URLSearchParams(state)}`);
}

/** Takes over the address; `#time-and-bytes` is a place on the page. */
const readAddress = () => (location.hash.includes("=") ? change(location.hash.slice(1)) : draw());

function draw() {
  if (schedule()) state.round = clamp(state.round, 0, schedule().rounds.length);
  for (const [id, { write, show }] of Object.entries(SLIDERS)) {
    $(id).value = Math.max(write(state[id]), $(id).min); // the logarithm of 0 is no value
    $(id).setAttribute("aria-valuetext", show(state[id]));
    $(`${id}-shown`).textContent = show(state[id]);
  }
  $("algorithm").innerHTML = [...NAMES, ...(yours ? ["yours"] : [])]
    .map((name) => `<option${name === state.algorithm ? " selected" : ""}>${name}</option>`)
    .join("");
  drawRound();
  const all = compared();
  drawTimes(all);
  drawCurve(all);
}

// Round by round

const ROW = { height: 20, gap: 14 };

/** The rows are members, the columns chunks. A cell has a slot for each member, full if its values are in the sum. */
function drawRound() {
  const all = schedule();
  for (const id of ["back", "round", "next"]) $(id).disabled = !all;
  $("messages-told").hidden = !all;
  if (!all) {
    $("rounds").innerHTML = "";
    $("told").textContent = `The rounds of more than ${DRAWN} members have too many cells to draw. Their times and bytes are below.`;
    return;
  }
  const { members, chunks, rounds } = all;
  const left = 26;
  const width = clamp(($("rounds").clientWidth - left) / chunks - 4, 14, 150);
  const x = (chunk) => left + chunk * (width + 4);
  const y = (member) => 20 + member * (ROW.height + ROW.gap);
  const now = held(all)[state.round];
  const sums = rounds[state.round - 1] ?? [];
  const isNew = (member, chunk) => sums.some((sum) => sum.chunk === chunk && sum.to.includes(member));
  let svg = "";
  for (let chunk = 0; chunk < chunks; chunk++) {
    svg += `<text class="soft" text-anchor="middle" x="${x(chunk) + width / 2}" y="13">${chunk}</text>`;
  }
  now.forEach((row, member) => {
    svg += `<text class="soft" x="0" y="${y(member) + 15}">${member}</text>`;
    row.forEach((sum, chunk) => (svg += cell(sum, members, x(chunk), y(member), width, isNew(member, chunk))));
  });
  for (const sum of sums) {
    for (const { from, to, chunks } of messages([sum])) {
      for (const chunk of chunks) svg += arrow(x(chunk), width, y(from), y(to));
    }
  }
  const [across, down] = [x(chunks), y(members)];
  $("rounds").innerHTML =
    `<svg width="${across}" height="${down}" role="img" aria-label="What each member holds of each chunk">` +
    `<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" ` +
    `markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>${svg}</svg>`;
  tellRound(all, sums);
}

function cell({ ranks, shown }, members, x, y, width, isNew) {
  const slot = (width - 2) / members;
  const has = new Set(ranks);
  const kind = has.size < ranks.length ? "wrong" : has.size === members ? "whole" : "part";
  const slots = [...has].map(
    (member) => `<rect class="${kind}" x="${x + 1 + member * slot}" y="${y + 1}" width="${slot}" height="18"/>`,
  );
  return (
    `<g><title>${shown}</title>${slots.join("")}` +
    `<rect class="cell${isNew ? " new" : ""}" x="${x}" y="${y}" width="${width}" height="${ROW.height}" rx="2"/></g>`
  );
}

/** From a member's cell to another's in the same column; the farther, the more it is bent. */
function arrow(x, width, from, to) {
  const down = to > from;
  const [start, end] = down ? [from + ROW.height, to - 1] : [from, to + ROW.height + 1];
  const rows = Math.abs(to - from) / (ROW.height + ROW.gap) - 1;
  const middle = x + width / 2;
  const bend = middle + (down ? 1 : -1) * Math.min(width / 2, 6 * rows);
  return `<path class="arrow" d="M${middle} ${start} Q${bend} ${(start + end) / 2} ${middle} ${end}"/>`;
}

/** The round in words: what a screen reader tells. */
function tellRound(all, sums) {
  const { rounds } = all;
  const sent = messages(sums);
  $("round").max = rounds.length;
  $("round").value = state.round;
  const cost = `${digits(roundShare(all, sums))} N through the busiest member, ${showTime(roundTime(all, sums, state.bytes, link()))}`;
  $("told").textContent =
    state.round === 0
      ? `Start: each member has its own values. Then: ${count(rounds.length, "round")}.`
      : `Round ${state.round} of ${rounds.length}: ${count(sent.length, "message")}, ${cost}.`;
  const words = ({ from, to, chunks }) => `<li>from ${from} to ${to}: chunk ${chunks.join(", ")}</li>`;
  $("messages").innerHTML = sent.map(words).join("") || "<li>none</li>";
}

// Time and bytes

function drawTimes(all) {
  const rows = all.map((of) => {
    const seconds = of.time(state.bytes, link());
    return { ...of, seconds, latency: Math.min(of.messages * state.latency, seconds) };
  });
  const most = Math.max(...rows.map(({ seconds }) => seconds), 1e-12);
  const bar = (seconds, kind) => `<span class="bar ${kind}" style="width: ${(100 * seconds) / most}%"></span>`;
  $("times").innerHTML = rows
    .map(
      ({ name, rounds, messages, share, seconds, latency }) =>
        `<tr data-name="${name}" data-seconds="${seconds}"${name === state.algorithm ? ' class="chosen"' : ""}>` +
        `<th scope="row">${name}</th><td>${rounds}</td><td>${messages}</td>` +
        `<td>${digits(share)} N</td><td>${showTime(seconds)}</td>` +
        `<td class="bars">${bar(latency, "latency")}${bar(seconds - latency, "moving")}</td></tr>`,
    )
    .join("");
}

// Which is fastest for how many bytes

const CURVE = { height: 280, left: 72, right: 56, top: 10, bottom: 30 };
let sizeAt = null; // the size at a place of the curve

function drawCurve(all) {
  const [low, high] = SLIDERS.bytes.range.map(Math.log10);
  const sizes = Array.from({ length: 71 }, (_, i) => 10 ** (low + ((high - low) * i) / 70));
  const lines = all.map(({ name, time }) => ({ name, times: sizes.map((size) => time(size, link())) }));
  const times = lines.flatMap(({ times }) => times).filter((time) => time > 0);
  const [least, most] = times.length ? [Math.min(...times), Math.max(...times)].map(Math.log10) : [-6, 0];
  const width = Math.max($("curve").clientWidth, 300);
  const { height, left, right, top, bottom } = CURVE;
  const x = (size) => left + ((Math.log10(size) - low) / (high - low)) * (width - left - right);
  const y = (time) => {
    const share = (Math.log10(Math.max(time, 10 ** least)) - least) / Math.max(most - least, 1e-9);
    return height - bottom - share * (height - top - bottom);
  };
  sizeAt = (at) => 10 ** clamp(low + ((at - left) / (width - left - right)) * (high - low), low, high);
  let svg = "";
  for (let power = low; power <= high; power += width < 500 ? 2 : 1) {
    svg += gridLine(x(10 ** power), top, x(10 ** power), height - bottom);
    svg += `<text class="soft" text-anchor="middle" x="${x(10 ** power)}" y="${height - 10}">${showBytes(10 ** power)}</text>`;
  }
  for (let power = Math.ceil(least); power <= most; power++) {
    svg += gridLine(left, y(10 ** power), width - right, y(10 ** power));
    svg += `<text class="soft" text-anchor="end" x="${left - 6}" y="${y(10 ** power) + 5}">${showTime(10 ** power)}</text>`;
  }
  const labels = labelPlaces(lines.map(({ name, times }) => ({ name, y: y(times.at(-1)) })));
  for (const { name, times } of lines) {
    const points = times.map((time, i) => `${x(sizes[i]).toFixed(1)},${y(time).toFixed(1)}`);
    svg += `<g class="${name}" style="--line: var(--${name})"><polyline class="line" points="${points.join(" ")}"/>`;
    svg += `<text x="${width - right + 5}" y="${labels[name] + 5}">${name}</text></g>`;
  }
  svg += `<line class="here" x1="${x(state.bytes)}" x2="${x(state.bytes)}" y1="${top}" y2="${height - bottom}"/>`;
  $("curve").innerHTML =
    `<svg width="${width}" height="${height}" role="img" aria-label="Time of each algorithm by the bytes">${svg}</svg>`;
  $("crossover").textContent = crossovers(sizes, lines);
}

const gridLine = (x1, y1, x2, y2) => `<line class="grid" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;

/** Where names stand beside the ends of their lines, one below the other. */
function labelPlaces(ends) {
  const places = {};
  let last = -Infinity;
  for (const { name, y } of [...ends].sort((a, b) => a.y - b.y)) places[name] = last = Math.max(y, last + 17);
  return places;
}

/** From which sizes on which algorithms are the fastest. Between two sizes, a time grows evenly. */
function crossovers(sizes, lines) {
  if (state.k === 1) return "One member has nothing to sum.";
  const fastest = (i) => lines.filter(({ times }) => lines.every((b) => times[i] <= b.times[i] * (1 + 1e-6)));
  const names = (i) => fastest(i).map(({ name }) => name).join(" and ");
  let words = `The fastest: ${names(0)}`;
  for (let i = 1; i < sizes.length; i++) {
    if (names(i) === names(i - 1)) continue;
    const [old, now] = [fastest(i - 1)[0], fastest(i)[0]].map(({ times }) => times);
    const [before, after] = [now[i - 1] - old[i - 1], old[i] - now[i]];
    const size = sizes[i - 1] + ((sizes[i] - sizes[i - 1]) * before) / (before + after || 1);
    words += `, from ${showBytes(size)} on ${names(i)}`;
  }
  return `${words}.`;
}

// Your own schedule

function paste() {
  let data = null;
  try {
    data = JSON.parse($("json").value);
  } catch (error) {
    $("pasted").textContent = `This is no JSON: ${error.message}`;
    return;
  }
  const wrong = mistake(data);
  $("pasted").textContent = wrong ?? notAnAllReduce(data) ?? "It is an all-reduce.";
  if (wrong) return;
  $("round-by-round").scrollIntoView();
  yours = data;
  Object.assign(state, { k: data.members, algorithm: "yours", round: 0 });
  draw();
}

// Recorded steps

let trace = null; // { lanes, spans, end }, in µs
let view = null; // the part of it that is shown

/** The lanes and spans of a trace of Chrome's format. */
function readTrace(data) {
  const events = data?.traceEvents ?? [];
  const lanes = events.filter(({ name }) => name === "thread_name").map(({ tid, args }) => ({ tid, name: args.name }));
  const spans = events.filter(({ ph }) => ph === "X");
  const end = Math.max(...spans.map(({ ts, dur }) => ts + dur));
  if (!(end > 0) || lanes.length === 0) throw new Error("it has no spans");
  return { lanes, spans, end };
}

function drawTrace() {
  const [begin, end] = view;
  const width = Math.max($("trace").clientWidth, 300);
  const x = (us) => ((us - begin) / (end - begin)) * width;
  let svg = "";
  trace.lanes.forEach(({ name, tid }, i) => {
    const top = 46 * i;
    svg += `<text class="soft" x="2" y="${top + 14}">${escape(name)}</text>`;
    for (const span of trace.spans.filter((span) => span.tid === tid && span.ts + span.dur > begin && span.ts < end)) {
      svg += spanBox(span, Math.max(x(span.ts), -5), Math.min(x(span.ts + span.dur), width + 5), top + 19);
    }
  });
  $("trace").innerHTML = `<svg width="${width}" height="${46 * trace.lanes.length}" role="img" aria-label="Recorded steps">${svg}</svg>`;
  $("trace-told").textContent = `${showTime((end - begin) / 1e6)} are shown, from ${showTime(begin / 1e6)} on.`;
}

function spanBox({ name, ts, dur }, left, right, y) {
  const width = Math.max(right - left - 0.5, 0.5);
  const kind = name.replace(/[^a-z]/g, "");
  const inner = ["sum", "wait"].includes(name) ? [y + 11, 11] : [y, 22];
  const words = `${escape(name)}: ${showTime(dur / 1e6)}, from ${showTime(ts / 1e6)} on`;
  const label = width > 8 * name.length + 6 && inner[1] > 11 ? `<text x="${left + 4}" y="${y + 15}">${escape(name)}</text>` : "";
  return (
    `<g><title>${words}</title><rect class="span ${kind}" x="${left}" y="${inner[0]}" width="${width}" ` +
    `height="${inner[1]}" data-words="${words}"/>${label}</g>`
  );
}

/** Shows `factor` times as much time, around a share of the width; then moves by a share. */
function zoom(factor, around = 0.5, move = 0) {
  const length = clamp((view[1] - view[0]) * factor, 10, trace.end);
  const middle = view[0] + (view[1] - view[0]) * around;
  const begin = clamp(middle - length * around + length * move, 0, trace.end - length);
  view = [begin, begin + length];
  drawTrace();
}

function showTrace(data) {
  trace = readTrace(data);
  view = [0, trace.end];
  drawTrace();
}

async function openTrace(file) {
  if (!file) return;
  try {
    showTrace(JSON.parse(await file.text()));
  } catch (error) {
    $("trace-told").textContent = `${file.name} is no trace: ${error.message}`;
  }
}

const KEYS = { "+": [0.5], "=": [0.5], "-": [2], ArrowLeft: [1, 0.5, -0.2], ArrowRight: [1, 0.5, 0.2], 0: [Infinity] };

/** Where on an element a pointer is, as a share of its width. */
const shareOf = (event, element) => {
  const box = element.getBoundingClientRect();
  return clamp((event.clientX - box.left) / box.width, 0, 1);
};

function listen() {
  $("k").max = MEMBERS.length - 1;
  $("play").addEventListener("keydown", (event) => event.stopPropagation()); // mdBook's arrows turn the page
  for (const [id, { read }] of Object.entries(SLIDERS)) {
    $(id).addEventListener("input", () => change({ [id]: read(Number($(id).value)) }));
  }
  $("algorithm").addEventListener("change", () => {
    if ($("algorithm").value === "yours") state.k = yours.members;
    change({ algorithm: $("algorithm").value, round: 0 });
  });
  $("round").addEventListener("input", () => change({ round: $("round").value }));
  $("back").addEventListener("click", () => change({ round: state.round - 1 }));
  $("next").addEventListener("click", () => change({ round: state.round + 1 }));
  $("show").addEventListener("click", paste);
  for (const button of document.querySelectorAll("[data-state]")) {
    button.addEventListener("click", () => change(button.dataset.state));
  }
  const curve = $("curve");
  const point = (event) => event.buttons && change({ bytes: sizeAt(event.clientX - curve.getBoundingClientRect().left) });
  curve.addEventListener("pointerdown", point);
  curve.addEventListener("pointermove", point);
  listenToTrace();
  window.addEventListener("hashchange", readAddress);
  new ResizeObserver(() => (draw(), drawTrace())).observe($("curve"));
}

function listenToTrace() {
  const box = $("trace");
  for (const button of document.querySelectorAll("[data-key]")) {
    button.addEventListener("click", () => zoom(...KEYS[button.dataset.key]));
  }
  box.addEventListener("keydown", (event) => {
    if (event.key in KEYS && !event.ctrlKey && !event.altKey && !event.metaKey) (zoom(...KEYS[event.key]), event.preventDefault());
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== box) return; // else the page moves
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, shareOf(event, box));
  }, { passive: false });
  box.addEventListener("pointermove", (event) => {
    const share = event.movementX / box.clientWidth;
    if (event.buttons === 1) zoom(1, 0.5, -share);
    else if (event.target.dataset.words) $("trace-told").textContent = event.target.dataset.words;
  });
  $("trace-file").addEventListener("change", () => openTrace($("trace-file").files[0]));
}

listen();
readAddress();
showTrace(TRACE);
