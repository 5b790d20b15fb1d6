// What stands in words: tiles, the card at a node, requests, findings. Knows no canvas and asks no server.

import { counted, duration, element, percent, tokens } from "./format.js";

function tile(title, value, note, extra, isPair = false) {
  const shown = element("p", { className: isPair ? "value pair" : "value" }, ...value);
  return element("article", { className: "tile" }, element("h2", { text: title }), shown, extra, element("p", { className: "note", text: note, title: note }));
}

const small = (text) => element("small", { text });
const withUnit = (text) => {
  const [number, ...unit] = text.split(" ");
  return [number, unit.length ? small(` ${unit.join(" ")}`) : ""];
};

export function tiles({ stats, figures }) {
  const { ttft } = figures;
  const pool = stats.num_pages || 1;
  const held = Math.max(0, stats.num_pages - stats.free_pages - stats.evictable_pages - stats.quarantined_pages);
  const meter = element("div", { className: "meter", role: "img", "aria-label": `${percent(held / pool)} % in use, ${percent(stats.evictable_pages / pool)} % cached` },
    element("i", { className: "held" }), element("i", { className: "cached" }));
  meter.children[0].style.width = `${(100 * held) / pool}%`;
  meter.children[1].style.width = `${(100 * stats.evictable_pages) / pool}%`;
  const pageTokens = stats.page_tokens || 1;
  // The two are spans of their own, so that a narrow tile breaks the line between them and cuts off neither.
  const ttftOf = (name) =>
    element("span", {}, element("span", { className: `of-${name}`, text: duration(ttft[name]) }), small(` ${name}`));
  const isBusy = figures.hitRate != null;
  return [
    tile("Hit rate", [isBusy ? percent(figures.hitRate) : percent(figures.hitRateEver), small("%")],
      isBusy ? `last 15 s; ${percent(figures.hitRateEver)} % since the start` : stats.prompt_tokens_total ? "since the start; no prompts now" : "no prompts yet"),
    tile("Time to first token", [ttftOf("hit"), "  ", ttftOf("miss")], "medians of the last 30 s", null, true),
    tile("Pool", [percent(1 - stats.free_pages / pool), small("% filled")], `${tokens(held * pageTokens)} in use, ${tokens(stats.evictable_pages * pageTokens)} cached, of ${tokens(stats.num_pages * pageTokens)}`, meter),
    tile("Next victim", withUnit(duration(figures.nextVictimS)), figures.beltS != null ? `unused for so long; the belt is ${duration(figures.beltS)} long` : figures.nextVictimS != null ? "unused for so long" : "nothing can be evicted"),
    tile("Queue", [tokens(stats.num_waiting), small(" waiting")], `${tokens(stats.num_running)} of ${tokens(stats.max_running)} rows run`),
    tile("Output", [figures.tokensPerS == null ? "–" : tokens(figures.tokensPerS), small(" tok/s")], `${counted(stats.requests_total, "request")}, ${counted(stats.evicted_pages_total, "page")} evicted`),
  ];
}

const NAMED = 3;

function named(sessions) {
  const names = sessions.slice(0, NAMED).map((each) => (each.request_id.length > 18 ? `${each.request_id.slice(0, 17)}…` : each.request_id));
  const more = sessions.length - names.length;
  return `${sessions.length}: ${names.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

// The card beside a node; `text` is {text, request}, {why} or null while it's awaited, `sessions` those through the node.
export function nodeCard(outline, i, text, sessions) {
  const title = outline.isRoot(i) ? `Namespace: ${outline.rootName(i)}` : outline.isFolded(i) ? `${counted(outline.folded[i], "small node")}, folded` : `${counted(outline.tokens[i], "token")} from position ${outline.start[i].toLocaleString("en")}`;
  const rows = [];
  const add = (name, value) => value != null && rows.push(element("dt", { text: name }), element("dd", { text: value }));
  add("With all below", counted(outline.total[i], "token"));
  add("Last used", `${duration(outline.ageS[i])} ago`);
  add("Found again", counted(outline.hits[i], "time"));
  if (outline.held[i]) add("In use", counted(outline.held[i], "token"));
  const isEnd = outline.isFolded(i) || !outline.children[i];
  if (outline.victim[i] >= 0) add(isEnd ? "Evicted" : "Below it, evicted", outline.victim[i] ? `after ${counted(outline.victim[i], "other")}` : "next");
  if (sessions?.length) add("Sessions", named(sessions));
  add("Computed by", text?.request);
  if (!outline.isRoot(i) && !outline.isFolded(i)) add("Digest", outline.digest[i]);
  const card = [element("h3", { text: title }), element("dl", {}, ...rows)];
  if (text?.text != null) card.push(element("pre", { text: text.text }));
  else if (text?.why) card.push(element("p", { className: "why", text: text.why }));
  return card;
}

export function crumbs(places, go) {
  const shown = places.flatMap((place, depth) => {
    const isLast = depth === places.length - 1;
    const name = isLast ? element("b", { text: place.name, "aria-current": "location" }) : element("button", { type: "button", text: place.name });
    if (!isLast) name.addEventListener("click", () => go(depth));
    return depth ? [element("span", { text: "›", "aria-hidden": "true" }), name] : [name];
  });
  return shown;
}
