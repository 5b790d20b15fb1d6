// The tree as an icicle on a canvas: width is tokens, a row goes on from the row above it. Knows no server.

import { ramp, scales, styles } from "./colours.js";
import { counted, tokens } from "./format.js";
import { firstBehind } from "./outline.js";

const LOWEST_ROW = 26;
const HIGHEST_ROW = 44;
const FEWEST_ROWS = 5;
const NARROWEST = 3;
const MARKED_VICTIMS = 16;
const LABEL_FROM = 44;
const FONT = '12px Inter, "Segoe UI", system-ui, sans-serif';
const CHARACTER = 6.7;
const EASE_MS = 180;
const CLOSEST = 1e-6;

export class Icicle {
  // `on` has `hover(i, x, y)` (-1: nothing), `enter(i)`, `leave()`, `select(i)`.
  constructor(canvas, on) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.on = on;
    this.outline = null;
    this.by = "age";
    this.view = { x0: 0, x1: 1, y: 0 };
    this.hovered = -1;
    this.selected = -1;
    this.labels = new Map();
    this.frames = [];
    this.isDue = false;
    this.row = LOWEST_ROW;
    this.restyle();
    new ResizeObserver(() => this.#resize()).observe(canvas);
    this.#listen();
  }

  restyle() {
    this.theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
    this.ink = styles("use", "next", "rest", "card", "grid", "accent", "soft", "ink");
    this.ramp = ramp(this.theme, this.by);
    this.hatch = this.#hatched();
    this.steps = this.#steps();
    this.draw();
  }

  colourBy(by) {
    this.by = by;
    this.restyle();
  }

