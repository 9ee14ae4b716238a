// Tensor parallelism for one layer of this model: computing against exchange, by degree and link.

section("tensor", (root) => {
  const { rows, given, flops, tokens, reach } = DATA.tensor_parallel;
  const most = Math.max(...rows.filter((row) => row.reaches).map((row) => row.compute + row.exchange));
  const lines = rows.map((row) => {
    const share = row.exchange / (row.compute + row.exchange);
    const link = row.link ? `${t(`link.${row.link}`)} ${rate(row.rate)}` : "–";
    const here = row.parts === given && (row.link === null || isMine(row));
    const reason = !row.reaches ? t("tensor.reach", { link: t(`link.${row.link}`), most: count(reach[row.link]) })
      : !row.divides ? t("tensor.heads") : null;
    const drawn = row.reaches
      ? bar([{ value: row.compute, colour: "#0072b2", label: `${t("tensor.compute")}: ${seconds(row.compute)}` },
        { value: row.exchange, colour: "#d55e00", label: `${t("tensor.exchange")}: ${seconds(row.exchange)}` }], most, [],
      `${t("tensor.share")}: ${percent(share)}`)
      : h("small", {}, reason);
    const number = (text) => ({ text: row.reaches ? text : "–", class: "number" });
    return {
      attributes: { class: [row.reaches ? "" : "aside", here ? "given" : ""].join(" "), "data-degree": row.parts },
      cells: [{ text: here ? [count(row.parts), h("em", {}, t("tensor.given"))] : count(row.parts), class: "degree" }, link,
        h("div", { class: "in-table" }, drawn, row.reaches && reason ? h("small", {}, reason) : null),
        number(seconds(row.compute)), number(row.parts > 1 ? seconds(row.exchange) : "–"),
        { text: row.reaches ? percent(share) : "–", class: share > 0.5 && row.reaches ? "number over" : "number" }],
    };
  });
  root.append(
    h("p", { class: "note" }, t("tensor.basis", { tokens: count(tokens), flops: flopRate(flops) })),
    legend([["#0072b2", t("tensor.compute")], ["#d55e00", t("tensor.exchange")]]),
    table([{ text: "TP" }, t("tensor.link"), t("tensor.bar"), { text: t("tensor.compute"), class: "number" },
      { text: t("tensor.exchange"), class: "number" }, { text: t("tensor.share"), class: "number" }], lines,
    { "aria-label": t("tensor.title"), class: "tensor" }));
});

// Whether a row's link is the one that the layout's own tensor groups run on: the nearest that reaches.
function isMine(row) {
  const own = DATA.tensor_parallel.rows.filter((one) => one.parts === row.parts && one.reaches);
  return own[0] === row;
}
