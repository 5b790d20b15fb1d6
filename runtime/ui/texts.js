// The text of nodes, asked for one after the other and kept. Whether it may be read depends on the key.

import { json, key, Refusal } from "./api.js";

const MOST_KEPT = 4000;

export class Texts {
  // `changed(nodeKey)` is called when the text of a node has come, or why there is none.
  constructor(changed) {
    this.changed = changed;
    this.known = new Map();
    this.wanted = [];
    this.isAsking = false;
    this.mayRead = false; // until the server says otherwise
  }

  // Another key may read more, or less.
  forget() {
    this.known.clear();
    this.mayRead = false;
  }

  // What is known of a node's text: {text} or {why}; null while it's being asked for.
  of(outline, i) {
    if (outline.isRoot(i) || outline.isFolded(i)) return null;
    if (this.mayRead === false) return { why: key.get() ? "Text is shown with the admin key; this key is another." : "Text is shown with the admin key." };
    const node = outline.key(i);
    if (!this.known.has(node)) this.want(outline, [i], true);
    return this.known.get(node) ?? null;
  }

  // Asks for the text of these nodes in this order; those that somebody looks at come first.
  want(outline, nodes, isFirst = false) {
    if (this.mayRead === false) return;
    const asked = nodes
      .filter((i) => !outline.isRoot(i) && !outline.isFolded(i) && !this.known.has(outline.key(i)))
      .map((i) => ({ node: outline.key(i), page: outline.page[i], digest: outline.digest[i] }));
    this.wanted = isFirst ? [...asked, ...this.wanted] : asked;
    if (!this.isAsking) this.#ask();
  }

  async #ask() {
    this.isAsking = true;
    while (this.wanted.length && this.mayRead !== false) {
      const { node, page, digest } = this.wanted.shift();
      if (this.known.has(node)) continue;
      try {
        const answer = await json(`tree/text?page=${page}&digest=${digest}`);
        const more = answer.tokens - answer.shown_tokens;
        this.known.set(node, { text: more > 0 ? `${answer.text} …` : answer.text, request: answer.request });
      } catch (error) {
        if (error instanceof Refusal && [401, 403].includes(error.status)) this.mayRead = false;
        else if (error instanceof Refusal && error.status === 404) this.known.set(node, { why: "Not cached any more." });
        else this.wanted = [];
      }
      if (this.known.size > MOST_KEPT) this.known.delete(this.known.keys().next().value);
      this.changed(node);
    }
    this.isAsking = false;
  }
}
