"use strict";
// A report: all that is drawn lies in the page itself.

function drawReport() {
  const run = JSON.parse(document.getElementById("run").textContent);
  const points = new Points(0);
  points.replace(run.points);
  const main = document.getElementById("panels");
  const panels = panelsOf(run.panels, points, new Zoom());
  const lives = new Lives(Infinity);
  lives.replace(run.lives, run.now, run.tally);
  const fleet = new Fleet(lives, run.fleet_caption);
  const [first, second, ...others] = panels;
  main.append(first.root, second.root, fleet.root, ...others.map((panel) => panel.root));
  for (const panel of panels) panel.update();
  fleet.root.hidden = !run.lives.length;
  fleet.update();
  if (!run.samples.length) return;
  const byId = new Map(run.samples.map((group) => [group.id, group]));
  const texts = (group) => [group.prompt_text, ...group.rows.map((row) => row.response_text)];
  const has = (group, words) => texts(group).some((text) => text.toLowerCase().includes(words));
  const source = {
    entries: async (words) => run.samples.filter((group) => !words || has(group, words.toLowerCase())),
    group: async (id) => byId.get(id),
  };
  const samples = new Samples(source, run.samples_caption);
  main.append(samples.root);
  samples.refresh();
}

drawReport();
