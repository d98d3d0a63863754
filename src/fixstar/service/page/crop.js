// A part of the query picture: drawn with the pointer, or set with four sliders.
import { byId, el } from "./dom.js";

const SIDES = { left: "Left edge", top: "Upper edge", width: "Width", height: "Height" };

/** The part of a picture that the visitor chooses, as a blob; null where they think better of it. */
export async function choosePart(url) {
  const dialog = byId("crop");
  const image = el("img", { src: url, alt: "The query", draggable: "false" });
  await image.decode();
  const frame = el("div", { class: "frame" });
  const area = el("div", { class: "crop-area" }, image, frame);
  const sliders = Object.entries(SIDES).map(([name, words]) => [name, el("input", { type: "range", min: 0, max: 100, id: `crop-${name}`, "aria-label": `${words} in per cent` }), words]);
  const part = { left: 25, top: 25, width: 50, height: 50 };

  function set(changes) {
    Object.assign(part, changes);
    for (const [start, size] of [["left", "width"], ["top", "height"]]) {
      part[size] = Math.min(100, Math.max(4, part[size]));
      part[start] = Math.min(100 - part[size], Math.max(0, part[start]));
    }
    for (const [name, slider] of sliders) {
      slider.value = part[name];
      frame.style.setProperty(name, `${part[name]}%`);
    }
  }

  function place({ clientX, clientY }) {
    const box = area.getBoundingClientRect();
    const share = (at, from, size) => Math.min(100, Math.max(0, (100 * (at - from)) / size));
    return [share(clientX, box.left, box.width), share(clientY, box.top, box.height)];
  }

  area.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    area.setPointerCapture(event.pointerId);
    const [x, y] = place(event);
    area.onpointermove = (moved) => {
      const [toX, toY] = place(moved);
      set({ left: Math.min(x, toX), top: Math.min(y, toY), width: Math.abs(toX - x), height: Math.abs(toY - y) });
    };
  });
  for (const end of ["pointerup", "pointercancel"]) area.addEventListener(end, () => (area.onpointermove = null));
  sliders.forEach(([name, slider]) => slider.addEventListener("input", () => set({ [name]: Number(slider.value) })));
  set({});

  return new Promise((resolve) => {
    let wanted = false;
    const submit = (event) => {
      event.preventDefault();
      wanted = true;
      dialog.close();
    };
    dialog.replaceChildren(
      el(
        "form",
        { on: { submit } },
        el("h2", { id: "crop-title" }, "Search a part of the image"),
        el("p", { class: "note" }, "Draw a rectangle, or move the sliders."),
        area,
        el("div", { class: "crop-sides" }, sliders.map(([, slider, words]) => el("label", {}, words, slider))),
        el("div", { class: "buttons" }, el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), el("button", { class: "primary" }, "Search this part")),
      ),
    );
    dialog.onclose = () => (wanted ? cut(image, part).then(resolve) : resolve(null));
    dialog.showModal();
  });
}

function cut(image, { left, top, width, height }) {
  const [across, down] = [image.naturalWidth / 100, image.naturalHeight / 100];
  const canvas = el("canvas", { width: Math.max(1, Math.round(width * across)), height: Math.max(1, Math.round(height * down)) });
  canvas.getContext("2d").drawImage(image, left * across, top * down, width * across, height * down, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
