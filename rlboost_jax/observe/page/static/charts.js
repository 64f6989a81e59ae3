"use strict";
// Panels of curves over the steps of a run, with a zoom that all of them share.

const HEIGHT = 220; // of a plot
const MARGIN = { left: 56, right: 14, top: 10, bottom: 26 };
const MOST_POINTS = 4000; // kept in the page
const MARKS = 100; // dots of a curve

// Columns of numbers, one entry a step. Beyond MOST_POINTS every second one of the older half goes.
class Points {
  constructor(most = MOST_POINTS) {
    this.most = most;
    this.length = 0;
    this.columns = {};
  }

  replace(columns) {
    this.length = 0;
    this.columns = {};
    this.add(columns);
  }

  add(columns) {
    const count = (columns.step || []).length;
    for (const key of Object.keys(columns)) {
      if (!(key in this.columns)) this.columns[key] = new Array(this.length).fill(null);
    }
    for (const [key, column] of Object.entries(this.columns)) {
      const values = columns[key] || new Array(count).fill(null);
      for (const value of values) column.push(value);
    }
    this.length += count;
    while (this.most && this.length > this.most) this.thin();
  }

  // Of two neighbours the one that was measured stays, else the first.
  thin() {
    const half = Math.floor(this.length / 4) * 2;
    const measured = this.columns.accuracy || [];
    const kept = [];
    for (let i = 0; i < half; i += 2) {
      const second = (measured[i] ?? null) === null && (measured[i + 1] ?? null) !== null;
      kept.push(second ? i + 1 : i);
    }
    for (let i = half; i < this.length; i += 1) kept.push(i);
    for (const [key, column] of Object.entries(this.columns)) this.columns[key] = kept.map((i) => column[i]);
    this.length = kept.length;
  }

  column(key) {
    return this.columns[key] || [];
  }

  // Keys for which any number is known.
  known(series) {
    if (series.key.endsWith("/")) return Object.keys(this.columns).some((key) => key.startsWith(series.key));
    const values = this.column(series.key);
    if (series.unless_zero) return values.some((value) => value);
    return values.some((value) => value !== null);
  }

  // Of the newest step; the row of the final evaluation, behind it, is of none.
  last(key) {
    const at = this.length - 1 - (this.column("final")[this.length - 1] ? 1 : 0);
    return this.column(key)[at] ?? null;
  }
}

// Which part of an axis is shown, of all plots that have it.
class Zoom {
  constructor() {
    this.range = null; // [from, to]; null: everything
    this.listeners = [];
  }

  set(range) {
    this.range = range;
    for (const listener of this.listeners) listener();
  }

  // Half or twice as much around `centre`, within `all`.
  scale(factor, all, centre) {
    const [from, to] = this.range || all;
    const half = ((to - from) * factor) / 2;
    const low = Math.max(all[0], centre - half);
    const high = Math.min(all[1], centre + half);
    if (half * 2 >= all[1] - all[0]) this.set(null);
    else if (high - low > 0) this.set([low, high]);
  }
}

const COLOURS = ["#2f6fed", "#0e9f84", "#d08a12", "#7c5cd6", "#d63b3b", "#7a8496"];

// A series for each key that one with a "/" at its end stands for.
function expanded(field, points) {
  return field.series.flatMap((series) => {
    if (!series.key.endsWith("/")) return [series];
    const keys = Object.keys(points.columns).filter((key) => key.startsWith(series.key));
    return keys.map((key, place) => ({
      ...series,
      key,
      name: key.slice(series.key.length),
      colour: COLOURS[place % COLOURS.length],
    }));
  });
}

// What a person does to a plot: look at a place, choose a part of it, go back.
function interact(plot, { zoom, all, place, look }) {
  let begun = null; // where a drag began, in the axis's own numbers
  plot.addEventListener("pointermove", (event) => {
    const at = place(event);
    look(at, begun);
  });
  plot.addEventListener("pointerleave", () => {
    begun = null;
    look(null, null);
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begun = place(event);
  });
  plot.addEventListener("pointerup", (event) => {
    const end = place(event);
    const [low, high] = zoom.range || all();
    if (begun !== null && Math.abs(end - begun) > 0.02 * (high - low)) {
      zoom.set([Math.min(begun, end), Math.max(begun, end)]);
    }
    begun = null;
  });
  plot.addEventListener("dblclick", () => zoom.set(null));
}

