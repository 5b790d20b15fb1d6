// Histograms out of the text of /metrics, and what happened between two readings of one.

const LINE = /^(\w+)\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// The cumulated buckets of one histogram by the value of one label: Map from label to [[le, count], …].
export function histograms(text, name, by) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith(`${name}_bucket{`)) continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...match[2].matchAll(LABEL)].map(([, key, value]) => [key, value]));
    const label = labels[by] ?? "all";
    if (!found.has(label)) found.set(label, []);
    found.get(label).push([labels.le === "+Inf" ? Infinity : Number(labels.le), Number(match[3])]);
  }
  return found;
}

// A quantile of what was counted since `before`, which may be missing; null when nothing was.
export function quantileSince(now, before, share) {
  if (!now) return null;
  const counts = now.map(([le, count], i) => [le, count - (before?.[i]?.[1] ?? 0)]);
  const total = counts[counts.length - 1][1];
  if (!(total > 0)) return null;
  let [lower, below] = [0, 0];
  for (const [le, count] of counts) {
    if (count >= share * total) {
      if (!isFinite(le)) return lower;
      return lower + ((le - lower) * (share * total - below)) / (count - below || 1);
    }
    [lower, below] = [le, count];
  }
  return lower;
}
