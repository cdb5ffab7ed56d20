// Draws the timelines, and reloads the page's figures every few seconds. Without scripts the page reloads as a whole.
"use strict";

(() => {
  const seconds = Number(document.body.dataset.reloadSeconds);
  const content = document.getElementById("content");
  const freshness = document.getElementById("freshness");
  const pause = document.getElementById("pause");
  let charts = [];
  let paused = false;
  let timer = null;
  let freshAt = Date.now();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const short = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "s") {
      if (value >= 172800) return +(value / 86400).toFixed(1) + " d";
      if (value >= 3600) return +(value / 3600).toFixed(1) + " h";
      if (value >= 120) return +(value / 60).toFixed(1) + " min";
      if (value >= 1 || value === 0) return +value.toFixed(1) + " s";
      return Math.round(value * 1000) + " ms";
    }
    if (value >= 1e6) return +(value / 1e6).toFixed(1) + " M";
    if (value >= 1e4) return +(value / 1e3).toFixed(1) + " k";
    return +value.toFixed(1) + "";
  };

  const level = (value, label) => ({
    hooks: {
      draw: (plot) => {
        const y = plot.valToPos(value, "y", true);
        const { left, top, width, height } = plot.bbox;
        if (y < top || y > top + height) return;
        const context = plot.ctx;
        context.save();
        context.strokeStyle = context.fillStyle = colour("--level");
        context.lineWidth = devicePixelRatio;
        context.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        context.beginPath();
        context.moveTo(left, y);
        context.lineTo(left + width, y);
        context.stroke();
        context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        context.textAlign = "right";
        const above = y - top > 16 * devicePixelRatio;
        const base = above ? y - 4 * devicePixelRatio : y + 13 * devicePixelRatio;
        // Before the series' peaks, which would cross the words.
        const words = context.measureText(label).width;
        context.fillStyle = colour("--card");
        context.fillRect(left + width - words - 6, base - 11 * devicePixelRatio, words + 6, 14 * devicePixelRatio);
        context.fillStyle = colour("--level");
        context.fillText(label, left + width - 2, base);
        context.restore();
      },
    },
  });

  const draw = (place) => {
    const { unit, line, lineLabel, title } = place.dataset;
    const data = JSON.parse(place.dataset.series);
    const known = data[1].filter((value) => value !== null);
    const top = Math.max(line === undefined ? 0 : Number(line) * 1.1, ...known, 0) || 1;
    const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const rule = { stroke: colour("--rule"), width: 1 };
    // A value between two gaps has no line: it is drawn as a point.
    const alone = data[1].flatMap((value, at) =>
      value !== null && (data[1][at - 1] ?? null) === null && (data[1][at + 1] ?? null) === null ? [at] : [],
    );
    charts.push(
      new uPlot(
        {
          width: place.clientWidth,
          height: 150,
          tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "UTC"),
          legend: { show: false },
          cursor: { drag: { x: false, y: false } },
          scales: { y: { range: () => [0, top * 1.05] } },
          axes: [
            { ...axis, grid: { show: false }, space: 70, size: 26, values: "{HH}:{mm}:{ss}" },
            { ...axis, grid: rule, size: 62, space: 34, values: (_, ticks) => ticks.map((tick) => short(tick, unit)) },
          ],
          series: [
            {},
            { label: title, stroke: colour("--line"), fill: colour("--fill"), width: 1.5, spanGaps: false, points: { show: true, size: 5, fill: colour("--line"), filter: () => alone } },
          ],
          plugins: line === undefined ? [] : [level(Number(line), lineLabel)],
        },
        data,
        place,
      ),
    );
    const plot = charts[charts.length - 1];
    plot.over.addEventListener("mousemove", () => {
      const at = plot.cursor.idx;
      if (at === null || at === undefined) return;
      place.title = `${new Date(data[0][at] * 1e3).toISOString().slice(0, 19).replace("T", " ")} UTC: ${short(data[1][at], unit)}`;
    });
  };

  const drawAll = () => {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    content.querySelectorAll(".timeline").forEach(draw);
  };

  // A place to find an element again in the page that comes: its link, its id, or its name.
  const mark = (element) =>
    element.id ? `#${CSS.escape(element.id)}` : element.getAttribute("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : element.getAttribute("aria-label") ? `[aria-label="${CSS.escape(element.getAttribute("aria-label"))}"]` : null;

  const replace = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.getElementById("content");
    const scrolled = [...content.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const opened = new Set([...content.querySelectorAll("details[open] pre")].map((each) => each.textContent));
    const focused = content.contains(document.activeElement) ? mark(document.activeElement) : null;
    content.replaceChildren(...fresh.childNodes);
    content.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
    content.querySelectorAll("details").forEach((each) => { each.open = opened.has(each.querySelector("pre").textContent); });
    if (focused) content.querySelector(focused)?.focus({ preventScroll: true });
    freshness.replaceChildren(...page.getElementById("freshness").childNodes);
    freshness.classList.remove("stale");
    drawAll();
  };

  const fail = (why) => {
    freshness.classList.add("stale");
    freshness.textContent = `${why}: figures are ${Math.round((Date.now() - freshAt) / 1000)} s old`;
  };

  const busy = () => document.hidden || !getSelection().isCollapsed;

  const reload = async () => {
    if (paused || busy()) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15000) });
      if (answer.ok || answer.status === 404) {
        const text = await answer.text();
        if (paused || busy()) return;
        replace(text);
        freshAt = Date.now();
      } else if (answer.status === 503) fail("The driver log does not answer");
      else fail(`The tracker answers ${answer.status}`);
    } catch {
      fail("The tracker does not answer");
    }
  };

  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(() => reload().finally(again), seconds * 1000);
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
    if (!paused) reload();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; drawAll(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
  again();
})();
