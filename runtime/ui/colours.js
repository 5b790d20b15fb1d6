// Colours of the tree by age and by hits, and those of the style sheet.

const RAMPS = {
  light: {
    age: ["#0b6b5d", "#2f9c7f", "#7cc5a2", "#c3ddc3", "#e4dfcf", "#d9cfba"],
    hits: ["#e6e3da", "#cfd3ea", "#a9a9de", "#8178c9", "#5d4aa8", "#3d2683"],
  },
  dark: {
    age: ["#5fe3c3", "#33b394", "#257f6e", "#265a51", "#2c4541", "#333f3c"],
    hits: ["#313a3c", "#3d4566", "#545a9a", "#7c77c9", "#a89bec", "#d8ceff"],
  },
};
const STEPS = 48;
const OLDEST_S = 3600;
const MOST_HITS = 256;

export const scales = {
  age: { from: "now", to: "1 h ago", place: (ageS) => Math.log1p(Math.min(ageS, OLDEST_S)) / Math.log1p(OLDEST_S) },
  hits: { from: "0 hits", to: `${MOST_HITS}+`, place: (hits) => Math.log2(1 + Math.min(hits, MOST_HITS)) / Math.log2(1 + MOST_HITS) },
};

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function blend(stops, at) {
  const place = Math.min(Math.max(at, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  const [one, other] = [rgb(stops[i]), rgb(stops[i + 1])];
  return one.map((value, c) => Math.round(value + (other[c] - value) * (place - i)));
}

// The ramp as `STEPS` colours, each with the ink that can be read on it.
export function ramp(theme, by) {
  const fills = [];
  const inks = [];
  for (let i = 0; i < STEPS; i++) {
    const [r, g, b] = blend(RAMPS[theme][by], i / (STEPS - 1));
    fills.push(`rgb(${r},${g},${b})`);
    inks.push(0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#15201d" : "#f4f7f5");
  }
  return { fills, inks, step: (at) => Math.min(STEPS - 1, Math.max(0, Math.round(at * (STEPS - 1)))) };
}

export function styles(...names) {
  const computed = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, computed.getPropertyValue(`--${name}`).trim()]));
}
