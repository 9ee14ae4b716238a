// The order of decisions, each with the inequality that decided it, and the best layouts beside the one of this page.

section("decisions", (root) => {
  const found = DATA.decisions;
  if (found.error) {
    root.append(h("p", { class: "note" }, t("decisions.nothing")), h("p", { class: "quoted", lang: "en" }, found.error));
    return;
  }
  root.append(
    h("ol", { class: "steps" }, found.steps.map(step)),
    h("h3", {}, t("decisions.best")), bestTable(found.best));
});

function step(one) {
  return h("li", { class: one.taken ? "step taken" : "step", "data-step": one.number },
    h("span", { class: "step-number", "aria-hidden": "true" }, String(one.number)),
    h("div", { class: "step-body" },
      h("h3", {}, term("question", one.title)),
      one.found.map((text) => {
        const told = sentence(text);
        return h("p", { class: "quoted", lang: told === null ? "en" : null }, withInequalities(told ?? text));
      }),
      h("p", { class: "answer" }, one.taken ? [t("decisions.taken"), " ", h("b", { lang: "en" }, one.taken)] : t("decisions.next"))));
}

// A sentence of the planner in the page's language; null where it is none that the page knows.
function sentence(text) {
  for (const [key, template] of Object.entries(WORDS.en)) {
    if (!key.startsWith("sentence.")) continue;
    const names = [...template.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    const pattern = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("(.+?)");
    const found = text.match(new RegExp(`^${pattern}$`));
    if (found) return t(key, Object.fromEntries(names.map((name, i) => [name, sentence(found[i + 1]) ?? term("said", found[i + 1])])));
  }
  return null;
}

// A sentence of the planner with its inequalities set off: `157 GB > 73.6 GB`, `67% > 25%`, `0.125 rows ... < 1`.
function withInequalities(sentence) {
  const amount = "\\d[\\d.,]*(?:e[+-]?\\d+)?(?: ?(?:%|[kMGT]?B\\b|s\\b|tokens?\\b|토큰|rows for each GPU))?";
  const pattern = new RegExp(`(${amount} (?:<=|>=|<|>) ${amount})`);
  return sentence.split(pattern).map((piece, i) => (i % 2 ? h("mark", {}, piece.replace("<=", "≤").replace(">=", "≥")) : piece));
}

function bestTable(best) {
  const slowest = Math.max(...best.map((one) => one.seconds));
  const limit = DATA.memory.limit;
  const rows = best.map((one) => ({
    attributes: { class: one.given ? "given" : null },
    cells: [
      h("div", { class: "layout-name" }, one.given ? h("b", {}, t("decisions.this_layout")) : null,
        one.given && page.language !== "en" ? rolesText() : h("span", { lang: "en" }, one.words),
        one.waits ? h("small", {}, sentence(one.waits) ?? one.waits) : null),
      h("div", { class: "in-table" }, bar(timeSegments(one.parts), slowest, [], seconds(one.seconds))),
      { text: seconds(one.seconds), class: "number" },
      { text: percent(one.mfu), class: "number" },
      { text: bytes(one.peak), class: one.peak > limit ? "number over" : "number" },
    ],
  }));
  return table([t("decisions.layout"), t("decisions.time"), { text: t("decisions.seconds"), class: "number" },
    { text: "MFU", class: "number" }, { text: t("decisions.memory"), class: "number" }], rows,
    { "aria-label": t("decisions.best"), class: "best" });
}
