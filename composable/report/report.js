"use strict";
// Draws the charts, and connects the controls to them. The rest of the page needs no script.
(async () => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const shown = { axis: "batches", smoothing: 1, log: false, metric: "", bands: false, hidden: new Set() };
  const narrow = matchMedia("(pointer: coarse)").matches;
  const rank = new Map(data.runs.map((run, i) => [i, run.group]));
  const several = data.groups.filter((_, g) => data.runs.filter((r) => r.group === g).length > 1);
  shown.bands = several.length > 0;

  // --- numbers ---

  function interpolate([xs, ys], x) {
    if (!xs.length) return null;
    let low = 0, high = xs.length - 1;
    if (x <= xs[low]) return ys[low];
    if (x >= xs[high]) return ys[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
  }

  const longest = Math.max(0, ...data.runs.map((run) => run.seconds[1].at(-1) || 0));
  const [unit, seconds] = longest > 7200 ? ["h", 3600] : longest > 120 ? ["min", 60] : ["s", 1];
  const axes = {
    batches: { title: "batches", of: (run, x) => x },
    epochs: { title: "epochs", of: (run, x) => run.epochLength ? x / run.epochLength : null },
    samples: { title: "samples", of: (run, x) => interpolate(run.samples, x) },
    time: {
      title: `training time (${unit})`,
      of: (run, x) => { const t = interpolate(run.seconds, x); return t === null ? null : t / seconds; },
    },
  };
  const positive = (value) => value !== null && value > 0;
  const known = Object.keys(axes).filter((name) => data.runs.some((run) => positive(axes[name].of(run, 1e15))));

  // An exponential average over a share of the curve, whatever the distance of the points.
  function smooth(xs, ys) {
    const length = (xs.at(-1) - xs[0]) * shown.smoothing / 100;
    if (!(length > 0)) return ys;
    let mean = 0, weight = 0;
    return ys.map((y, i) => {
      const keep = i ? Math.exp(-(xs[i] - xs[i - 1]) / length) : 0;
      mean = keep * mean + (1 - keep || 1e-12) * y;
      weight = keep * weight + (1 - keep || 1e-12);
      return mean / weight;
    });
  }

  // --- charts ---

  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function line(run, name, x, y, style) {
    const width = style.width || 2;
    return {
      type: "scatter", mode: style.markers ? "lines+markers" : "lines", x, y, name: plain(name),
      opacity: style.opacity || 1, line: { color: run.color, width }, marker: { size: 5 },
      hoverinfo: style.silent ? "skip" : undefined,
      hovertemplate: style.silent ? undefined : "%{y:.5g}<extra>%{fullData.name}</extra>",
    };
  }

  function tracesOf(chart) {
    const curves = chart.curves.filter((curve) => !shown.hidden.has(curve.run));
    const traces = [], smoothed = [];
    for (const curve of curves) {
      const run = data.runs[curve.run], at = (x) => axes[shown.axis].of(run, x);
      const xs = curve.meanX || curve.x, raw = curve.meanY || curve.y;
      const ys = chart.dense ? smooth(xs, raw) : raw;
      smoothed.push({ curve, run, xs, ys });
      const banded = shown.bands && curves.filter((c) => rank.get(c.run) === run.group).length > 1;
      const thin = curve.meanX || (chart.dense && shown.smoothing > 0);
      if (thin && !banded)
        traces.push(line(run, run.name, curve.x.map(at), curve.y, { width: 1, opacity: 0.28, silent: true }));
      traces.push(line(run, run.name, xs.map(at), ys, banded
        ? { width: 1, opacity: 0.35, silent: true }
        : { markers: xs.length <= 60 }));
    }
    if (shown.bands) data.groups.forEach((group, g) => traces.push(...bandOf(smoothed.filter((one) => one.run.group === g), group)));
    traces.push(...marksOf(chart, curves));
    return traces;
  }

  // The mean and the range over the runs of a group, where at least two have a value.
  function bandOf(members, { name, color: ink }) {
    if (members.length < 2) return [];
    const grid = [...new Set(members.flatMap(({ xs }) => xs))].sort((a, b) => a - b);
    const within = ({ xs }, x) => xs.length && xs[0] <= x && x <= xs.at(-1);
    const points = grid
      .map((x) => members.filter((one) => within(one, x))
        .map(({ run, xs, ys }) => [axes[shown.axis].of(run, x), interpolate([xs, ys], x)]))
      .filter((values) => values.length > 1);
    if (!points.length) return [];
    const mean = (values) => values.reduce((sum, value) => sum + value / values.length, 0);
    const x = points.map((values) => mean(values.map((value) => value[0])));
    const ys = points.map((values) => values.map((value) => value[1]));
    const edge = (y, fill) => ({
      type: "scatter", mode: "lines", x, y, hoverinfo: "skip", line: { width: 0, color: ink },
      fill, fillcolor: `${ink}38`,
    });
    const title = `${name}: mean of ${members.length}`;
    return [
      edge(ys.map((values) => Math.min(...values)), "none"),
      edge(ys.map((values) => Math.max(...values)), "tonexty"),
      line({ color: ink }, title, x, ys.map(mean), { width: 2.5, markers: x.length <= 60 }),
    ];
  }

  function marksOf(chart, curves) {
    const low = Math.min(...curves.flatMap((curve) => curve.y.length ? [curve.y.reduce((a, b) => Math.min(a, b))] : []));
    const y = Number.isFinite(low) ? low : 0;
    return curves.filter((curve) => curve.notFinite).map((curve) => ({
      type: "scatter", mode: "markers", y: curve.notFinite.map(() => y),
      x: curve.notFinite.map((x) => axes[shown.axis].of(data.runs[curve.run], x)),
      marker: { symbol: "x", size: 8, color: color("--bad") },
      hovertemplate: `NaN or infinite<extra>${plain(data.runs[curve.run].name)}</extra>`,
    }));
  }

  function layoutOf(chart, traces) {
    const grid = { gridcolor: color("--line"), linecolor: color("--line"), zerolinecolor: color("--line") };
    const canBeLog = traces.every((trace) => trace.y.every((y) => y === null || y > 0));
    const values = traces.flatMap((trace) => trace.y).filter(Number.isFinite);
    const [least, most] = values.reduce(([low, high], y) => [Math.min(low, y), Math.max(high, y)], [Infinity, -Infinity]);
    const constant = least === most && least !== 0 ? { range: [Math.min(0, 2 * least), Math.max(0, 2 * least)] } : {};
    const large = traces.some((trace) => trace.y.some((y) => Math.abs(y) >= 1000));
    return {
      margin: { l: 58, r: 8, t: 6, b: 40 }, showlegend: false, uirevision: shown.axis,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--ink"), family: "inherit", size: 12 },
      hovermode: traces.length > 16 ? "closest" : "x unified", dragmode: narrow ? false : "zoom",
      hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--ink") }, namelength: -1 },
      xaxis: { ...grid, title: { text: axes[shown.axis].title, standoff: 6 }, hoverformat: ".6~g", nticks: 8 },
      yaxis: { ...grid, ...constant, type: shown.log && canBeLog ? "log" : "linear", exponentformat: large ? "SI" : "power", nticks: 7 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--faint"), activecolor: color("--accent") },
    };
  }

  const config = {
    displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "", topojsonURL: "none",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", ...(narrow ? ["toImage", "zoom2d", "pan2d"] : [])],
  };
  const drawn = new Set();

  function draw(figure) {
    const chart = data.charts[figure.dataset.chart];
    const traces = tracesOf(chart);
    Plotly.react(figure.querySelector(".plot"), traces, layoutOf(chart, traces), config);
    drawn.add(figure);
  }

  let pending = 0;
  function update() {
    for (const one of document.querySelectorAll("[data-run]")) one.hidden = shown.hidden.has(+one.dataset.run);
    for (const one of document.querySelectorAll("[data-runs]"))
      one.hidden = one.dataset.runs.split(" ").every((run) => shown.hidden.has(+run));
    for (const one of document.querySelectorAll(".chart"))
      one.hidden ||= shown.metric !== "" && one.dataset.chart !== shown.metric;
    cancelAnimationFrame(pending); // a slider changes faster than the charts are drawn
    pending = requestAnimationFrame(() => drawn.forEach((figure) => { if (!figure.hidden) draw(figure); }));
  }

  // --- controls ---

  function make(tag, properties = {}, ...children) {
    const one = Object.assign(document.createElement(tag), properties);
    one.append(...children);
    return one;
  }

  function controls() {
    const chips = make("div", { className: "runs" });
    data.runs.forEach((run, i) => {
      const dot = make("i", { className: "dot" });
      dot.style.background = run.color;
      const chip = make("button", { type: "button", title: "show or hide this run" }, dot, run.name);
      chip.setAttribute("aria-pressed", "true");
      chip.onclick = () => {
        if (!shown.hidden.delete(i)) shown.hidden.add(i);
        chip.setAttribute("aria-pressed", String(!shown.hidden.has(i)));
        update();
      };
      chips.append(chip);
    });
    if (data.runs.length > 1) $("controls").append(chips);

    if (data.charts.length > 1) {
      const names = data.charts.map((chart, i) => new Option(chart.name, i));
      const metric = make("select", { ariaLabel: "metric" }, new Option("all metrics", ""), ...names);
      metric.onchange = () => { shown.metric = metric.value; update(); };
      $("controls").append(make("label", {}, "show", metric));
    }
    const axis = make("select", { ariaLabel: "horizontal axis" }, ...known.map((name) => new Option(name, name)));
    axis.onchange = () => { shown.axis = axis.value; update(); };
    if (known.length > 1) $("controls").append(make("label", {}, "over", axis));

    if (data.charts.some((chart) => chart.dense)) {
      const value = make("output", {}, "1 %");
      const slider = make("input", { type: "range", min: 0, max: 10, step: 0.25, value: 1 });
      slider.oninput = () => { shown.smoothing = +slider.value; value.textContent = `${slider.value} %`; update(); };
      $("controls").append(make("label", { title: "length of the average, in percent of the run" }, "smoothing", slider, value));
    }
    const log = make("input", { type: "checkbox" });
    log.onchange = () => { shown.log = log.checked; update(); };
    $("controls").append(make("label", {}, log, "logarithmic"));

    if (several.length) {
      const bands = make("input", { type: "checkbox", checked: true });
      bands.onchange = () => { shown.bands = bands.checked; update(); };
      $("controls").append(make("label", { title: "mean and range over runs that differ in the seed alone" }, bands, "bands"));
    }
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const theme = make("button", { type: "button" }, "light / dark");
    theme.onclick = () => {
      const root = document.documentElement, now = root.dataset.theme || (dark.matches ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
      update();
    };
    dark.addEventListener("change", update);
    $("controls").append(theme);
  }

  // --- tables ---

  // Sorts the rows by a column: by their values, or by their text if there are none.
  function sortBy(table, column, descending) {
    const key = (row) => {
      const { dataset, textContent } = row.cells[column];
      return table.querySelector("td[data-value]:nth-child(" + (column + 1) + ")") ? +(dataset.value ?? NaN) : textContent;
    };
    const order = (a, b) => (a > b) - (a < b) || (b !== b) - (a !== a);
    const rows = [...table.tBodies[0].rows].sort((a, b) => order(key(a), key(b)));
    table.tBodies[0].append(...(descending ? rows.reverse() : rows));
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent) return;
      const button = make("button", { type: "button", title: "sort" }, head.textContent);
      button.onclick = () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const one of head.parentNode.cells) one.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortBy(table, column, descending);
      };
      head.replaceChildren(button);
    });
  }

  // --- the library that draws ---

  async function loadPlotly() {
    if (!window.DecompressionStream) throw new Error("this browser is too old; use one from 2023 or later");
    const bytes = Uint8Array.from(atob($("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", { textContent: await new Response(stream).text() }));
    $("plotly").remove();
  }

  try {
    controls();
    document.querySelectorAll("table.sortable").forEach(sortable);
    if (data.charts.length) await loadPlotly();
    const figures = document.querySelectorAll(".chart");
    const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (!entry.isIntersecting) return;
      seen.unobserve(entry.target);
      draw(entry.target);
    }), { rootMargin: "800px" });
    figures.forEach((figure) => seen.observe(figure));
    addEventListener("beforeprint", () => figures.forEach(draw));
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    $("fault").textContent = `The charts cannot be drawn: ${error.message}. The tables are complete.`;
    $("fault").hidden = false;
  }
})();
