"use strict";
// Curves of several runs over each other; all that is drawn lies in the page itself.

function drawComparison() {
  const compared = JSON.parse(document.getElementById("comparison").textContent);
  const points = new Points(0);
  points.replace(compared.points);
  const panels = panelsOf(compared.panels, points, new Zoom());
  document.getElementById("panels").append(...panels.map((panel) => panel.root));
  for (const panel of panels) panel.update();
}

drawComparison();
