// Figures as text, as `baudway status` writes them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit && count < 99.95 ? count.toFixed(1) : Math.round(count)}\u00a0${UNITS[unit]}`;
}

export const bytesOrNone = (count) => (count > 0 ? bytes(count) : "–");
export const rate = (perSecond) => (perSecond >= 0.5 ? `${bytes(perSecond)}/s` : "–");

/** 12s, 3m 4s, 2h 5m, 3d 4h */
export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor(whole / 60) % 60}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor(whole / 3600) % 24}h`;
}

export const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** Local time of a line of the log, to the second. */
export function time(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text : date.toLocaleTimeString([], { hour12: false });
}