function zoomButtons(zoom, all, what) {
  const centre = () => {
    const [from, to] = zoom.range || all();
    return (from + to) / 2;
  };
  const button = (label, text, act) => {
    const made = element("button", { type: "button", "aria-label": `${text}, ${label}: ${what}`, title: label }, text);
    made.addEventListener("click", act);
    return made;
  };
  return element(
    "div",
    { class: "zoom" },
    button("zoom in", "+", () => zoom.scale(0.5, all(), centre())),
    button("zoom out", "−", () => zoom.scale(2, all(), centre())),
    button("show everything", "all", () => zoom.set(null)),
    button("show the newest tenth", "newest", () => {
      const [from, to] = all();
      zoom.set([to - (to - from) / 10, to]);
    }),
  );
}

// One plot with its legend, which has the numbers of the step that is looked at.
class Field {
  constructor(field, points, zoom) {
    Object.assign(this, { field, points, zoom, at: null, dragged: null });
    this.legend = element("div", { class: "legend" });
    this.plot = element("div", { class: "plot", tabindex: "0", role: "application" });
    this.root = element("div", { class: "field" }, this.legend, this.plot);
    this.update = later(() => this.draw());
    zoom.listeners.push(this.update);
    new ResizeObserver(this.update).observe(this.plot);
    const all = () => this.extent();
    interact(this.plot, {
      zoom,
      all,
      place: (event) => this.place(event),
      look: (at, begun) => {
        this.dragged = begun === null || at === null ? null : [begun, at];
        this.look(at);
      },
    });
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.look(null));
  }

  series() {
    return expanded(this.field, this.points).filter((series) => this.points.known(series));
  }

  extent() {
    const steps = this.points.column("step");
    if (!steps.length) return [0, 1];
    const [first, last] = [steps[0], steps[steps.length - 1]];
    return first === last ? [first - 0.5, last + 0.5] : [first, last];
  }

  inner() {
    const width = this.plot.clientWidth;
    const right = this.series().some((series) => series.right) ? 52 : MARGIN.right;
    return { left: MARGIN.left, right: Math.max(MARGIN.left + 20, width - right), width };
  }

  place(event) {
    const { left, right } = this.inner();
    const [from, to] = this.zoom.range || this.extent();
    const share = (event.clientX - this.plot.getBoundingClientRect().left - left) / (right - left);
    return from + Math.min(1, Math.max(0, share)) * (to - from);
  }

  key(event) {
    const steps = this.points.column("step");
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (move && steps.length) {
      const here = this.at === null ? steps.length : this.nearest(this.at);
      this.look(steps[Math.min(steps.length - 1, Math.max(0, here + move))]);
    } else if (event.key === "+" || event.key === "-") {
      const centre = this.at === null ? (this.extent()[0] + this.extent()[1]) / 2 : this.at;
      this.zoom.scale(event.key === "+" ? 0.5 : 2, this.extent(), centre);
    } else if (event.key === "Escape") {
      this.zoom.set(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  look(at) {
    this.at = at;
    this.update();
  }

  // Index of the step next to a place.
  nearest(at) {
    const steps = this.points.column("step");
    let [low, high] = [0, steps.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < at) low = middle + 1;
      else high = middle;
    }
    return low > 0 && at - steps[low - 1] < steps[low] - at ? low - 1 : low;
  }

  draw() {
    const series = this.series();
    this.root.hidden = !series.length;
    if (!series.length || !this.plot.clientWidth) return;
    const { left, right, width } = this.inner();
    const [from, to] = this.zoom.range || this.extent();
    const bottom = HEIGHT - MARGIN.bottom;
    const x = (value) => left + ((value - from) / (to - from)) * (right - left);
    const scaleOf = (side) => {
      const [low, high] = this.limits(series.filter((one) => one.right === side), from, to, side);
      return { low, high, y: (v) => bottom - ((v - low) / (high - low)) * (bottom - MARGIN.top) };
    };
    const scales = { false: scaleOf(false), true: scaleOf(true) };
    const svg = drawn("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
    svg.append(...this.axes(scales, series, { left, right, bottom, from, to, x }));
    const clip = drawn("svg", { x: left, y: 0, width: right - left, height: bottom + 1, viewBox: `${left} 0 ${right - left} ${bottom + 1}` });
    clip.append(...this.stacks(series, scales.false, from, to, x));
    for (const one of series) {
      const scale = scales[one.right];
      if (one.kind !== "stack") clip.append(...this.curve(one, scale.y, from, to, x));
    }
    svg.append(clip);
    if (this.dragged) {
      const [a, b] = this.dragged.map(x);
      svg.append(drawn("rect", { class: "chosen", x: Math.min(a, b), y: MARGIN.top, width: Math.abs(b - a), height: bottom - MARGIN.top }));
    }
    const index = this.at === null ? this.points.length - 1 : this.nearest(this.at);
    if (this.at !== null) {
      const there = x(this.points.column("step")[index]);
      svg.append(drawn("line", { class: "cursor", x1: there, x2: there, y1: MARGIN.top, y2: bottom }));
    }
    this.plot.replaceChildren(svg);
    this.explain(series, index);
  }

  // Of the vertical axis on one side.
  limits(series, from, to, side) {
    let [low, high] = [Infinity, -Infinity];
    const sums = new Map();
    for (const one of series) {
      const [xs, ys] = [this.points.column(one.x), this.points.column(one.key)];
      for (let i = 0; i < ys.length; i += 1) {
        if (ys[i] === null || xs[i] < from || xs[i] > to) continue;
        const value = one.kind === "stack" ? ys[i] + (sums.get(i) || 0) : ys[i];
        if (one.kind === "stack") sums.set(i, value);
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low > high) [low, high] = [0, 1];
    if (this.field.from_zero && low > 0) low = 0;
    if (!side && this.field.top !== null && high < this.field.top) high = this.field.top;
    if (high === low) high = low + (Math.abs(low) || 1);
    return [low, high + (high - low) * 0.04];
  }

  axes(scales, series, { left, right, bottom, from, to, x }) {
    const parts = [];
    const { low, high, y } = scales.false;
    for (const value of ticks(low, high, 4)) {
      parts.push(drawn("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
      parts.push(drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, this.tick(value, this.field.format)));
    }
    if (series.some((one) => one.right)) {
      const axis = scales.true;
      for (const value of ticks(axis.low, axis.high, 4)) {
        parts.push(drawn("text", { class: "tick", x: right + 6, y: axis.y(value) + 4 }, this.tick(value, this.field.right_format)));
      }
    }
    for (const value of ticks(from, to, Math.max(2, (right - left) / 90))) {
      if (value % 1) continue;
      parts.push(drawn("text", { class: "tick", x: x(value), y: bottom + 18, "text-anchor": "middle" }, grouped(value, 0)));
    }
    parts.push(drawn("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    return parts;
  }

  tick(value, format) {
    const size = Math.abs(value);
    if (format === "percent") return `${fixed(100 * value, 2)}%`;
    const unit = format === "dollars" ? "$" : "";
    if (size >= 1e6) return `${unit}${fixed(value / 1e6, 2)}M`;
    if (size >= 1e4) return `${unit}${fixed(value / 1e3, 1)}k`;
    if (size > 0 && size < 1e-3) return `${unit}${value.toExponential(0)}`;
    if (size >= 1e3 && Number.isInteger(value)) return `${unit}${grouped(value, 0)}`;
    return `${unit}${Number(value.toPrecision(6))}`;
  }

  // A curve through all points, or, where a pixel has several, through the least and the largest.
  curve(one, y, from, to, x) {
    const [xs, ys] = [this.points.column(one.x), this.points.column(one.key)];
    let path = "";
    let pen = "M";
    let pixel = null;
    let seen = [];
    const flush = () => {
      for (const [px, value] of corners(seen)) {
        path += `${pen}${px.toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
      seen = [];
    };
    const marks = [];
    let before = null;
    for (let i = 0; i < ys.length; i += 1) {
      if (ys[i] === null && one.kind === "dots") continue;
      if (ys[i] === null) {
        flush();
        [pen, pixel, before] = ["M", null, null];
        continue;
      }
      const inside = xs[i] >= from && xs[i] <= to;
      if (!inside && xs[i] < from) {
        before = [x(xs[i]), ys[i]];
        continue;
      }
      if (before !== null) {
        seen.push(before);
        before = null;
      }
      const px = x(xs[i]);
      const column = Math.round(px);
      if (column !== pixel) {
        flush();
        pixel = column;
        seen = [[px, ys[i]]];
      } else {
        seen.push([px, ys[i]]);
      }
      if (one.kind === "dots") marks.push([px, y(ys[i])]);
      if (!inside) break;
    }
    flush();
    const dash = one.kind === "dots" ? "2 4" : one.dash ? "6 4" : null;
    const parts = [drawn("path", { class: "curve", d: path, stroke: one.colour, "stroke-dasharray": dash })];
    if (pen === "L" && !path.includes("L")) marks.push(path.slice(1).split(" ").map(Number));
    for (const [px, py] of spread(marks, MARKS)) parts.push(drawn("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: 3.5, fill: one.colour }));
    return parts;
  }

  // Layers that add up; a pixel with several steps has their mean.
  stacks(series, scale, from, to, x) {
    const layers = series.filter((one) => one.kind === "stack");
    if (!layers.length) return [];
    const steps = this.points.column("step");
    const groups = [];
    for (let i = 0; i < steps.length; i += 1) {
      if (steps[i] + 0.5 < from || steps[i] - 0.5 > to || this.points.column("final")[i]) continue;
      const column = Math.round(x(steps[i]));
      const last = groups[groups.length - 1];
      if (last && last.column === column) last.indices.push(i);
      else groups.push({ column, indices: [i] });
    }
    const base = groups.map(() => 0);
    return layers.map((one) => {
      const values = this.points.column(one.key);
      const below = [...base];
      groups.forEach((group, g) => {
        const sum = group.indices.reduce((total, i) => total + (values[i] || 0), 0);
        base[g] += sum / group.indices.length;
      });
      const edge = (heights) =>
        groups.map((group, g) => {
          const a = x(steps[group.indices[0]] - 0.5);
          const b = x(steps[group.indices[group.indices.length - 1]] + 0.5);
          return [[a, scale.y(heights[g])], [b, scale.y(heights[g])]];
        });
      const outline = [...edge(base).flat(), ...edge(below).flat().reverse()];
      const d = outline.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
      return drawn("path", { d: `${d}Z`, fill: one.colour, "fill-opacity": 0.85 });
    });
  }

  explain(series, index) {
    const step = this.points.column("step")[index];
    const entries = series.map((one) => {
      let at = index;
      const values = this.points.column(one.key);
      if (this.at === null || one.kind === "dots") while (at > 0 && (values[at] ?? null) === null) at -= 1;
      const value = values[at] ?? null;
      const format = one.right ? this.field.right_format : this.field.format;
      const number = element("b", { "data-key": one.key, "data-value": value === null ? "" : String(value) }, shown(value, format));
      const unit = one.right && this.field.right_title ? ` ${this.field.right_title}` : "";
      const swatch = element("span", { class: `swatch ${one.kind}` });
      swatch.style.background = one.colour;
      return element("span", { class: "entry", title: unit.trim() }, swatch, `${one.name} `, number);
    });
    const where = element("span", { class: "entry at", "data-step": String(step) }, this.points.column("final")[index] ? "after the last step" : `step ${step}`);
    this.legend.replaceChildren(where, ...entries);
    const words = [...this.legend.children].map((entry) => entry.textContent).join(", ");
    this.plot.setAttribute("aria-label", `${this.field.title} over steps; ${words}. Arrow keys move, plus and minus zoom.`);
  }
}

// Every so many of them that there are at most `most`, the newest among them.
function spread(marks, most) {
  const every = Math.ceil(marks.length / most) || 1;
  return marks.filter((_, i) => (marks.length - 1 - i) % every === 0);
}

// Of points in one column of pixels: the first, the least, the largest and the last.
function corners(points) {
  if (points.length <= 4) return points;
  let [least, largest] = [0, 0];
  points.forEach(([, value], i) => {
    if (value < points[least][1]) least = i;
    if (value > points[largest][1]) largest = i;
  });
  const places = [...new Set([0, Math.min(least, largest), Math.max(least, largest), points.length - 1])];
  return places.map((i) => points[i]);
}

// A section: heading, fields, caption; hidden while it has nothing to show.
class Panel {
  constructor(panel, points, zoom) {
    this.fields = panel.fields.map((field) => new Field(field, points, zoom));
    const all = () => this.fields[0].extent();
    this.root = element(
      "section",
      { class: this.fields.length > 1 ? "panel wide" : "panel", id: panel.id, "aria-label": panel.title },
      element("div", { class: "head" }, element("h2", {}, panel.title), zoomButtons(zoom, all, panel.title)),
      element("div", { class: this.fields.length > 1 ? "fields" : "" }, ...this.fields.map((field) => field.root)),
      element("p", { class: "caption" }, panel.caption),
    );
  }

  update() {
    this.root.hidden = !this.fields.some((field) => field.series().length);
    for (const field of this.fields) field.update();
  }
}

function panelsOf(described, points, zoom) {
  return described.map((panel) => new Panel(panel, points, zoom));
}
