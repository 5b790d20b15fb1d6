// The page: asks the server once a second, keeps the last minutes, and shows the moment that is looked at.

import { json, key, Refusal, text as textOf } from "./api.js";
import { Chart } from "./chart.js";
import { ramp, scales } from "./colours.js";
import { clock, counted, duration, tokens } from "./format.js";
import { History } from "./history.js";
import { Icicle } from "./icicle.js";
import { Outline } from "./outline.js";
import * as panels from "./panels.js";
import { histograms } from "./prometheus.js";
import { NodeSessions } from "./sessions.js";
import { findings, requestsTable, sessionsTable } from "./tables.js";
import { Texts } from "./texts.js";

const EVERY_MS = 1000;
const LABELLED = 40;
const LISTED = 40;
const REQUESTS_EVERY_MS = 2500;
const DOCTOR_EVERY_MS = 15000;
const byId = (id) => document.getElementById(id);

const history = new History();
const texts = new Texts((node) => textCame(node));
const sessions = new NodeSessions(showCardOf);
const icicle = new Icicle(byId("tree"), { hover: showCard, enter: goInto, leave: goBack, select: say });
const charts = {
  hits: new Chart(byId("chart-hits"), {
    series: [{ name: "reused", colour: "hit" }], unit: (value) => `${Math.round(value)}%`, most: 100, empty: "no prompts in this time",
  }),
  ttft: new Chart(byId("chart-ttft"), {
    series: [{ name: "hit", colour: "hit" }, { name: "partial", colour: "partial" }, { name: "miss", colour: "miss" }],
    unit: duration, isTime: true, least: 0.05, empty: "no first tokens yet",
  }),
  queue: new Chart(byId("chart-queue"), {
    series: [{ name: "running", colour: "run" }, { name: "waiting", colour: "wait" }], unit: (value) => tokens(value), least: 4, empty: "nothing yet",
  }),
  belt: new Chart(byId("chart-belt"), {
    series: [{ name: "next victim unused for", colour: "miss" }, { name: "belt", colour: "run" }], unit: duration, isTime: true, least: 10, empty: "nothing can be evicted yet",
  }),
};

let places = [{ name: "All", page: null }];
let looked = null; // the moment that is looked at; null: the latest
let shown = null;
let hovering = { i: -1, x: 0, y: 0 };
let failedAt = null;
let wantsKey = false; // nothing more is asked until there is another key
const latestTtft = { at: 0, value: new Map() };

// --- asking

async function poll() {
  if (!document.hidden && !wantsKey) {
    try {
      await take();
      failedAt = null;
    } catch (error) {
      failed(error);
    }
  }
  setTimeout(poll, EVERY_MS);
}

async function take() {
  const { page } = places[places.length - 1];
  const asked = [json(page == null ? "tree" : `tree?under=${page}`)];
  if (performance.now() - latestTtft.at > 1900) asked.push(textOf("metrics"));
  const [tree, metrics] = await Promise.all(asked);
  if (metrics != null) {
    latestTtft.at = performance.now();
    latestTtft.value = histograms(metrics, "axil_time_to_first_token_seconds", "reuse");
  }
  texts.mayRead = tree.may_read_text;
  const outline = new Outline(tree);
  if (!outline.count && page != null) return goTo(0); // what was looked into is not cached any more
  history.add({ at: tree.at, outline, stats: tree.stats, ttft: latestTtft.value });
  show();
}

function failed(error) {
  failedAt ??= Date.now() / 1000;
  const isKey = error instanceof Refusal && [401, 403].includes(error.status);
  state("lost", isKey ? "this server wants a key" : error instanceof Refusal ? error.message : `no answer since ${clock(failedAt)}`);
  wantsKey = isKey;
  if (isKey && !byId("key-dialog").open) byId("key-dialog").showModal();
  if (!history.moments.length) empty("Nothing to show yet", isKey ? "Give a key to see what is cached." : "The server doesn’t answer, or is loading its model. This page keeps asking.");
}

// Asks for what a server may lack; its card is shown once there is an answer.
async function learnOf(path, cardId, fill, everyMs) {
  if (!document.hidden && !looked && !wantsKey) {
    try {
      fill(await json(path));
      byId(cardId).hidden = false;
    } catch {
      byId(cardId).hidden = true;
    }
  }
  setTimeout(learnOf, everyMs, path, cardId, fill, everyMs);
}

function fillRequests({ requests }) {
  byId("requests").replaceChildren(...requestsTable(requests));
  byId("requests-note").textContent = requests.length ? `the latest ${requests.length}` : "";
}

