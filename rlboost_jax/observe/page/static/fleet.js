"use strict";
// The fleet: a bar for each server from its order to its end, and above how many are ready.

const MOST_LIVES = 3000; // kept in the page
const MOST_SINGLE = 500; // in the part that is shown: of more servers a lane is one path, without names
const COUNT_HEIGHT = 64;
const ENDINGS = {
  killed: { name: "lost without notice", colour: "#d63b3b" },
  notice: { name: "lost with notice", colour: "#d08a12" },
  turned_away: { name: "turned away", colour: "#7c5cd6" },
};
// What else becomes of servers, for a person; `departures.py` has the definition of each.
const WORDS = { absent: "never joined", unknown: "not seen again", ended: "sent home" };

class Lives {
  constructor(most = MOST_LIVES) {
    this.most = most;
    this.byNumber = new Map();
    this.now = 0; // seconds since the first event
    this.tally = { joined: 0, lost: 0, left: 0 }; // of all, also those that are not kept
  }

  replace(lives, now, tally) {
    this.byNumber.clear();
    this.add(lives, now, tally);
  }

  add(lives, now, tally) {
    if (tally) this.tally = tally;
    for (const life of lives) this.byNumber.set(life.number, life);
    this.now = Math.max(this.now, now);
    for (const life of lives) this.now = Math.max(this.now, life.end ?? 0);
    if (this.byNumber.size > this.most) {
      const ended = [...this.byNumber.values()].filter((life) => life.end !== null).sort((a, b) => a.end - b.end);
      for (const life of ended.slice(0, this.byNumber.size - this.most)) this.byNumber.delete(life.number);
    }
  }

  // The lowest lane may be empty by now where old lives were left out.
  all() {
    return [...this.byNumber.values()];
  }

  ready() {
    return this.all().filter((life) => life.end === null && life.ready !== null && !life.reserved).length;
  }

  // (seconds, ready from then on)
  course() {
    const changes = new Map([[0, 0]]);
    const change = (at, by) => changes.set(at, (changes.get(at) || 0) + by);
    for (const life of this.all()) {
      if (life.ready === null || life.reserved) continue;
      change(life.ready, 1);
      if (life.end !== null) change(life.end, -1);
    }
    let count = 0;
    return [...changes].sort((a, b) => a[0] - b[0]).map(([at, by]) => [at, (count += by)]);
  }
}

