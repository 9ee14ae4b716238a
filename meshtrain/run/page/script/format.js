// Numbers with their units: the same in both languages. Decimal units, as on data sheets.

// Three digits: 1.23, 45.6, 789.
function digits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function scaled(value, units, step = 1000) {
  let at = 0;
  while (value >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return [value, units[at]];
}

// Bytes: 999 B, 1.23 kB, 45.6 MB, 789 GB.
function bytes(value) {
  if (value < 999.5) return `${Math.round(value)} B`;
  const [number, unit] = scaled(value / 1000, ["kB", "MB", "GB", "TB", "PB"]);
  return `${digits(number)} ${unit}`;
}

function seconds(value) {
  if (value >= 1) return `${value < 1000 ? digits(value) : count(Math.round(value))} s`;
  if (value >= 1e-3) return `${digits(value * 1e3)} ms`;
  return value > 0 ? `${digits(value * 1e6)} µs` : "0 s";
}

function percent(share, places = 1) {
  return `${(share * 100).toFixed(places)} %`;
}

// Whole numbers with commas: 16,384.
function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

// 405.9 billion as 406e9: the exponents of a field that counts in billions. Below 100,000 as it is.
function power(value) {
  if (value < 1e5) return value < 999.5 ? digits(value) : count(value);
  const exponent = Math.floor(Math.log10(value) / 3) * 3;
  return `${digits(value / 10 ** exponent)}e${exponent}`;
}

function rate(bytesPerSecond) {
  return `${bytes(bytesPerSecond)}/s`;
}

function flopRate(value) {
  const [number, unit] = scaled(value, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"]);
  return unit === "PFLOP/s" && number < 10 ? `${count(number * 1000)} TFLOP/s` : `${digits(number)} ${unit}`;
}

function time(value) {
  if (value >= 172800) return `${digits(value / 86400)} d`;
  if (value >= 7200) return `${digits(value / 3600)} h`;
  return value >= 120 ? `${digits(value / 60)} min` : seconds(value);
}

// A few numbers as they are, many shortened: 0, 1, 2, 3, ... 4,096 in all are said by the caller.
function someOf(numbers, most = 12) {
  const shown = numbers.slice(0, most).map(count).join(", ");
  return numbers.length > most ? `${shown}, …` : shown;
}
