// Where the time of a step goes: computing, waiting for exchanges, idle; and what is hidden behind computing.

const CAUSES = {
  products: "#0072b2", attention: "#56b4e9", memory: "#7d9cc0", recompute: "#a9c4de",
  tensor_parallel: "#d55e00", context: "#e69f00", experts: "#cc79a7", sends: "#f0c05a", weights: "#b0562b", data: "#8c3b1a",
  matrices: "#5e2412", host: "#6c757f", bubble: "#b9c0c7", update: "#009e73", muon: "#00543d",
};
const IDLE = ["host", "bubble"];

section("time", (root) => {
  const { parts, hidden, seconds: whole } = DATA.time;
  const segments = timeSegments(parts);
  const rows = Object.keys(CAUSES).filter((cause) => parts[cause] > 0 || hidden[cause] > 0).map((cause) => ({
    cells: [
      h("span", { class: "named" }, swatch(CAUSES[cause], IDLE.includes(cause)), term("cause", cause)),
      { text: parts[cause] ? seconds(parts[cause]) : "–", class: "number" },
      { text: parts[cause] ? percent(parts[cause] / whole) : "–", class: "number" },
      { text: hidden[cause] ? seconds(hidden[cause]) : "–", class: "number" },
    ],
  }));
  rows.push({ attributes: { class: "total" }, cells: [t("time.step"), { text: seconds(whole), class: "number" },
    { text: percent(1), class: "number" }, { text: seconds(DATA.time.hidden_in_all), class: "number" }] });
  root.append(bar(segments, whole, [], t("time.title")),
    table([t("time.cause"), { text: t("time.exposed"), class: "number" }, { text: t("time.share"), class: "number" },
      { text: t("time.hidden"), class: "number" }], rows, { "aria-label": t("time.title") }));
});

function timeSegments(parts) {
  return Object.entries(CAUSES).map(([cause, colour]) => ({
    value: parts[cause] ?? 0, colour, hatched: IDLE.includes(cause),
    label: `${term("cause", cause)}: ${seconds(parts[cause] ?? 0)}`,
  }));
}

function sum(values) {
  return values.reduce((all, one) => all + one, 0);
}
