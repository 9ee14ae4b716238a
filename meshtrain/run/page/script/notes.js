// What is left to say: findings, what the compiler adds, what a CPU program cannot tell, and what the layout has not.

section("notes", (root) => {
  const compiled = DATA.compiled;
  for (const finding of DATA.findings) {
    root.append(h("p", { class: `finding ${finding.severity}` },
      h("b", {}, term("severity", finding.severity)), " ", h("span", { lang: "en" }, finding.text)));
  }
  if (!DATA.findings.length) root.append(h("p", {}, t("notes.no_findings")));
  for (const [name, there] of Object.entries(USED)) {
    if (!there) root.append(h("p", { class: "note" }, t(`notes.no_${name}`)));
  }
  if (!compiled) return;
  const ratio = compiled.model_flops ? (compiled.flops / compiled.model_flops).toFixed(2) : "–";
  root.append(h("p", {}, t("notes.flops", { compiled: power(compiled.flops), model: power(compiled.model_flops), ratio }),
    compiled.library_attention ? ` ${t("notes.library")}` : ""));
  root.append(h("p", { class: "note" }, t("notes.compiled", { gpu: compiled.gpu, time: seconds(compiled.seconds) })));
  if (compiled.cannot_tell.length) {
    root.append(h("p", {}, t("notes.cannot_tell")),
      h("ul", { lang: "en" }, compiled.cannot_tell.map((line) => h("li", {}, line))));
  }
  if (compiled.copies.length) {
    root.append(h("h3", {}, t("notes.copies")), table(
      [t("notes.shape"), t("notes.source"), { text: t("ledger.times"), class: "number" }, { text: t("memory.bytes"), class: "number" }],
      compiled.copies.map((copy) => [`${copy.dtype} ${copy.shape.map(count).join(" × ")}`, copy.source,
        { text: count(copy.times), class: "number" }, { text: bytes(copy.bytes), class: "number" }]),
      { "aria-label": t("notes.copies") }));
  }
});
