// Draws everything, and again in the other language.

// Sections that a layout need not have.
const USED = { pipeline: DATA.pipeline !== null, balance: DATA.balance !== null };

function drawAll() {
  document.documentElement.lang = page.language;
  document.querySelectorAll("[data-word]").forEach((one) => one.replaceChildren(t(one.dataset.word)));
  document.querySelectorAll("[data-word-label]").forEach((one) => one.setAttribute("aria-label", t(one.dataset.wordLabel)));
  for (const [name, draw] of page.sections) {
    const root = document.querySelector(`[data-part="${name}"]`);
    root.closest("section")?.toggleAttribute("hidden", USED[name] === false);
    root.replaceChildren();
    if (USED[name] !== false) draw(root);
  }
  const shown = [...document.querySelectorAll("main section:not([hidden])")];
  document.getElementById("contents").replaceChildren(...shown.map((one) =>
    h("a", { href: `#${one.id}` }, t(`${one.id}.short`))));
}

document.getElementById("language").addEventListener("change", (event) => {
  page.language = event.target.value;
  drawAll();
});
drawAll();
