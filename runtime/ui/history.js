// The last minutes, moment by moment, and the figures that come of two of them. Knows no server and no canvas.

import { quantileSince } from "./prometheus.js";

export const KEPT = 300;
const HIT_WINDOW_S = 15;
const TTFT_WINDOW_S = 30;

export class History {
  constructor() {
    this.moments = [];
  }

  // A moment is {at, outline, stats, ttft}; what is more than five minutes old is forgotten.
  add(moment) {
    const last = this.moments[this.moments.length - 1];
    // A server that was started anew counts from zero; nothing may be told across that.
    if (last && last.stats.prompt_tokens_total > moment.stats.prompt_tokens_total) this.moments = [];
    moment.figures = this.#figures(moment);
    this.moments.push(moment);
    if (this.moments.length > KEPT) this.moments.shift();
    return moment;
  }

  before(at, seconds) {
    for (let i = this.moments.length - 1; i >= 0; i--) if (this.moments[i].at <= at - seconds) return this.moments[i];
    return this.moments[0] ?? null;
  }

  #figures(moment) {
    const { stats } = moment;
    const then = this.before(moment.at, HIT_WINDOW_S);
    const earlier = this.before(moment.at, TTFT_WINDOW_S);
    const median = (reuse) => quantileSince(moment.ttft.get(reuse), earlier?.ttft.get(reuse), 0.5);
    return {
      hitRate: then ? ratio(stats.cached_tokens_total - then.stats.cached_tokens_total, stats.prompt_tokens_total - then.stats.prompt_tokens_total) : null,
      hitRateEver: ratio(stats.cached_tokens_total, stats.prompt_tokens_total),
      tokensPerS: then && moment.at > then.at ? (stats.output_tokens_total - then.stats.output_tokens_total) / (moment.at - then.at) : null,
      ttft: earlier ? { hit: median("hit"), partial: median("partial"), miss: median("miss") } : { hit: null, partial: null, miss: null },
      nextVictimS: stats.next_victim_s ?? nextVictimS(moment.outline),
      beltS: stats.belt_s ?? null,
    };
  }
}

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}

function nextVictimS(outline) {
  const i = outline.nextVictim();
  return i < 0 || outline.isFolded(i) ? null : outline.ageS[i];
}
