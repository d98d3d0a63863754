// Pictures of items. With a key the header must travel along, so they are fetched and shown as blobs.
import { apiKey, fetchBlob, onHost } from "./api.js";
import { el } from "./dom.js";

const pending = new WeakMap();
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => load(entry.target)),
  { rootMargin: "300px" },
);

/** A square with a picture, or words where there is none. Only this service's pictures and data URLs are shown. */
export function picture(url, alt = "") {
  const frame = el("span", { class: "picture" });
  if (typeof url !== "string" || !/^(\/v1\/|data:image\/)/.test(url)) {
    frame.append("no picture");
    return frame;
  }
  pending.set(frame, { url, alt });
  near.observe(frame);
  return frame;
}

/** What an item is: its text where it is one, else its picture. */
export function shownItem(item, alt = "", size = null) {
  const text = item.payload?.text;
  if (!item.thumbnail && typeof text === "string" && text) return el("span", { class: "passage" }, text);
  return picture(size ? item.thumbnail?.replace("size=256", `size=${size}`) : item.thumbnail, alt);
}

async function load(frame) {
  near.unobserve(frame);
  const { url, alt } = pending.get(frame) ?? {};
  if (!url) return;
  pending.delete(frame);
  const image = el("img", { alt, decoding: "async" });
  const failed = () => frame.replaceChildren("no picture");
  image.addEventListener("error", failed);
  try {
    if (url.startsWith("/v1/") && apiKey.get()) {
      image.src = URL.createObjectURL(await fetchBlob(url));
      image.addEventListener("load", () => URL.revokeObjectURL(image.src));
    } else {
      image.src = url.startsWith("/v1/") ? onHost(url) : url;
    }
    frame.replaceChildren(image);
  } catch {
    failed();
  }
}
