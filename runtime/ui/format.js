// Numbers, durations and names as people read them.

export function tokens(value) {
  if (value == null || !isFinite(value)) return "–";
  if (value < 10000) return Math.round(value).toLocaleString("en");
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`;
  return `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)}M`;
}

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function percent(share) {
  if (share == null || !isFinite(share)) return "–";
  const value = share * 100;
  return value > 0 && value < 9.95 ? value.toFixed(1) : String(Math.round(value));
}

export function counted(count, noun) {
  return `${tokens(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString("en-GB");
}

// An element with text and children; text never becomes markup.
export function element(name, { text, className, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text != null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child != null));
  return made;
}