class Fleet {
  constructor(lives, caption) {
    this.lives = lives;
    this.zoom = new Zoom();
    this.dragged = null;
    this.legend = element("div", { class: "legend" });
    this.plot = element("div", { class: "plot fleet", tabindex: "0", role: "application" });
    this.said = element("p", { class: "said" });
    const all = () => this.extent();
    this.root = element(
      "section",
      { class: "panel wide", id: "fleet", "aria-label": "Fleet" },
      element("div", { class: "head" }, element("h2", {}, "Fleet"), zoomButtons(this.zoom, all, "Fleet")),
      this.legend,
      this.plot,
      this.said,
      element("p", { class: "caption" }, caption),
    );
    this.update = later(() => this.draw());
    this.zoom.listeners.push(this.update);
    new ResizeObserver(this.update).observe(this.plot);
    interact(this.plot, {
      zoom: this.zoom,
      all,
      place: (event) => this.place(event),
      look: (at, begun) => {
        const dragged = begun === null || at === null ? null : [begun, at];
        if (dragged || this.dragged) this.update();
        this.dragged = dragged;
      },
    });
    this.plot.addEventListener("pointermove", (event) => this.look(event.target));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  extent() {
    return [0, Math.max(1, this.lives.now)];
  }

  inner() {
    const width = this.plot.clientWidth;
    return { left: 34, right: Math.max(60, width - 14), width };
  }

  place(event) {
    const { left, right } = this.inner();
    const [from, to] = this.zoom.range || this.extent();
    const share = (event.clientX - this.plot.getBoundingClientRect().left - left) / (right - left);
    return from + Math.min(1, Math.max(0, share)) * (to - from);
  }

  key(event) {
    const [from, to] = this.zoom.range || this.extent();
    const [, last] = this.extent();
    const shift = { ArrowLeft: -0.25, ArrowRight: 0.25 }[event.key];
    if (shift && this.zoom.range) {
      const by = Math.max(-from, Math.min(last - to, shift * (to - from)));
      this.zoom.set([from + by, to + by]);
    } else if (event.key === "+" || event.key === "-") {
      this.zoom.scale(event.key === "+" ? 0.5 : 2, this.extent(), (from + to) / 2);
    } else if (event.key === "Escape") {
      this.zoom.set(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  look(target) {
    const number = target.getAttribute && target.getAttribute("data-life");
    const life = number && this.lives.byNumber.get(Number(number));
    if (!life) return;
    const end = life.end === null ? "now" : duration(life.end);
    const word = life.ending in ENDINGS ? ENDINGS[life.ending].name : WORDS[life.ending];
    const how = life.ending ? `, ${word}${life.reason ? `: ${life.reason}` : ""}` : "";
    this.said.textContent = `${life.instance}: ${duration(life.begin)} to ${end}${how}`;
  }

  draw() {
    const lives = this.lives.all();
    this.root.hidden = !lives.length;
    if (!lives.length || !this.plot.clientWidth) return;
    const { left, right, width } = this.inner();
    const [from, to] = this.zoom.range || this.extent();
    const end = (life) => life.end ?? this.lives.now;
    const shown = lives.filter((life) => end(life) >= from && life.begin <= to).sort((a, b) => a.begin - b.begin);
    const lanes = [...new Set(shown.map((life) => life.lane))].sort((a, b) => a - b);
    const row = new Map(lanes.map((lane, place) => [lane, place]));
    const size = lanes.length > 40 ? 8 : lanes.length > 16 ? 14 : 22;
    const top = COUNT_HEIGHT + 18;
    const bottom = top + lanes.length * size + 4;
    const height = bottom + 24;
    const x = (at) => left + ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * (right - left);
    const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    svg.append(...this.axis(from, to, x, bottom, left, right));
    svg.append(...this.counts(from, to, x));
    const place = (life) => top + row.get(life.lane) * size;
    if (shown.length > MOST_SINGLE) {
      svg.append(...this.together(shown, { from, to, x, end, place, size }));
      this.said.textContent = `${shown.length} servers; zoom in for their names.`;
    } else {
      for (const life of shown) svg.append(...this.bar(life, end(life), x, place(life), size));
      for (const life of shown) {
        if (life.end !== null && life.end >= from && life.end <= to) svg.append(...this.mark(life, x(life.end), place(life) + size / 2, size));
      }
      if (this.said.textContent.endsWith("for their names.")) this.said.textContent = "";
    }
    if (this.dragged) {
      const [a, b] = this.dragged.map(x);
      svg.append(drawn("rect", { class: "chosen", x: Math.min(a, b), y: 4, width: Math.abs(b - a), height: bottom }));
    }
    this.plot.replaceChildren(svg);
    this.explain(lives);
  }

  axis(from, to, x, bottom, left, right) {
    const parts = [drawn("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom })];
    const spans = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
    const wanted = (to - from) / Math.max(2, (right - left) / 90);
    const step = spans.find((span) => span >= wanted) || 2419200;
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      parts.push(drawn("line", { class: "grid", x1: x(at), x2: x(at), y1: 6, y2: bottom }));
      parts.push(drawn("text", { class: "tick", x: x(at), y: bottom + 17, "text-anchor": "middle" }, clock(at, step)));
    }
    return parts;
  }

  counts(from, to, x) {
    const course = this.lives.course();
    const most = Math.max(1, ...course.map(([, count]) => count));
    const y = (count) => COUNT_HEIGHT - (count / most) * (COUNT_HEIGHT - 10);
    let path = `M${x(from).toFixed(1)} ${y(0)}`;
    let height = 0;
    for (const [at, count] of course) {
      if (at > to) break;
      path += `L${x(at).toFixed(1)} ${y(height).toFixed(1)}L${x(at).toFixed(1)} ${y(count).toFixed(1)}`;
      height = count;
    }
    path += `L${x(to).toFixed(1)} ${y(height).toFixed(1)}L${x(to).toFixed(1)} ${y(0)}Z`;
    return [
      drawn("path", { class: "ready", d: path }),
      drawn("text", { class: "tick", x: 28, y: y(most) + 4, "text-anchor": "end" }, most),
      drawn("text", { class: "tick", x: 28, y: y(0) + 2, "text-anchor": "end" }, 0),
      drawn("line", { class: "grid", x1: x(from), x2: x(to), y1: y(most), y2: y(most) }),
    ];
  }

  bar(life, end, x, y, size) {
    const ready = life.ready ?? end;
    const parts = [];
    const box = (a, b, colour) => {
      const from = x(a);
      const width = Math.max(1, x(b) - from);
      parts.push(drawn("rect", { x: from, y: y + 2, width, height: size - 4, rx: 2, fill: colour, "data-life": life.number }));
      return width;
    };
    if (ready > life.begin) box(life.begin, ready, "#a9bdec");
    if (life.ready !== null) {
      const width = box(ready, end, life.reserved ? "#7c5cd6" : "#2f6fed");
      const fits = Math.floor((width - 8) / 6.2);
      if (size >= 14 && fits >= Math.min(4, life.instance.length)) {
        const name = life.instance.length <= fits ? life.instance : `${life.instance.slice(0, Math.max(1, fits - 1))}…`;
        parts.push(drawn("text", { class: "name", x: x(ready) + 5, y: y + size / 2 + 4, "data-life": life.number }, name));
      }
    }
    return parts;
  }

  // Many servers as few paths: a path for each colour, a mark for each pixel of a lane.
  together(shown, { from, to, x, end, place, size }) {
    const paths = new Map();
    const put = (colour, path) => paths.set(colour, (paths.get(colour) || "") + path);
    const marks = new Map();
    for (const life of shown) {
      const [begin, ready, last] = [life.begin, life.ready ?? end(life), end(life)].map((at) => Math.round(x(at) * 2) / 2);
      const y = place(life) + 2;
      const box = (a, b) => `M${a} ${y}H${Math.max(b, a + 0.5)}V${y + size - 4}H${a}Z`;
      if (ready > begin) put("#a9bdec", box(begin, ready));
      if (life.ready !== null) put(life.reserved ? "#7c5cd6" : "#2f6fed", box(ready, last));
      if (life.ending in ENDINGS && life.end >= from && life.end <= to) marks.set(`${life.ending} ${life.lane} ${Math.round(last / 3)}`, [life.ending, last, place(life) + size / 2]);
    }
    const parts = [...paths].map(([colour, d]) => drawn("path", { d, fill: colour }));
    const crosses = new Map();
    for (const [ending, px, py] of marks.values()) crosses.set(ending, (crosses.get(ending) || "") + outline(ending, px, py, Math.min(3, size / 2 - 1)));
    for (const [ending, d] of crosses) parts.push(drawn("path", { d, class: "mark thin", stroke: ENDINGS[ending].colour, fill: ENDINGS[ending].colour, "data-ending": ending }));
    return parts;
  }

  mark(life, x, y, size) {
    const ending = ENDINGS[life.ending];
    if (!ending) return [];
    const about = { d: outline(life.ending, x, y, Math.min(5, size / 2 - 1)), "data-life": life.number, "data-instance": life.instance, "data-ending": life.ending };
    return [drawn("path", { ...about, class: "halo" }), drawn("path", { ...about, class: "mark", stroke: ending.colour, fill: ending.colour })];
  }

  explain(lives) {
    const count = (keep) => lives.filter(keep).length;
    const { lost, left } = this.lives.tally;
    const ended = { killed: lost - left, notice: left };
    const entries = [
      ["starting, fetching weights", "#a9bdec", count((life) => life.end === null && life.ready === null)],
      ["ready for work", "#2f6fed", this.lives.ready()],
      ["reserved", "#7c5cd6", count((life) => life.reserved && life.end === null)],
      ...Object.entries(ENDINGS).map(([ending, { name, colour }]) => [name, colour, ended[ending] ?? count((life) => life.ending === ending)]),
    ];
    const nodes = entries
      .filter(([, , number], place) => number || place < 2)
      .map(([name, colour, number]) => {
        const swatch = element("span", { class: "swatch" });
        swatch.style.background = colour;
        return element("span", { class: "entry" }, swatch, `${name} `, element("b", {}, number));
      });
    this.legend.replaceChildren(...nodes);
    const words = nodes.map((node) => node.textContent).join(", ");
    this.plot.setAttribute("aria-label", `Servers over time; ${words}. Plus and minus zoom, arrow keys move.`);
  }
}

// A cross for a server that was lost without notice, a diamond for others.
function outline(ending, x, y, r) {
  if (ending === "killed") return `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;
  return `M${x - r} ${y}L${x} ${y - r}L${x + r} ${y}L${x} ${y + r}Z`;
}

// Seconds since the first event, as an axis has them.
function clock(at, step) {
  const two = (number) => String(number).padStart(2, "0");
  if (step < 60) return at < 60 ? `${at} s` : `${Math.floor(at / 60)}:${two(at % 60)}`;
  if (step < 3600) return at < 3600 ? `${Math.floor(at / 60)} min` : `${Math.floor(at / 3600)}:${two(Math.floor((at % 3600) / 60))} h`;
  return at < 172800 ? `${Math.floor(at / 3600)} h` : `${fixed(at / 86400, 1)} d`;
}
