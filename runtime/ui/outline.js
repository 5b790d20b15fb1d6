// One picture of the tree, as typed columns with a place for each node. Knows no canvas.

// Takes the JSON of `GET /tree`. Node i lies from x0[i] to x1[i] (shares of all tokens) in row level[i]; `rows` lists the
// nodes of each row from left to right, and `ends` where each of them ends.
export class Outline {
  constructor({ nodes, namespaces = [], num_nodes = 0, at = 0, took_ms = 0 }) {
    const count = nodes.above.length;
    this.count = count;
    this.at = at;
    this.numNodes = num_nodes;
    this.tookMs = took_ms;
    this.namespaces = namespaces;
    this.above = Int32Array.from(nodes.above);
    this.page = Int32Array.from(nodes.page);
    this.namespace = Int32Array.from(nodes.namespace);
    this.start = Int32Array.from(nodes.start);
    this.tokens = Float64Array.from(nodes.tokens);
    this.total = Float64Array.from(nodes.total);
    this.folded = Int32Array.from(nodes.nodes);
    this.held = Float64Array.from(nodes.held);
    this.hits = Int32Array.from(nodes.hits);
    this.ageS = Float64Array.from(nodes.age_ms, (ms) => ms / 1000);
    this.victim = Int32Array.from(nodes.victim);
    this.digest = nodes.digest;
    this.x0 = new Float64Array(count);
    this.x1 = new Float64Array(count);
    this.level = new Int32Array(count);
    this.rows = [];
    this.children = this.#childrenOf();
    this.sum = 0;
    for (let i = 0; i < count; i++) if (this.above[i] < 0) this.sum += this.total[i];
    this.#place();
    this.ends = this.rows.map((row) => Float64Array.from(row, (i) => this.x1[i]));
  }

  // Children keep their order from picture to picture: by the page that they begin with, what is folded last.
  #childrenOf() {
    const children = Array.from({ length: this.count }, () => null);
    for (let i = 0; i < this.count; i++) {
      const above = this.above[i];
      if (above >= 0) (children[above] ||= []).push(i);
    }
    const order = (i) => (this.page[i] < 0 ? Infinity : this.page[i]);
    for (const each of children) each?.sort((one, other) => order(one) - order(other));
    return children;
  }

  #place() {
    const roots = [];
    for (let i = 0; i < this.count; i++) if (this.above[i] < 0) roots.push(i);
    const scale = this.sum ? 1 / this.sum : 0;
    let x = 0;
    for (const root of roots) {
      this.x0[root] = x;
      x += this.total[root] * scale;
      this.x1[root] = x;
    }
    let row = roots;
    for (let level = 0; row.length; level++) {
      this.rows.push(Int32Array.from(row));
      const next = [];
      for (const i of row) {
        this.level[i] = level;
        let left = this.x0[i];
        for (const child of this.children[i] ?? []) {
          this.x0[child] = left;
          left += this.total[child] * scale;
          this.x1[child] = left;
          next.push(child);
        }
      }
      row = next;
    }
  }

  isFolded(i) {
    return this.page[i] < 0 && this.namespace[i] < 0;
  }

  isRoot(i) {
    return this.namespace[i] >= 0;
  }

  // What names the same node in another picture.
  key(i) {
    if (this.isRoot(i)) return `root ${this.rootName(i)}`;
    return this.isFolded(i) ? `rest ${this.key(this.above[i])}` : `${this.page[i]} ${this.digest[i]}`;
  }

  find(key) {
    if (!key) return -1;
    for (let i = 0; i < this.count; i++) if (this.key(i) === key) return i;
    return -1;
  }

  rootName(i) {
    const namespace = this.namespaces[this.namespace[i]];
    if (!namespace) return "namespace";
    const parts = [namespace.adapter && `adapter ${namespace.adapter}`, namespace.salt_digest && `salt #${namespace.salt_digest}`];
    return parts.filter(Boolean).join(", ") || "no salt";
  }

  // The node at a place, or -1: rows are sorted by x.
  at_(x, level) {
    const row = this.rows[level];
    if (!row) return -1;
    const i = firstBehind(this.ends[level], x);
    return i < row.length && this.x0[row[i]] <= x ? row[i] : -1;
  }

  // The node that is evicted next, if it is shown by itself.
  nextVictim() {
    for (let i = this.count - 1; i >= 0; i--) if (this.victim[i] === 0 && (this.isFolded(i) || !this.children[i])) return i;
    return -1;
  }
}

// The first place from `from` on, in numbers that rise, of one above x. Mostly it is near: the steps to it grow.
export function firstBehind(numbers, x, from = 0) {
  let [low, step] = [from, 1];
  while (low + step < numbers.length && numbers[low + step] <= x) {
    low += step;
    step *= 2;
  }
  let high = Math.min(low + step, numbers.length);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}
