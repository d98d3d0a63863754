// The drift map: the same images as an older and a newer version see them, a line from the old place to the new one.
import { address, call } from "./api.js";
import { badge, byId, el, plural, renew, rove, svg, tone } from "./dom.js";
import { openItem } from "./item.js";
import { picture } from "./picture.js";
import { problemView } from "./problem.js";

const [WIDTH, HEIGHT, EDGE] = [720, 440, 24];
const LISTED = 12; // items that moved most
let pair = null; // [old, new] that is shown, or null before the map was asked for

/** Offers a map of two versions; it is drawn when asked for, as the images must be embedded. */
export function showDrift(versions, status) {
  const names = versions.filter(({ retired }) => !retired).map(({ name }) => name);
  if (names.length < 2 || !status.items) {
    renew(byId("drift"), el("p", { class: "note" }, "With two versions and stored images, this shows where the newer one puts the same images."));
    return;
  }
  if (pair && !pair.every((name) => names.includes(name))) pair = null;
  const stored = [...names].sort((a, b) => (status.vectors[b] ?? 0) - (status.vectors[a] ?? 0))[0];
  const [old, next] = pair ?? [stored, names.filter((name) => name !== stored).at(-1)];
  const choice = (id, words, value) => el("label", { class: "inline" }, words, el("select", { id, data: { focus: id } }, names.map((name) => el("option", { selected: name === value }, name))));
  const place = el("div", { id: "drift-place" });
  const draw = () => load((pair = [byId("drift-old").value, byId("drift-new").value]), place);
  renew(byId("drift"), el("div", { class: "buttons" }, choice("drift-old", "From", old), choice("drift-new", "to", next), el("button", { type: "button", id: "drift-draw", data: { focus: "drift" }, on: { click: draw } }, "Draw the map")), place);
  if (pair) load(pair, place);
}

async function load([old, next], place) {
  renew(place, el("p", { class: "note", role: "status" }, "Embedding a sample of the stored images …"));
  try {
    const { points } = await call(address("/v1/drift", { old, new: next }));
    if (points.length) show(points, [old, next], place);
    else renew(place, el("p", { class: "note" }, `No stored image of ${old} or ${next} is here.`));
  } catch (error) {
    renew(place, problemView(error, { retry: () => load([old, next], place), small: true }));
  }
}

function show(points, [old, next], place) {
  const at = scale(points);
  const list = el("div", { id: "drift-list" });
  const shapes = points.map((point) => {
    const [[x1, y1], [x2, y2]] = [at(point.old), at(point.new)];
    const label = `${point.label ?? "no label"}, moved ${point.moved.toFixed(3)}, ${point.id}`;
    return svg("g", { class: "point", role: "button", tabindex: -1, "aria-label": label, data: { id: point.id } }, svg("title", {}, label), svg("line", { x1, y1, x2, y2 }), svg("circle", { class: `from ${tone(old)}`, cx: x1, cy: y1, r: 4 }), svg("circle", { class: `to ${tone(next)}`, cx: x2, cy: y2, r: 5 }), svg("circle", { class: "target", cx: x2, cy: y2, r: 12 }));
  });
  const region = svg("rect", { class: "region" });
  const map = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `${plural(points.length, "image")}, from ${old} to ${next}; arrows move, Enter opens, Space marks two corners of a region` }, shapes, region);
  const inside = ([left, top, right, bottom]) => {
    const within = (xy) => xy[0] >= left && xy[0] <= right && xy[1] >= top && xy[1] <= bottom;
    return points.filter((point) => within(at(point.old)) || within(at(point.new)));
  };
  const choose = (box) => {
    const [left, top, right, bottom] = box;
    Object.entries({ x: left, y: top, width: right - left, height: bottom - top }).forEach(([name, value]) => region.setAttribute(name, value));
    const found = inside(box);
    showList(list, found, `${plural(found.length, "image")} in the region`);
  };
  shapes[0].tabIndex = 0;
  rove(map, ".point", () => 1);
  listen(map, points, at, choose);
  renew(place, el("figure", { class: "chart drift" }, map, el("figcaption", { class: "note" }, "A line leads from where ", badge(old), " puts an image to where ", badge(next), " does, on the two principal components of both. Click a point for the item; drag over a region to list it.")), list);
  showList(list, points.slice(0, LISTED), "Moved most");
}

/** Coordinates of the drawing, with the same scale in both directions. */
function scale(points) {
  const all = points.flatMap((point) => [point.old, point.new]);
  const [low, high] = [Math.min, Math.max].map((of) => [0, 1].map((axis) => of(...all.map((xy) => xy[axis]))));
  const unit = Math.min(...[WIDTH, HEIGHT].map((size, axis) => (size - 2 * EDGE) / (high[axis] - low[axis] || 1)));
  return (xy) => [WIDTH, HEIGHT].map((size, axis) => size / 2 + unit * (xy[axis] - (low[axis] + high[axis]) / 2));
}

function listen(map, points, at, choose) {
  const itemOf = (event) => points.find(({ id }) => id === event.target.closest(".point")?.dataset.id);
  const boxOf = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])];
  let corner = null; // of a region that is marked by key
  let dragged = false;
  map.addEventListener("click", (event) => !dragged && itemOf(event) && open(itemOf(event)));
  map.addEventListener("keydown", (event) => {
    const item = itemOf(event);
    if (!item) return;
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // else Enter also presses the button that the dialog gives the focus
    if (event.key === "Enter") return open(item);
    if (corner) choose(boxOf(corner, at(item.new)));
    corner = corner ? null : at(item.new);
  });
  map.addEventListener("pointerdown", (event) => {
    const [from, end] = [inMap(map, event), new AbortController()];
    dragged = false;
    const move = (moved) => {
      const to = inMap(map, moved);
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < 6) return;
      dragged = true;
      choose(boxOf(from, to));
    };
    window.addEventListener("pointermove", move, { signal: end.signal });
    for (const over of ["pointerup", "pointercancel"]) window.addEventListener(over, () => end.abort(), { signal: end.signal });
  });
}

function inMap(map, { clientX, clientY }) {
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(map.getScreenCTM().inverse());
  return [x, y];
}

function showList(place, points, title) {
  renew(
    place,
    el("h4", { role: "status" }, title),
    el("ul", { class: "drifted" }, points.map((point) => el("li", {}, el("button", { type: "button", "aria-label": `${point.label ?? "no label"}, ${point.id}, moved ${point.moved.toFixed(3)}`, on: { click: () => open(point) } }, picture(point.thumbnail), el("span", {}, point.label ?? "no label"), el("span", { class: "note" }, point.moved.toFixed(3)))))),
  );
}

function open(item) {
  openItem(item, { asked: null, scale: null, like: (id) => (location.hash = `#like=${encodeURIComponent(id)}`), removed: () => load(pair, byId("drift-place")) });
}
