"use strict";
// Elements and words. Text gets into the page as text nodes only: what a model or a server said is
// never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// One more number that is as good as `value` for a person: 4 digits, no more.
function shown(value, format = "number") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (format === "percent") return `${fixed(100 * value, size < 0.0995 ? 2 : 1)} %`;
  if (format === "dollars") return `$${size < 10 ? value.toFixed(4) : grouped(value, 2)}`;
  if (format === "seconds" && 1e-6 <= size && size < 0.1) return `${significant(1e3 * value)} ms`;
  if (format === "seconds") return `${significant(size < 1e-6 ? 0 : value)} s`;
  return significant(value);
}

function significant(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 1e-3) return value.toExponential(2);
  if (size >= 1e3) return grouped(value, 0);
  return String(Number(value.toPrecision(4)));
}

function fixed(value, digits) {
  return String(Number(value.toFixed(digits)));
}

function grouped(value, digits) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// "8.5 s", "1 min 12 s", "3 h 20 min"
function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Where an axis from `low` to `high` has its lines: about `count` round numbers.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step || 0);
  return found;
}

// Calls `draw` once in the next frame, however often it is asked for until then.
function later(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
