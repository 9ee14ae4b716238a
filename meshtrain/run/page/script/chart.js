// Bars, colours and legends that several sections share. Colours are those of Okabe and Ito, told apart by all eyes.

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8a93a0"];

// From dark blue over green to yellow: many parts in order, told apart by lightness.
const RAMP = [[59, 60, 130], [45, 112, 142], [37, 159, 136], [110, 200, 90], [240, 226, 70]];

function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((from, i) => Math.round(from + (RAMP[low + 1][i] - from) * (at - low)));
}

// The colour of part `index` of `number`.
function partColour(index, number) {
  if (number <= HUES.length) return HUES[index];
  return `rgb(${ramp(index / (number - 1)).join(" ")})`;
}

// Black or white, whichever can be read on a colour.
function inkOn(colour) {
  const found = colour.startsWith("#")
    ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16))
    : colour.match(/\d+/g).map(Number);
  const [r, g, b] = found.map((one) => (one / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.25 ? "#101418" : "#ffffff";
}

// A bar of segments: {value, colour, label, hatched}; `most` is the value at its full width. Marks: {at, class, label}.
function bar(segments, most, marks = [], label = "") {
  const width = (value) => `${Math.min((value / most) * 100, 100).toFixed(3)}%`;
  let left = 0;
  const drawn = [];
  for (const one of segments) {
    if (!(one.value > 0)) continue;
    const room = Math.max(most - left, 0);
    drawn.push(h("span", {
      class: `segment${one.hatched ? " hatched" : ""}${one.value < most / 200 ? " thin" : ""}`, title: one.label,
      style: { left: width(left), width: width(Math.min(one.value, room)), "--colour": one.colour },
    }));
    left += one.value;
  }
  return h("div", { class: left > most * 1.0001 ? "bar cut" : "bar", role: "img", "aria-label": label },
    drawn, marks.filter((mark) => mark.at <= most).map((mark) =>
      h("span", { class: `mark ${mark.class}`, title: mark.label, style: { left: width(mark.at) } })));
}

// Swatches with their words: [colour, text, hatched].
function legend(items) {
  return h("ul", { class: "legend" }, items.map(([colour, text, hatched]) =>
    h("li", {}, swatch(colour, hatched), text)));
}

function swatch(colour, hatched = false) {
  return h("span", { class: hatched ? "swatch hatched" : "swatch", style: { "--colour": colour }, "aria-hidden": "true" });
}

// A figure with its name: used for facts beside a drawing.
function fact(name, value) {
  return h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value));
}
