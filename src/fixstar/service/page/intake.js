// Images from the visitor: dropped anywhere, pasted anywhere, chosen, or taken with the camera.
import { byId } from "./dom.js";

/** Calls `use(file)` with each image, `refuse(words)` with what is none. */
export function startIntake(use, refuse) {
  const take = (files) => {
    const file = [...(files ?? [])].find((one) => one.type.startsWith("image/") || one.type === "");
    if (file) use(file);
    else if (files?.length) refuse(`${files[0].name || "This"} is not an image`);
  };
  for (const input of [byId("file"), byId("camera")]) {
    input.addEventListener("change", () => {
      take(input.files);
      input.value = ""; // the same file may be chosen again
    });
  }
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return; // text goes where the caret is
    event.preventDefault();
    take(event.clipboardData.files);
  });
  startDrop(take);
}

function startDrop(take) {
  const veil = byId("veil");
  let depth = 0; // dragenter and dragleave come for every element on the way
  const withFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (shown) => veil.classList.toggle("shown", shown);
  document.addEventListener("dragenter", (event) => withFiles(event) && show(++depth > 0));
  document.addEventListener("dragleave", (event) => withFiles(event) && show(--depth > 0));
  document.addEventListener("dragover", (event) => withFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!withFiles(event)) return;
    event.preventDefault();
    show(((depth = 0), false));
    take(event.dataTransfer.files);
  });
}