function fillSessions({ sessions: all }) {
  byId("sessions").replaceChildren(...sessionsTable(all.slice(0, LISTED)));
  byId("sessions-note").textContent = all.length ? `the latest of ${counted(all.length, "session")}` : "";
}

function fillDoctor(diagnosis) {
  byId("doctor").replaceChildren(...findings(diagnosis));
  byId("doctor-note").textContent = `of the last ${counted(diagnosis.requests, "prompt")}`;
}

// --- showing

function show() {
  const latest = history.moments[history.moments.length - 1];
  const moment = looked ?? latest;
  if (!moment) return;
  if (moment !== shown || looked == null) {
    if (moment.outline !== shown?.outline) icicle.show(moment.outline);
    byId("tiles").replaceChildren(...panels.tiles(moment));
    shown = moment;
  }
  byId("tree-sum").textContent = `${counted(moment.outline.sum, "token")} in ${counted(moment.outline.numNodes, "node")}`;
  if (moment.outline.sum) byId("tree-empty").hidden = true;
  else empty("Nothing is cached yet", "Send a prompt: what it leaves in the cache appears here, and grows with each request.");
  drawCharts(latest, looked);
  drawScrubber(latest);
  if (!looked && failedAt == null) state("live", "live");
  if (looked) state("past", `${duration(latest.at - looked.at)} ago`);
  if (icicle.hovered !== hovering.i) hovering.i = icicle.hovered;
  showCard(hovering.i, hovering.x, hovering.y);
  texts.want(moment.outline, icicle.widest(LABELLED));
}

function drawCharts(latest, cursor) {
  const points = (values) => history.moments.map((moment) => ({ at: moment.at, values: values(moment) }));
  const at = cursor?.at ?? null;
  charts.hits.show(points(({ figures }) => [figures.hitRate == null ? null : figures.hitRate * 100]), latest.at, at);
  charts.ttft.show(points(({ figures: { ttft } }) => [ttft.hit, ttft.partial, ttft.miss]), latest.at, at);
  charts.queue.show(points(({ stats }) => [stats.num_running, stats.num_waiting]), latest.at, at);
  charts.belt.show(points(({ figures }) => [figures.nextVictimS, figures.beltS]), latest.at, at);
}

function drawScrubber(latest) {
  const scrub = byId("scrub");
  const last = history.moments.length - 1;
  scrub.max = String(last);
  scrub.value = String(looked ? history.moments.indexOf(looked) : last);
  byId("live").setAttribute("aria-pressed", String(!looked));
  const moment = looked ?? latest;
  const said = looked ? `${clock(moment.at)}, ${duration(latest.at - moment.at)} ago` : `${clock(moment.at)}, now`;
  byId("scrub-time").textContent = said;
  scrub.setAttribute("aria-valuetext", said);
}

function state(is, said) {
  byId("state").dataset.is = is;
  if (byId("state").textContent !== said) byId("state").textContent = said;
}

function empty(title, said) {
  const box = byId("tree-empty");
  box.hidden = false;
  const bold = document.createElement("b");
  bold.textContent = title;
  box.replaceChildren(bold, said);
}

function showCard(i, x, y) {
  hovering = { i, x, y };
  const card = byId("hover");
  const { outline } = icicle;
  if (i < 0 || !outline) {
    card.hidden = true;
    return;
  }
  card.replaceChildren(...panels.nodeCard(outline, i, texts.of(outline, i), sessions.of(outline, i)));
  card.hidden = false;
  const left = x + 16 + card.offsetWidth > icicle.width ? x - 16 - card.offsetWidth : x + 16;
  card.style.left = `${Math.max(6, Math.min(left, icicle.width - card.offsetWidth - 6))}px`;
  card.style.top = `${y + 18}px`;
}

// What was selected is said to those who don't see it, and shown beside it.
function say(i) {
  if (i < 0) {
    byId("selected").textContent = "";
    showCard(-1);
    return;
  }
  const { outline } = icicle;
  const { left, top } = icicle.box(i);
  icicle.hovered = i;
  showCard(i, Math.max(0, left), top + 8);
  byId("selected").textContent = byId("hover").textContent;
}

function textCame(node) {
  const known = texts.known.get(node);
  if (known?.text) icicle.labels.set(node, known.text.replace(/<\|[^|]*\|>/g, " ").replace(/\s+/g, " ").trim());
  icicle.draw();
  showCardOf(node);
}

function showCardOf(node) {
  if (hovering.i >= 0 && icicle.outline && icicle.outline.key(hovering.i) === node) showCard(hovering.i, hovering.x, hovering.y);
}

// --- going about

