"use strict";
// The page of a run that goes on: it hears of everything by server-sent events, and asks for
// samples and logs where somebody looks at them.

const MOST_NEWS = 200; // lines kept
const QUIET_SECONDS = 10; // without a word the connection counts as broken
const RETRY_SECONDS = [1, 2, 4, 8];

// In the fragment, which no server sees; then in this tab only.
function token() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") || "";
}

class Refused extends Error {}

async function ask(path, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(path, { headers, signal, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Refused((await answer.text()).trim());
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer;
}

// Calls `take(name, value)` for each event, until the stream ends.
async function listen(path, take) {
  const stopped = new AbortController();
  let timer = null;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stopped.abort(), QUIET_SECONDS * 1000);
  };
  heard();
  try {
    const reader = (await ask(path, stopped.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [name, data] = event.split("\n");
        take(name.replace(/^event: /, ""), JSON.parse(data.replace(/^data: /, "")));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

class Live {
  constructor() {
    this.points = new Points();
    this.lives = new Lives();
    this.zoom = new Zoom();
    this.panels = [];
    this.run = null;
    this.beat = null; // the run's clock when it was last heard, and ours then
    this.spot = (id) => document.getElementById(id);
    this.fleet = null;
    this.samples = new Samples(
      {
        entries: async (words) => (await ask(`data/samples?words=${encodeURIComponent(words)}`)).json(),
        group: async (id) => (await ask(`data/samples/${encodeURIComponent(id)}`)).json(),
      },
      "Whole groups of the first prompts of every so many steps (observe.samples_every_steps).",
    );
    this.logs = new Logs();
  }

  take(name, value) {
    this[`on_${name}`](value);
  }

  on_begin(run) {
    const other = !this.run || this.run.name !== run.name || this.panels.length === 0;
    this.run = run;
    this.supervised = run.supervised;
    this.points.replace(run.points);
    if (other) this.build(run);
    this.lives.replace([], 0, run.tally);
    this.spot("news").replaceChildren();
    this.spot("warnings").replaceChildren();
    this.on_warnings(run.warnings);
    this.on_lives(run);
    this.on_news(run.news);
    this.redraw();
    this.refreshSamples();
  }

  build(run) {
    document.title = `${run.name} – rlboost-jax`;
    this.spot("name").textContent = run.name;
    this.panels = panelsOf(run.panels, this.points, this.zoom);
    this.fleet = new Fleet(this.lives, run.fleet_caption);
    const [first, second, ...others] = this.panels;
    this.spot("panels").replaceChildren(first.root, second.root, this.fleet.root, ...others.map((panel) => panel.root), this.samples.root, this.logs.root);
  }

  on_points(columns) {
    this.points.add(columns);
    this.redraw();
    this.refreshSamples();
  }

  on_lives({ lives, now, tally }) {
    this.lives.add(lives, now, tally);
    this.hear(now);
    this.fleet.update();
    this.tiles();
  }

  on_now(now) {
    this.hear(now);
    this.lives.now = Math.max(this.lives.now, now);
    if (!this.fleet.zoom.range) this.fleet.update();
  }

  on_news(events) {
    const list = this.spot("news");
    for (const event of events) list.prepend(newsItem(event));
    while (list.children.length > MOST_NEWS) list.lastChild.remove();
    this.spot("news-section").hidden = !list.children.length;
  }

  on_supervised(losses) {
    this.supervised = losses;
    this.tiles();
  }

  on_warnings(lines) {
    for (const line of lines) this.spot("warnings").append(element("p", { class: "warning" }, line));
  }

  hear(now) {
    this.beat = [now, performance.now()];
  }

  redraw() {
    for (const panel of this.panels) panel.update();
    this.tiles();
  }

  refreshSamples() {
    const newest = this.points.last("step");
    if (newest === this.asked) return;
    this.asked = newest;
    this.samples.refresh().catch(() => {});
  }

  tiles() {
    const last = (key) => this.points.last(key);
    const { num_steps: total } = this.run;
    const done = last("step") === null ? 0 : last("step") + 1;
    const rate = last("reserved_per_second") === null ? null : last("reserved_per_second") + (last("preemptible_per_second") || 0);
    const recent = this.points.column("step_seconds").slice(-10).filter((value) => value !== null);
    const mean = recent.reduce((sum, value) => sum + value, 0) / (recent.length || 1);
    const measured = this.points.column("accuracy").filter((value) => value !== null);
    const waits = `waits: ${shown(last("train_wait_seconds"), "seconds")} learner, ${shown(last("remote_wait_seconds"), "seconds")} servers`;
    const ahead = done && done < total ? `about ${duration((total - done) * mean)} left` : done ? "all are done" : "none is finished yet";
    const durable = last("durable_step") === null ? "" : `; checkpoint ${last("durable_step")} is durable`;
    const { joined, lost, left } = this.lives.tally;
    const tiles = [
      ["step", last("step"), done ? String(last("step")) : "–", `${done}/${total} done, ${ahead}${durable}`],
      ["reward", last("reward_mean"), shown(last("reward_mean")), measured.length ? `accuracy ${shown(measured[measured.length - 1])}` : "of the newest step"],
      ["tokens per second", rate, shown(rate), `${shown(last("reserved_per_second"))} reserved, ${shown(last("preemptible_per_second"))} preemptible`],
      ["ready servers", this.lives.ready(), String(this.lives.ready()), `${joined} joined, ${lost} lost so far${left ? ` (${left} with notice)` : ""}`],
      ["waits", last("train_wait_seconds"), shown(last("step_seconds"), "seconds"), waits],
    ];
    const forecast = last("cost_forecast_dollars");
    if (last("spent_dollars")) tiles.push(["spent", last("spent_dollars"), shown(last("spent_dollars"), "dollars"), forecast ? `${shown(forecast, "dollars")} forecast for the whole run` : ""]);
    const [updates, first, newest] = this.supervised;
    if (updates) tiles.unshift(["supervised loss", newest, shown(newest), `nats per token after ${updates} updates on rows, ${shown(first)} at first`]);
    this.spot("tiles").replaceChildren(...tiles.map(([what, value, number, note]) => tile(what, value, number, note)));
    this.spot("progress").max = total;
    this.spot("progress").value = done;
  }
}

function tile(what, value, number, note) {
  const name = what === "waits" ? "seconds of the step" : what;
  return element(
    "div",
    { class: "tile", "data-tile": what, "data-value": value === null ? "" : String(value) },
    element("div", { class: "what" }, name),
    element("div", { class: "number" }, number),
    element("div", { class: "note" }, note),
  );
}

const BAD_NEWS = new Set(["lost", "rejected", "quarantined", "journal", "file_server"]);

function newsItem(event) {
  const time = new Date(event.time * 1000);
  const reason = event.reason ? `: ${event.reason}` : "";
  return element(
    "li",
    { class: BAD_NEWS.has(event.kind) ? "bad" : "", "data-kind": event.kind, "data-instance": event.instance, "data-time": event.time },
    element("time", { datetime: time.toISOString() }, time.toLocaleTimeString()),
    ` ${event.kind} `,
    element("b", {}, event.instance),
    reason,
  );
}

// The end of a log, while somebody has it open.
class Logs {
  constructor() {
    this.choice = element("select", { "aria-label": "which log" });
    this.text = element("pre", { class: "log", role: "group", tabindex: "0", "aria-label": "end of the log" });
    this.root = element("details", { class: "panel wide", id: "logs" }, element("summary", {}, "Logs"), element("div", { class: "filters" }, this.choice), this.text);
    this.root.addEventListener("toggle", () => this.follow());
    this.choice.addEventListener("change", () => this.read().catch(() => {}));
  }

  async follow() {
    while (this.root.open) {
      await this.read().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }

  async read() {
    const { names, text, name } = await (await ask(`data/log?name=${encodeURIComponent(this.choice.value)}`)).json();
    const listed = [...this.choice.options].map((option) => option.value);
    if (listed.join("\n") !== names.join("\n")) {
      this.choice.replaceChildren(...names.map((one) => element("option", { value: one }, one)));
      this.choice.value = name;
    }
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 8;
    this.text.textContent = text || "(empty)";
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }
}

async function live() {
  const page = new Live();
  window.live = page; // for tests
  const state = document.getElementById("state");
  const say = (kind, text) => {
    if (state.textContent === text) return;
    state.className = `state ${kind}`;
    state.textContent = text;
  };
  for (let attempt = 0; ; attempt += 1) {
    try {
      await listen("data/events", (name, value) => {
        attempt = 0;
        say("good", "live");
        page.take(name, value);
      });
    } catch (error) {
      if (error instanceof Refused) {
        say("bad", `refused: ${error.message}`);
        return;
      }
    }
    say("bad", "no connection; trying again");
    const seconds = RETRY_SECONDS[Math.min(attempt, RETRY_SECONDS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

live();
