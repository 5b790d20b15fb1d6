// Which sessions go through a node: asked for while somebody points at it, and kept for a moment.

import { json } from "./api.js";

const FRESH_MS = 2000;
const MOST_KEPT = 200;

export class NodeSessions {
  // `changed(nodeKey)` is called when an answer has come.
  constructor(changed) {
    this.changed = changed;
    this.known = new Map();
  }

  // The sessions through a node, the latest first; null while they are asked for, and where there is nothing to ask.
  of(outline, i) {
    if (outline.page[i] < 0 || outline.isRoot(i)) return null;
    const node = outline.key(i);
    const known = this.known.get(node);
    if (!known || performance.now() - known.askedAt > FRESH_MS) this.#ask(node, outline.page[i], known?.sessions ?? null);
    return this.known.get(node).sessions;
  }

  async #ask(node, page, before) {
    const asked = { askedAt: performance.now(), sessions: before };
    this.known.delete(node);
    this.known.set(node, asked);
    if (this.known.size > MOST_KEPT) this.known.delete(this.known.keys().next().value);
    try {
      asked.sessions = (await json(`belt?page=${page}`)).sessions;
    } catch {
      return; // a server that keeps none, or is gone: the page says so elsewhere
    }
    this.changed(node);
  }
}
