// SPDX-License-Identifier: Apache-2.0 OR MIT
// Draws the charts of `kbp report` with uPlot and makes the legends work. Everything else of the
// page is there without this file.
"use strict";
(() => {
  const WORST = 10;
  const blocks = new Map();
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  /** A time with at most three digits and its unit. */
  function time(ns) {
    const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
    const [size, unit] = units.find(([size]) => ns >= size) || units[3];
    return `${Number((ns / size).toPrecision(3))} ${unit}`;
  }

  const percent = (share) => `${Number((share * 100).toPrecision(3))} %`;

  /** The next value of one digit, for the ends of a logarithmic axis. */
  function oneDigit(value, round) {
    const unit = 10 ** Math.floor(Math.log10(value));
    return round(value / unit) * unit;
  }

  function timeRange(u, low, high) {
    if (low == null || !(low > 0)) return [1e3, 1e6];
    const from = oneDigit(low, Math.floor);
    const to = oneDigit(high, Math.ceil);
    return [from, to > from ? to : from * 2];
  }

  /** The points of one line in a chart of this kind: [x, y]. */
  const POINTS = {
    cdf: (line) => [line.x, line.c.map((count) => count / line.n)],
    // The last step would fall to nothing, which has no logarithm: the line ends at one of n.
    tail: (line) => [line.x, line.c.map((count) => Math.max(1 - count / line.n, 1 / line.n))],
    time: (line) => [line.t.map((ns) => ns / 1e9), line.r],
  };

  /** One table for all lines; where a line has no point of its own there is a hole. */
  function table(kind, lines) {
    const drawn = lines.map((line) => POINTS[kind](line));
    return drawn.some(([x]) => x.length) ? uPlot.join(drawn) : null;
  }

  function axis(extra) {
    return {
      stroke: colour("--soft"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--rule"), width: 1 },
      ticks: { stroke: colour("--rule"), width: 1, size: 4 },
      ...extra,
    };
  }

  /** Which digits have a label on a logarithmic axis: all on a short one, 1, 2, 5 on a longer one. */
  function labelled(u, splits, axisNumber) {
    const scale = u.scales[axisNumber === 0 ? "x" : "y"];
    const span = Math.log10(scale.max / scale.min);
    const digits = span < 0.6 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : span < 1.7 ? [1, 2, 5] : [1];
    const digit = (value) => Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
    return splits.map((value) => (value && digits.includes(digit(value)) ? value : null));
  }

  const ticks = (name) => (u, splits) => splits.map((value) => (value == null ? "" : name(value)));

  /** Scales and axes: times are logarithmic everywhere but along the timeline. */
  function frame(kind, lines) {
    const logTime = { distr: 3, range: timeRange };
    if (kind === "time") {
      return {
        scales: { x: { time: false }, y: logTime },
        axes: [
          axis({ values: ticks((s) => `${Number(s.toPrecision(6))} s`), size: 32 }),
          axis({ values: ticks(time), filter: labelled, size: 62 }),
        ],
      };
    }
    const least = 10 ** -Math.ceil(Math.log10(Math.max(10, ...lines.map((line) => line.n))));
    const share = kind === "cdf" ? { range: [0, 1] } : { distr: 3, range: [least, 1] };
    return {
      scales: { x: { time: false, ...logTime }, y: share },
      axes: [
        axis({ values: ticks(time), filter: labelled, size: 32 }),
        axis({ values: ticks(percent), size: 62 }),
      ],
    };
  }

  const DASHES = [[], [6, 3], [2, 3], [], [9, 3, 2, 3], [5, 2], [3, 2], [8, 4], [2, 2], [10, 3], [4, 4], [1, 3]];

  function series(kind, line, shown) {
    const isTime = kind === "time";
    return {
      label: line.name,
      show: shown,
      stroke: colour(`--c${line.colour}`),
      width: isTime ? 1 : line.ours ? 2.5 : 1.5,
      dash: isTime ? [] : DASHES[line.colour],
      spanGaps: true,
      points: { show: false },
      paths: isTime ? uPlot.paths.linear() : uPlot.paths.stepped({ align: 1 }),
    };
  }

  /** Index of the last point that a line has at or before this one, else the first after it. */
  function lastPoint(u, number, at) {
    const values = u.data[number];
    for (let i = at; i >= 0; i--) if (values[i] != null) return i;
    for (let i = at; i < values.length; i++) if (values[i] != null) return i;
    return at;
  }

  /** What the lines show below the pointer, in words under the chart. */
  function read(kind, u, target) {
    const at = u.cursor.idx;
    if (at == null || u.cursor.left < 0) {
      target.textContent = "";
      return;
    }
    const word = kind === "cdf" ? "no longer than" : kind === "tail" ? "longer than" : "after";
    const where = kind === "time" ? `${Number(u.data[0][at].toPrecision(4))} s` : time(u.data[0][at]);
    const value = kind === "time" ? time : percent;
    const said = u.series.slice(1).map((one, i) => {
      const found = u.data[i + 1][lastPoint(u, i + 1, at)];
      return one.show && found != null ? `${one.label} ${value(found)}` : null;
    });
    target.textContent = `${word} ${where}: ${said.filter(Boolean).join(", ")}`;
  }

  /** The worst samples of the lines that are shown: [place, number of the line, round trip]. */
  function worst(u) {
    const found = [];
    u.series.forEach((one, number) => {
      if (number === 0 || !one.show) return;
      u.data[number].forEach((rtt, at) => rtt != null && found.push([at, number, rtt]));
    });
    return found.sort((a, b) => b[2] - a[2]).slice(0, WORST);
  }

  function markWorst(u) {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = colour("--text");
    ctx.lineWidth = 1.5 * uPlot.pxRatio;
    for (const [at, , rtt] of worst(u)) {
      const x = u.valToPos(u.data[0][at], "x", true);
      const y = u.valToPos(rtt, "y", true);
      const inside = x >= u.bbox.left && x <= u.bbox.left + u.bbox.width;
      if (!inside) continue;
      ctx.beginPath();
      ctx.arc(x, y, 4 * uPlot.pxRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  }

  const size = (element) => {
    const width = Math.max(element.clientWidth, 200);
    return { width, height: Math.round(Math.min(320, Math.max(230, width * 0.6))) };
  };

  function options(kind, block, element) {
    const target = element.parentElement.querySelector(".read");
    return {
      ...size(element),
      ...frame(kind, block.lines),
      legend: { show: false },
      padding: [10, 24, 0, 0],
      cursor: {
        drag: { x: true, y: false, dist: 8 },
        dataIdx: (u, number, at) => (number === 0 ? at : lastPoint(u, number, at)),
        points: { size: 7 },
      },
      series: [{}, ...block.lines.map((line, i) => series(kind, line, block.shown[i]))],
      hooks: {
        setCursor: [(u) => read(kind, u, target)],
        draw: kind === "time" ? [markWorst] : [],
      },
    };
  }

  /** Draws a chart once; later calls do nothing. */
  function build(block, element) {
    const { kind } = element.dataset;
    if (block.charts.has(kind) || !element.clientWidth) return;
    const data = table(kind, block.lines);
    if (data) block.charts.set(kind, new uPlot(options(kind, block, element), data, element));
  }

  function charts(block) {
    return block.element.querySelectorAll(".chart");
  }

  /** Shows or hides a mechanism in everything of its block. */
  function show(block, number, shown) {
    block.shown[number] = shown;
    block.element.querySelector(`.key[data-line="${number}"]`).setAttribute("aria-pressed", shown);
    const box = block.element.querySelector(`.box[data-line="${number}"]`);
    if (box) box.hidden = !shown;
    for (const chart of block.charts.values()) chart.setSeries(number + 1, { show: shown });
  }

  function redraw() {
    for (const block of blocks.values()) {
      const built = [...block.charts.values()];
      block.charts.clear();
      built.forEach((chart) => chart.destroy());
      charts(block).forEach((element) => isNear(element) && build(block, element));
    }
  }

  const isNear = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > -600 && box.top < innerHeight + 600;
  };

  // A page may have hundreds of charts: each is drawn when it comes near the window.
  const seen = new IntersectionObserver(
    (entries) => entries.forEach(({ isIntersecting, target }) => isIntersecting && build(target.kbpBlock, target)),
    { rootMargin: "600px" },
  );
  const resized = new ResizeObserver((entries) =>
    entries.forEach(({ target }) => {
      const chart = target.kbpBlock.charts.get(target.dataset.kind);
      if (chart && target.clientWidth && target.clientWidth !== chart.width) chart.setSize(size(target));
    }),
  );

  function start({ id, lines }) {
    const element = document.getElementById(id);
    const block = { element, lines, shown: lines.map(() => true), charts: new Map() };
    blocks.set(id, block);
    element.querySelectorAll(".key").forEach((key) =>
      key.addEventListener("click", () => {
        const number = Number(key.dataset.line);
        show(block, number, !block.shown[number]);
      }),
    );
    charts(block).forEach((chart) => {
      chart.kbpBlock = block;
      seen.observe(chart);
      resized.observe(chart);
    });
  }

  /** Which run is shown; all of them without a script. */
  function startPicker() {
    const picker = document.querySelector(".picker");
    if (!picker) return;
    const pick = () => {
      const wanted = picker.querySelector("input:checked").value;
      document.querySelectorAll(".run").forEach((run) => {
        run.hidden = wanted !== "all" && run.dataset.run !== wanted;
      });
    };
    picker.hidden = false;
    picker.addEventListener("change", pick);
    pick();
  }

  function buildAll() {
    for (const block of blocks.values()) charts(block).forEach((element) => build(block, element));
  }

  JSON.parse(document.getElementById("data").textContent).forEach(start);
  startPicker();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", buildAll);

  /** For tests and for the console: what the charts of a block show. */
  window.kbpReport = {
    blocks: () => [...blocks.keys()],
    buildAll,
    charts: (id) =>
      [...blocks.get(id).charts].map(([kind, chart]) => ({
        kind,
        lines: chart.series.slice(1).map((one) => ({ name: one.label, shown: one.show })),
      })),
    worst: (id) => worst(blocks.get(id).charts.get("time")).map(([, number, rtt]) => [number - 1, rtt]),
  };
})();
