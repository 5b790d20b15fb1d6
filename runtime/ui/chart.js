// Lines over the last minutes on a canvas, with one time axis for all charts. Knows no figures' meaning.

import { styles } from "./colours.js";

export const SPAN_S = 300;
const MARGIN = { left: 52, right: 14, top: 26, bottom: 24 };
const FONT = '11.5px Inter, "Segoe UI", system-ui, sans-serif';
const LONGEST_GAP_S = 12;
const TIME_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 43200, 86400];

export class Chart {
  // `series`: {name, colour (of the style sheet), values: moments -> number or null}; `unit` writes a value of the axis;
  // with `isTime` these are seconds.
  constructor(canvas, { series, unit, least = 1, most = null, isTime = false, empty }) {
    Object.assign(this, { canvas, series, unit, least, most, isTime, empty });
    this.context = canvas.getContext("2d");
    this.points = [];
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  // `points`: {at, values: [one for each series]}, oldest first; `end` is the right edge, `cursor` a time or null.
  show(points, end, cursor) {
    this.points = points.filter((point) => point.at >= end - SPAN_S - 1);
    this.end = end;
    this.cursor = cursor;
    this.paint();
  }

  paint() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || this.end == null) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    const ink = styles("soft", "faint", "grid", "line", "ink", "accent", "card", ...this.series.map((each) => each.colour));
    const largest = Math.max(this.least, ...this.points.flatMap((point) => point.values.filter((value) => value != null)));
    const ticks = this.most != null ? [0, this.most / 4, this.most / 2, (3 * this.most) / 4, this.most] : niceTicks(largest, this.isTime);
    const top = ticks[ticks.length - 1];
    const x = (at) => MARGIN.left + (1 - (this.end - at) / SPAN_S) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => MARGIN.top + (1 - value / top) * (height - MARGIN.top - MARGIN.bottom);
    this.#axes(ink, { x, y, width, height, ticks });
    const latest = this.series.map((each, i) => this.#line(i, ink[each.colour], x, y));
    this.#legend(ink, latest);
    if (this.cursor != null) {
      context.strokeStyle = ink.accent;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x(this.cursor), MARGIN.top);
      context.lineTo(x(this.cursor), height - MARGIN.bottom);
      context.stroke();
    }
    if (latest.every((value) => value == null) && !this.points.some((point) => point.values.some((value) => value != null))) {
      const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
      const half = context.measureText(this.empty).width / 2 + 8;
      context.fillStyle = ink.card;
      context.fillRect((MARGIN.left + width - MARGIN.right) / 2 - half, middle - 14, 2 * half, 20);
      context.fillStyle = ink.soft;
      context.textAlign = "center";
      context.fillText(this.empty, (MARGIN.left + width - MARGIN.right) / 2, middle);
    }
    const said = this.series.map((each, i) => `${each.name} ${latest[i] == null ? "unknown" : this.unit(latest[i])}`);
    this.canvas.setAttribute("aria-label", said.join(", "));
  }

  #axes(ink, { x, y, width, height, ticks }) {
    const { context } = this;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.lineWidth = 1;
    for (const tick of ticks) {
      const at = Math.round(y(tick)) + 0.5;
      context.strokeStyle = tick ? ink.grid : ink.line;
      context.beginPath();
      context.moveTo(MARGIN.left, at);
      context.lineTo(width - MARGIN.right, at);
      context.stroke();
      context.fillStyle = ink.soft;
      context.fillText(this.unit(tick), MARGIN.left - 8, at);
    }
    context.textBaseline = "alphabetic";
    const every = width < 420 ? 2 : 1;
    for (let minutes = every === 2 ? 4 : 5; minutes >= 0; minutes -= every) {
      const at = x(this.end - minutes * 60);
      context.textAlign = minutes === 0 ? "right" : minutes === 5 ? "left" : "center";
      context.fillStyle = ink.soft;
      context.fillText(minutes ? `−${minutes} min` : "now", at, height - 7);
    }
  }

  #line(i, colour, x, y) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = 1.8;
    context.lineJoin = "round";
    context.beginPath();
    let before = null;
    let alone = null;
    for (const point of this.points) {
      const value = point.values[i];
      if (value == null) {
        before = null;
        continue;
      }
      const isNew = before == null || point.at - before > LONGEST_GAP_S;
      if (isNew) context.moveTo(x(point.at), y(value));
      else context.lineTo(x(point.at), y(value));
      alone = isNew ? [x(point.at), y(value)] : null;
      before = point.at;
    }
    context.stroke();
    if (alone) {
      context.fillStyle = colour;
      context.fillRect(alone[0] - 2, alone[1] - 2, 4, 4);
    }
    return this.points.length ? this.points[this.points.length - 1].values[i] : null;
  }

  #legend(ink, latest) {
    const { context } = this;
    const texts = this.series.map((each, i) => [each.name, latest[i] == null ? "" : this.unit(latest[i])]);
    const gaps = 20 * texts.length + 16 * (texts.length - 1);
    const whole = gaps + texts.flat().reduce((sum, text) => sum + context.measureText(text).width, 0);
    let left = Math.max(0, Math.min(MARGIN.left, this.canvas.clientWidth - MARGIN.right - whole));
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    for (const [i, each] of this.series.entries()) {
      context.fillStyle = ink[each.colour];
      context.fillRect(left, 10, 10, 3);
      context.fillStyle = ink.soft;
      const [name, value] = texts[i];
      context.fillText(name, left + 15, 15);
      left += 15 + context.measureText(name).width + 5;
      context.fillStyle = ink.ink;
      context.fillText(value, left, 15);
      left += context.measureText(value).width + 16;
    }
  }
}

// Round numbers from 0 to at least `largest`.
function niceTicks(largest, isTime) {
  const rough = largest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = isTime ? TIME_STEPS : [1, 2, 5, 10].map((factor) => factor * power);
  const step = steps.find((each) => each >= rough) ?? rough;
  const count = Math.max(1, Math.ceil(largest / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, i) => i * step);
}
