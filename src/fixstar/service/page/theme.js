// Colours: as the system says, or as chosen here. Runs before the first paint, so nothing flashes.
(() => {
  const KEY = "fixstar-theme";
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const WORDS = { system: "as the system", light: "light", dark: "dark" };
  const root = document.documentElement;

  function stored() {
    try {
      const choice = localStorage.getItem(KEY);
      return choice in NEXT ? choice : "system";
    } catch {
      return "system"; // storage may be forbidden; the choice then holds for this visit
    }
  }

  let choice = stored();

  function apply() {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
    document.getElementById("theme")?.setAttribute("aria-label", `Colours: ${WORDS[choice]}. Change`);
  }

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    const button = document.getElementById("theme");
    button.addEventListener("click", () => {
      choice = NEXT[choice];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // as above
      }
      apply();
      button.title = `Colours: ${WORDS[choice]}`;
    });
  });
})();