  // Shows another picture; what was selected stays so, where it is still there.
  show(outline) {
    const [hovered, selected] = [this.hovered, this.selected].map((i) => (i >= 0 && this.outline ? this.outline.key(i) : null));
    this.outline = outline;
    this.steps = this.#steps();
    this.hovered = outline.find(hovered);
    this.selected = outline.find(selected);
    this.#measure();
    this.#clamp(this.view);
    this.draw();
  }

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      const began = performance.now();
      this.#paint();
      this.frames.push(performance.now() - began);
      if (this.frames.length > 600) this.frames.shift();
    });
  }

  // --- where one looks

  zoom(factor, at = 0.5) {
    const { x0, x1 } = this.target ?? this.view;
    const middle = x0 + (x1 - x0) * at;
    const width = Math.min(1, Math.max(CLOSEST, (x1 - x0) / factor));
    this.#glide({ x0: middle - width * at, x1: middle + width * (1 - at), y: this.view.y });
  }

  zoomAll() {
    this.#glide({ x0: 0, x1: 1, y: 0 });
  }

  // Makes a node as wide as is good for looking at it.
  lookAt(i, share = 0.8) {
    const { x0, x1, level } = this.outline;
    const width = Math.min(1, Math.max(CLOSEST, (x1[i] - x0[i]) / share));
    const middle = (x0[i] + x1[i]) / 2;
    this.#glide({ x0: middle - width / 2, x1: middle + width / 2, y: level[i] * this.row - this.height / 3 });
  }

  pan(dx, dy) {
    this.target = null;
    const shift = (-dx / this.width) * (this.view.x1 - this.view.x0);
    this.view = this.#clamp({ x0: this.view.x0 + shift, x1: this.view.x1 + shift, y: this.view.y - dy });
    this.draw();
  }

  // Where a node is on the canvas, in CSS pixels.
  box(i) {
    const scale = this.width / (this.view.x1 - this.view.x0);
    const left = (this.outline.x0[i] - this.view.x0) * scale;
    return { left, right: left + (this.outline.x1[i] - this.outline.x0[i]) * scale, top: this.outline.level[i] * this.row - this.view.y, height: this.row };
  }

  // The widest nodes in sight, for those who want to label them.
  widest(count) {
    if (!this.outline) return [];
    const { x0, x1, level } = this.outline;
    const shown = [];
    const least = ((this.view.x1 - this.view.x0) * LABEL_FROM * 1.6) / this.width;
    for (let i = 0; i < this.outline.count; i++) {
      const y = level[i] * this.row - this.view.y;
      if (x1[i] - x0[i] >= least && x1[i] > this.view.x0 && x0[i] < this.view.x1 && y > -this.row && y < this.height) shown.push(i);
    }
    return shown.sort((one, other) => x1[other] - x0[other] - (x1[one] - x0[one])).slice(0, count);
  }

  select(i) {
    this.selected = i;
    if (i >= 0) {
      const { left, right, top } = this.box(i);
      if (right - left < 20 || left > this.width - 20 || right < 20 || top < 0 || top > this.height - this.row) this.lookAt(i, 0.4);
    }
    this.on.select(i);
    this.draw();
  }

  #glide(target) {
    this.target = this.#clamp(target);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = this.target;
      this.target = null;
      this.draw();
      return;
    }
    const from = { ...this.view };
    const goal = this.target;
    const began = performance.now();
    const step = (now) => {
      if (this.target !== goal) return;
      const done = Math.min(1, Math.max(0, (now - began) / EASE_MS));
      const eased = 1 - (1 - done) ** 3;
      this.view = Object.fromEntries(Object.keys(goal).map((name) => [name, from[name] + (goal[name] - from[name]) * eased]));
      if (done < 1) requestAnimationFrame(step);
      else this.target = null;
      this.draw();
    };
    requestAnimationFrame(step);
  }

  #clamp(view) {
    const width = Math.min(1, view.x1 - view.x0);
    view.x0 = Math.min(Math.max(view.x0, 0), 1 - width);
    view.x1 = view.x0 + width;
    const rows = this.outline?.rows.length ?? 0;
    view.y = Math.max(0, Math.min(view.y, rows * this.row - this.height));
    return view;
  }

  // --- drawing

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#measure();
    this.#clamp(this.view);
    this.draw();
  }

  // A tree of few rows fills the canvas too.
  #measure() {
    const rows = Math.max(FEWEST_ROWS, this.outline?.rows.length ?? 0);
    this.row = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, Math.floor(this.height / rows)));
  }

  #paint() {
    const { context, outline } = this;
    context.clearRect(0, 0, this.width, this.height);
    if (!outline || !this.width) return;
    this.later = [];
    const first = Math.max(0, Math.floor(this.view.y / this.row));
    const last = Math.min(outline.rows.length - 1, Math.floor((this.view.y + this.height) / this.row));
    for (let level = first; level <= last; level++) this.#paintRow(outline.rows[level], outline.ends[level], level * this.row - this.view.y);
    context.font = FONT;
    context.textBaseline = "middle";
    for (const [i, left, right, top] of this.later) this.#mark(i, left, right, top);
    if (this.selected >= 0) this.#frame(this.selected, this.ink.accent, 3);
    if (this.hovered >= 0 && this.hovered !== this.selected) this.#frame(this.hovered, this.ink.ink, 1.5);
  }

  // Nodes narrower than three pixels share a strip of three pixels: however many there are, a row costs no more than its pixels.
  #paintRow(row, ends, top) {
    const { context, outline, view, steps } = this;
    const { x0, held, victim } = outline;
    const scale = this.width / (view.x1 - view.x0);
    let i = firstBehind(ends, view.x0);
    let fill = null;
    while (i < row.length) {
      const node = row[i];
      const left = (x0[node] - view.x0) * scale;
      if (left > this.width) return;
      let right = (ends[i] - view.x0) * scale;
      let next = i + 1;
      if (right - left < NARROWEST) {
        next = firstBehind(ends, view.x0 + (left + NARROWEST) / scale, next);
        right = left + NARROWEST;
      }
      const wanted = outline.isFolded(node) ? this.hatch : this.ramp.fills[steps[node]];
      if (wanted !== fill) context.fillStyle = fill = wanted;
      const from = Math.max(left, -1);
      const width = Math.min(right, this.width + 1) - from;
      context.fillRect(from, top, width > 4 ? width - 1 : width, this.row - 1.5);
      const isMarked = held[node] > 0 || (victim[node] >= 0 && victim[node] < MARKED_VICTIMS && this.#isLast(node));
      if (isMarked || width >= LABEL_FROM) this.later.push([node, from, from + width, top]);
      i = next;
    }
  }

  // The colour of each node, as its place on the ramp.
  #steps() {
    const values = this.outline && (this.by === "age" ? this.outline.ageS : this.outline.hits);
    return values && Uint8Array.from(values, (value) => this.ramp.step(scales[this.by].place(value)));
  }

  #isLast(i) {
    return this.outline.isFolded(i) || !this.outline.children[i];
  }

  #mark(i, left, right, top) {
    const { context, outline, ink } = this;
    const width = right - left - 1;
    let inset = 8;
    if (outline.victim[i] >= 0 && outline.victim[i] < MARKED_VICTIMS && this.#isLast(i)) {
      context.globalAlpha = 1 - (0.75 * outline.victim[i]) / MARKED_VICTIMS;
      context.fillStyle = ink.next;
      context.fillRect(left, top, Math.max(2, Math.min(4, width)), this.row - 1.5);
      context.globalAlpha = 1;
      inset = 10;
    }
    if (outline.held[i] > 0) {
      context.strokeStyle = ink.use;
      context.lineWidth = 2;
      if (width > 6) context.strokeRect(left + 1, top + 1, width - 2, this.row - 3.5);
      else {
        context.fillStyle = ink.use;
        context.fillRect(left, top, Math.max(2, width), 3);
      }
    }
    if (width < LABEL_FROM) return;
    const most = Math.floor((width - inset - 6) / CHARACTER);
    const text = this.#label(i);
    context.fillStyle = outline.isFolded(i) ? ink.ink : this.ramp.inks[this.steps[i]];
    context.fillText(text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`, left + inset, top + (this.row - 1.5) / 2 + 0.5);
  }

  #label(i) {
    const { outline } = this;
    if (outline.isRoot(i)) return `${outline.rootName(i)} · ${tokens(outline.total[i])} tokens`;
    if (outline.isFolded(i)) return `+ ${counted(outline.folded[i], "node")}`;
    return this.labels.get(outline.key(i)) ?? `${tokens(outline.tokens[i])} tok`;
  }

  #frame(i, colour, thickness) {
    const { left, right, top } = this.box(i);
    const from = Math.max(left, -4);
    this.context.strokeStyle = colour;
    this.context.lineWidth = thickness;
    this.context.strokeRect(from + thickness / 2, top + thickness / 2, Math.max(2, Math.min(right, this.width + 4) - from - 1 - thickness), this.row - 1.5 - thickness);
  }

  #hatched() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const context = tile.getContext("2d");
    context.fillStyle = this.ink.card;
    context.fillRect(0, 0, 8, 8);
    context.strokeStyle = this.ink.rest;
    context.lineWidth = 2.6;
    for (const shift of [-8, 0, 8]) {
      context.beginPath();
      context.moveTo(shift - 1, 9);
      context.lineTo(shift + 9, -1);
      context.stroke();
    }
    return this.context.createPattern(tile, "repeat");
  }

  // --- hands

  nodeAt(x, y) {
    if (!this.outline) return -1;
    const share = this.view.x0 + (x / this.width) * (this.view.x1 - this.view.x0);
    return this.outline.at_(share, Math.floor((y + this.view.y) / this.row));
  }

  hover(i, x = 0, y = 0) {
    if (i !== this.hovered) {
      this.hovered = i;
      this.draw();
    }
    this.on.hover(i, x, y);
  }

  #listen() {
    const { canvas } = this;
    let drag = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, y: event.clientY, moved: 0 };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.hover(this.nodeAt(...at(event)), ...at(event));
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag = { x: event.clientX, y: event.clientY, moved: drag.moved + Math.abs(dx) + Math.abs(dy) };
      if (drag.moved > 3) {
        this.hover(-1);
        this.pan(dx, dy);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && drag.moved <= 3) this.select(this.nodeAt(...at(event)));
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("dblclick", (event) => {
      const i = this.nodeAt(...at(event));
      if (i >= 0) this.on.enter(i);
    });
    canvas.addEventListener("wheel", (event) => this.#wheel(event, at(event)), { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.on.hover(-1));
  }

  #wheel(event, [x]) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.004), x / this.width);
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.pan(-(event.deltaX || event.deltaY), 0);
    }
  }

  #key(event) {
    const act = {
      "+": () => this.zoom(1.6), "=": () => this.zoom(1.6), "-": () => this.zoom(1 / 1.6), 0: () => this.zoomAll(),
      ArrowUp: () => this.#step("up"), ArrowDown: () => this.#step("down"), ArrowLeft: () => this.#step("left"), ArrowRight: () => this.#step("right"),
      Enter: () => this.selected >= 0 && this.on.enter(this.selected), Backspace: () => this.on.leave(), Escape: () => this.select(-1),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey || !this.outline?.count) return;
    event.preventDefault();
    act();
  }

  #step(way) {
    const { outline, selected } = this;
    if (selected < 0) return this.select(outline.rows[0][0]);
    const row = outline.rows[outline.level[selected]];
    const place = row.indexOf(selected);
    const largest = () => (outline.children[selected] ?? []).reduce((best, i) => (best < 0 || outline.total[i] > outline.total[best] ? i : best), -1);
    const next = { up: () => outline.above[selected], down: largest, left: () => row[place - 1] ?? -1, right: () => row[place + 1] ?? -1 }[way]();
    if (next >= 0) this.select(next);
  }
}
