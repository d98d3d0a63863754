// Numbers and times as people read them.

export const count = (value) => Number(value ?? 0).toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const points = (share) => `${share > 0 ? "+" : share < 0 ? "−" : "±"}${Math.abs(100 * share).toFixed(1)}`;
export const plural = (number, word, many = `${word}s`) => `${count(number)} ${number === 1 ? word : many}`;

export function when(text) {
  const time = new Date(text);
  if (!text || Number.isNaN(time.getTime())) return text || "";
  return time.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
