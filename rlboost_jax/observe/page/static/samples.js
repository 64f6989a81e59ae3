"use strict";
// Samples to browse: a list of groups with filters, a group's responses, and what changed between
// two answers to the same prompt. A source gives `entries(words)` and `group(id)`, as promises.

const MOST_LISTED = 100; // entries in the list at a time

class Samples {
  constructor(source, caption) {
    this.source = source;
    this.entries = [];
    this.chosen = null; // the group that is shown
    this.asked = 0; // questions so far: an answer to an older one is passed over
    this.words = element("input", { type: "search", placeholder: "words in prompt or response", "aria-label": "words in prompt or response", maxlength: "200" });
    this.step = element("select", { "aria-label": "step" });
    this.which = element("select", { "aria-label": "which groups" });
    for (const [value, name] of [["", "all groups"], ["right", "best reward above 0"], ["wrong", "best reward 0 or less"], ["cut", "with a response cut off"], ["again", "prompts seen at several steps"]]) {
      this.which.append(element("option", { value }, name));
    }
    this.list = element("ul", { class: "groups" });
    this.count = element("p", { class: "said", role: "status" });
    this.detail = element("div", { class: "group" });
    this.root = element(
      "section",
      { class: "panel wide", id: "samples", "aria-label": "Samples" },
      element("div", { class: "head" }, element("h2", {}, "Samples")),
      element("div", { class: "filters" }, this.words, this.step, this.which),
      this.count,
      element("div", { class: "browse" }, this.list, this.detail),
      element("p", { class: "caption" }, caption),
    );
    this.root.hidden = true;
    let timer = null;
    this.words.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), 250);
    });
    this.step.addEventListener("change", () => this.show());
    this.which.addEventListener("change", () => this.show());
  }

  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    const entries = await this.source.entries(this.words.value.trim());
    if (asked !== this.asked) return;
    this.entries = entries;
    if (entries.length) this.root.hidden = false;
    const chosen = this.step.value;
    const steps = [...new Set(entries.map((entry) => entry.step))];
    this.step.replaceChildren(element("option", { value: "" }, "all steps"), ...steps.map((step) => element("option", { value: step }, `step ${step}`)));
    this.step.value = steps.map(String).includes(chosen) ? chosen : "";
    this.show();
    if (this.chosen === null && entries.length) this.open(entries[0].id);
  }

  same(entry) {
    return this.entries.filter((other) => other.digest === entry.digest);
  }

  show() {
    const keeps = {
      "": () => true,
      right: (entry) => entry.best > 0,
      wrong: (entry) => entry.best !== null && entry.best <= 0,
      cut: (entry) => entry.cut_off > 0,
      again: (entry) => this.same(entry).length > 1,
    }[this.which.value];
    const step = this.step.value;
    const found = this.entries.filter((entry) => (step === "" || String(entry.step) === step) && keeps(entry));
    this.count.textContent = found.length > MOST_LISTED ? `${found.length} groups, the newest ${MOST_LISTED} are listed` : `${found.length} group${found.length === 1 ? "" : "s"}`;
    this.list.replaceChildren(...found.slice(0, MOST_LISTED).map((entry) => this.item(entry)));
  }

  item(entry) {
    const button = element(
      "button",
      { type: "button", "aria-pressed": String(entry.id === this.chosen) },
      element("span", { class: "where" }, `step ${entry.step}, prompt ${entry.prompt}`),
      element("b", {}, shown(entry.mean)),
      element("span", { class: "prompt-head", dir: "auto" }, entry.head || "(empty)"),
    );
    button.addEventListener("click", () => this.open(entry.id));
    return element("li", {}, button);
  }

  async open(id) {
    this.chosen = id;
    this.show();
    const group = await this.source.group(id);
    if (!group || id !== this.chosen) return;
    const others = this.same(group).filter((entry) => entry.id !== id);
    this.detail.replaceChildren(
      element("h3", {}, `step ${group.step}, prompt ${group.prompt}`),
      element("pre", { class: "prompt", dir: "auto", role: "group", tabindex: "0", "aria-label": "prompt" }, group.prompt_text),
      this.comparison(group, others),
      this.table(group),
    );
  }

  table(group) {
    const parts = [...new Set(group.rows.flatMap((row) => Object.keys(row.rewards)))];
    const titles = ["reward", ...parts, "advantage", "tokens"];
    const rows = group.rows.map((row) => {
      const numbers = [row.reward, ...parts.map((part) => row.rewards[part]), row.advantage, row.tokens];
      const facts = titles.map((title, i) => element("span", { class: "entry" }, `${title} `, element("b", {}, shown(numbers[i]))));
      if (row.cut_off) facts.push(element("span", { class: "entry cut" }, "cut off"));
      if (row.left_out) facts.push(element("span", { class: "entry cut" }, `left out: ${row.left_out}`));
      else if (!row.trained) facts.push(element("span", { class: "entry cut" }, "not trained on"));
      const texts = row.turns.length ? row.turns.flatMap((part, i) => this.part(row, part, row.turns[i - 1])) : [this.text(row, true, row.response_text)];
      return element("li", {}, element("div", { class: "legend" }, ...facts), ...texts);
    });
    return element("ol", { class: "responses" }, ...rows);
  }

  // A turn of the policy with what is known of it, or what it was given.
  part(row, part, before) {
    const facts = [];
    const say = (text, kind = "") => facts.push(element("span", { class: `entry${kind}` }, text));
    if (part.sequence && part.sequence !== (before ? before.sequence : 0)) say(`sequence ${part.sequence + 1} begins`);
    if (part.sampled) {
      say(part.turn === null ? "sampled" : `turn ${part.turn + 1}, sampled`);
      if (part.reward !== null) say(`reward ${shown(part.reward)}`);
      if (part.advantage !== null) say(`advantage ${shown(part.advantage)}`);
      for (const call of part.calls) say(`calls ${call.name}${call.failed ? ", failed" : ""}`, call.failed ? " cut" : "");
    } else {
      say("given");
    }
    return [element("div", { class: "legend turn" }, ...facts), this.text(row, part.sampled, part.text)];
  }

  text(row, sampled, text) {
    const trained = sampled && row.trained && !row.left_out;
    const label = sampled ? (trained ? "sampled, trained on" : "sampled, not trained on") : "given";
    return element("pre", { class: `${sampled ? "response" : "prompt"}${trained ? " trained" : ""}`, dir: "auto", role: "group", tabindex: "0", "aria-label": label }, text);
  }

  // Against the best response to the same prompt at another step.
  comparison(group, others) {
    if (!others.length) return element("p", { class: "said" }, "This prompt was kept at this step only.");
    const choice = element("select", { "aria-label": "compare with the same prompt of" }, ...others.map((entry) => element("option", { value: entry.id }, `step ${entry.step} (mean reward ${shown(entry.mean)})`)));
    const result = element("pre", { class: "difference", dir: "auto", role: "group", tabindex: "0", "aria-label": "differences" });
    const compare = async () => {
      const other = await this.source.group(choice.value);
      if (!other) return;
      const [older, newer] = other.step < group.step ? [other, group] : [group, other];
      const [before, after] = [older, newer].map((one) => best(one.rows));
      const tags = { same: "span", gone: "del", new: "ins" };
      const head = `best response, step ${older.step} → step ${newer.step} (reward ${shown(before.reward)} → ${shown(after.reward)})\n\n`;
      result.replaceChildren(element("span", { class: "where" }, head), ...differences(before.response_text, after.response_text).map(([kind, text]) => element(tags[kind], {}, text)));
    };
    choice.addEventListener("change", compare);
    compare();
    return element("div", {}, element("label", { class: "said" }, "The same prompt at ", choice), result);
  }
}

function best(rows) {
  return rows.reduce((found, row) => ((row.reward ?? -Infinity) > (found.reward ?? -Infinity) ? row : found), rows[0]);
}
