// The last requests with the causes of their misses, sessions, and the doctor's findings. Asks no server.

import { clock, counted, duration, element, percent, tokens } from "./format.js";

const CAUSES = {
  never_seen: "never seen before",
  client_changed: "the client changed it",
  template_changed: "the template changed it",
  evicted: "was evicted",
  namespace: "cached for another salt, adapter or model",
  too_short: "shared part ends within a page",
  in_flight: "was being computed just then",
  bypassed: "bypassed: logprobs had to be computed",
  forked: "another text from here on",
};
const HIT = 0.9;
const MISS = 0.1;

function reuseOf({ prompt_tokens, cached_tokens }) {
  if (cached_tokens == null || !prompt_tokens) return null;
  const share = cached_tokens / prompt_tokens;
  return { share, is: share >= HIT ? "hit" : share < MISS ? "miss" : "partial" };
}

function why({ cause, part, position, missed_tokens }) {
  if (!cause) return "";
  const where = [part && `in ${part}`, position != null && `from token ${position.toLocaleString("en")}`].filter(Boolean).join(", ");
  const lost = missed_tokens ? `; ${counted(missed_tokens, "token")} computed` : "";
  return `${CAUSES[cause] ?? cause.replaceAll("_", " ")}${where ? ` (${where})` : ""}${lost}`;
}

function row(request) {
  const reuse = reuseOf(request);
  const meter = element("div", { className: "meter", "aria-hidden": "true" }, element("i", { className: "cached" }));
  meter.firstChild.style.width = `${100 * (reuse?.share ?? 0)}%`;
  const tag = reuse ? element("span", { className: "tag", text: reuse.is, "data-is": reuse.is }) : "";
  const cell = (text, className) => element("td", { text, className });
  return element("tr", {},
    cell(clock(request.arrived_at)),
    element("td", { text: request.id.length > 14 ? `${request.id.slice(0, 13)}…` : request.id, title: request.id }),
    cell(tokens(request.prompt_tokens), "number"),
    element("td", { className: "bar-cell" }, meter),
    cell(reuse ? `${percent(reuse.share)} %` : "–", "number"),
    element("td", {}, tag),
    cell(duration(request.first_token_s), "number"),
    cell(why(request), "wide"));
}

const HEADINGS = [["Arrived"], ["Request"], ["Prompt", "number"], ["Reused"], ["", "number"], ["Kind"], ["First token", "number"], ["Why not more"]];

export function requestsTable(requests) {
  const head = element("tr", {}, ...HEADINGS.map(([text, className]) => element("th", { text, className, scope: "col" })));
  if (!requests.length) return [element("tbody", {}, element("tr", {}, element("td", { className: "quiet", text: "No request yet." })))];
  return [element("thead", {}, head), element("tbody", {}, ...requests.map(row))];
}

function sessionRow(session) {
  const isRunning = session.idle_s == null;
  const cell = (text, className) => element("td", { text, className });
  return element("tr", {},
    element("td", { text: session.request_id.length > 14 ? `${session.request_id.slice(0, 13)}…` : session.request_id, title: session.request_id }),
    cell(tokens(session.num_requests), "number"),
    cell(isRunning ? "" : tokens(session.tokens_in_cache), "number"),
    cell(isRunning ? "running" : duration(session.idle_s), "number"),
    cell(duration(session.expected_return_s), "number"),
    cell(session.survival == null ? "–" : `${percent(session.survival)} %`, "number"));
}

const SESSION_HEADINGS = [["Last request"], ["Requests", "number"], ["Cached", "number"], ["Idle for", "number"], ["Expected after", "number"], ["Survives", "number"]];

export function sessionsTable(sessions) {
  const head = element("tr", {}, ...SESSION_HEADINGS.map(([text, className]) => element("th", { text, className, scope: "col" })));
  if (!sessions.length) return [element("tbody", {}, element("tr", {}, element("td", { className: "quiet", text: "No session yet." })))];
  return [element("thead", {}, head), element("tbody", {}, ...sessions.map(sessionRow))];
}

function finding(each, group) {
  const cost = [counted(each.lost_tokens, "token"), each.lost_seconds_a_day ? `${duration(each.lost_seconds_a_day)} of computing a day` : null].filter(Boolean).join(", ");
  const where = `${each.tokens_before.toLocaleString("en")} tokens into ${counted(group.requests, "prompt")} of one make`;
  return element("article", { className: "finding" },
    element("h3", { text: `${each.place}: ${each.what}` }),
    element("p", { text: `Changed in ${each.changed} of ${each.of} ${each.scope}s, ${where}. Lost: ${cost}.` }),
    each.context ? element("pre", { text: each.context }) : null,
    element("p", { text: each.remedy }));
}

export function findings(diagnosis) {
  const found = diagnosis.groups.flatMap((group) => group.findings.map((each) => finding(each, group)));
  if (found.length) return found;
  return [element("p", { className: "quiet", text: `Nothing volatile stands at the front of the last ${counted(diagnosis.requests, "prompt")}.` })];
}