function goInto(i) {
  const { outline } = icicle;
  const node = outline.isFolded(i) ? outline.above[i] : i;
  if (node < 0 || outline.isRoot(node)) return icicle.lookAt(i, 1);
  if (outline.page[node] === places[places.length - 1].page) return icicle.zoomAll();
  const name = (icicle.labels.get(outline.key(node)) ?? `${tokens(outline.tokens[node])} tokens at ${tokens(outline.start[node])}`).slice(0, 28);
  places.push({ name, page: outline.page[node] });
  arrive();
}

function goBack() {
  if (places.length > 1) goTo(places.length - 2);
  else icicle.zoomAll();
}

function goTo(depth) {
  places = places.slice(0, depth + 1);
  arrive();
}

function arrive() {
  byId("crumbs").replaceChildren(...panels.crumbs(places, goTo));
  icicle.selected = -1;
  icicle.hover(-1);
  icicle.zoomAll();
  looked = null;
  take().catch(failed);
}

function drawRamp() {
  const canvas = byId("ramp");
  const { fills } = ramp(icicle.theme, icicle.by);
  const context = canvas.getContext("2d");
  fills.forEach((fill, i) => {
    context.fillStyle = fill;
    context.fillRect((i * canvas.width) / fills.length, 0, canvas.width / fills.length + 1, canvas.height);
  });
  byId("ramp-from").textContent = icicle.by === "age" ? "used now" : scales.hits.from;
  byId("ramp-to").textContent = scales[icicle.by].to;
}

// --- switches

function theme(wanted) {
  const isDark = wanted === "dark" || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  for (const button of document.querySelectorAll("[data-theme-is]")) button.setAttribute("aria-pressed", String(button.dataset.themeIs === wanted));
  icicle.restyle();
  drawRamp();
  if (history.moments.length) show();
}

function colourBy(by) {
  icicle.colourBy(by);
  for (const button of document.querySelectorAll("[data-colour]")) button.setAttribute("aria-pressed", String(button.dataset.colour === by));
  drawRamp();
}

function lookAtMoment(moment) {
  const isLatest = moment === history.moments[history.moments.length - 1];
  looked = isLatest ? null : moment;
  show();
}

function useKey(value) {
  key.set(value);
  wantsKey = false;
  texts.forget();
  icicle.labels.clear();
  byId("key").textContent = value ? "Key in use" : "Admin key…";
  byId("key-dialog").close();
  learn();
  take().catch(failed);
}

function listen() {
  let wanted = localStorage.getItem("axil-theme") ?? "auto";
  for (const button of document.querySelectorAll("[data-theme-is]")) {
    button.addEventListener("click", () => {
      wanted = button.dataset.themeIs;
      localStorage.setItem("axil-theme", wanted);
      theme(wanted);
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(wanted));
  for (const button of document.querySelectorAll("[data-colour]")) button.addEventListener("click", () => colourBy(button.dataset.colour));
  byId("zoom-in").addEventListener("click", () => icicle.zoom(1.8));
  byId("zoom-out").addEventListener("click", () => icicle.zoom(1 / 1.8));
  byId("zoom-all").addEventListener("click", () => icicle.zoomAll());
  byId("scrub").addEventListener("input", () => lookAtMoment(history.moments[Number(byId("scrub").value)]));
  byId("live").addEventListener("click", () => lookAtMoment(history.moments[history.moments.length - 1]));
  byId("key").addEventListener("click", () => {
    byId("key-value").value = key.get();
    byId("key-dialog").showModal();
  });
  byId("key-form").addEventListener("submit", () => useKey(byId("key-value").value.trim()));
  byId("key-forget").addEventListener("click", () => useKey(""));
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
  document.addEventListener("visibilitychange", () => !document.hidden && take().catch(failed));
  theme(wanted);
}

async function learn() {
  try {
    const { data } = await json("v1/models");
    byId("model").textContent = data[0].id;
    byId("model").title = data[0].root;
  } catch {
    byId("model").textContent = "";
  }
}

listen();
byId("crumbs").replaceChildren(...panels.crumbs(places, goTo));
byId("key").textContent = key.get() ? "Key in use" : "Admin key…";
learn();
poll();
learnOf(`requests?limit=${LISTED}`, "requests-card", fillRequests, REQUESTS_EVERY_MS);
learnOf("belt", "sessions-card", fillSessions, REQUESTS_EVERY_MS);
learnOf("doctor", "doctor-card", fillDoctor, DOCTOR_EVERY_MS);

// For tests and for looking into it by hand.
globalThis.axilView = { icicle, history, Outline };
