// SPDX-License-Identifier: MIT OR Apache-2.0
// Draws the time lines. All VMs show the same part of the recording, `view`; times are microseconds since its beginning.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const where = document.getElementById("where");
  const canvases = [...document.querySelectorAll("canvas[data-vm]")];
  const GUTTER = 64, BAND = 22, GAP = 6, AXIS = 20, SHORTEST = 20;
  const UNSEEN = data.states.length - 1;
  const length = Math.max(data.length, SHORTEST);
  let view = { from: 0, to: length };
  let picked = null;
  let colours = {};

  for (const vm of data.vms) {
    vm.height = vm.lanes.length > 32 ? 7 : vm.lanes.length > 12 ? 11 : 18;
    vm.longest = vm.graces.reduce((a, b) => Math.max(a, b), 1);
    for (const w of vm.windows) {
      w.lanes = vm.lanes.map(() => []);
      for (const s of w.segments) w.lanes[s[0]].push(s);
      for (const lane of w.lanes) lane.sort((a, b) => a[1] - b[1]);
      w.periods.sort((a, b) => a[0] - b[0]);
    }
  }

  const time = (us) =>
    us < 1e3 ? `${us.toFixed(us < 10 ? 1 : 0)} us` : us < 1e6 ? `${(us / 1e3).toPrecision(3)} ms` : `${(us / 1e6).toPrecision(3)} s`;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    colours = { states: data.states.map((_, i) => get(`--s${i}`)) };
    for (const name of ["paper", "panel", "ink", "soft", "grid", "axis", "gp", "gp2", "pick"]) colours[name] = get(`--${name}`);
  }

  // First index of `list` whose element ends after `from`; `list` is sorted and does not overlap.
  function first(list, from, begin, size) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle][begin] + list[middle][size] <= from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function draw(canvas) {
    const vm = data.vms[canvas.dataset.vm];
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    const height = BAND + GAP + vm.lanes.length * (vm.height + 2) + AXIS;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    g.textBaseline = "middle";
    const span = view.to - view.from, scale = (width - GUTTER) / span;
    const x = (t) => GUTTER + (t - view.from) * scale;
    const y = (lane) => BAND + GAP + lane * (vm.height + 2);
    g.fillStyle = colours.soft;
    g.textAlign = "right";
    g.fillText("GP", GUTTER - 8, BAND / 2);
    const every = vm.height < 10 ? 4 : 1;
    vm.lanes.forEach((lane, i) => {
      if (i % every === 0) g.fillText(`vCPU ${lane.vcpu}`, GUTTER - 8, y(i) + vm.height / 2);
    });
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, width - GUTTER, height);
    g.clip();
    columns(g, vm, x, y);
    for (const w of vm.windows) if (w.to > view.from && w.from < view.to) exact(g, vm, w, x, y);
    mark(g, canvas, x, height);
    axis(g, x, width, height);
    g.restore();
  }

  // Shares of time: stacked in each column, those that matter at the bottom.
  function columns(g, vm, x, y) {
    const begin = Math.max(0, Math.floor(view.from / data.column));
    const end = Math.ceil(view.to / data.column);
    vm.lanes.forEach((lane, i) => {
      g.fillStyle = colours.panel;
      g.fillRect(x(0), y(i), x(length) - x(0), vm.height);
      for (let c = begin; c < Math.min(end, lane.columns.length); c++) {
        const left = x(c * data.column), wide = Math.max(x((c + 1) * data.column) - left, 0.5);
        const shares = lane.columns[c];
        let total = 0, done = 0;
        for (let n = 1; n < shares.length; n += 2) total += shares[n];
        for (let n = 0; n < shares.length; n += 2) {
          const tall = (shares[n + 1] / total) * vm.height;
          g.fillStyle = colours.states[shares[n]];
          g.fillRect(left, y(i) + done, wide + 0.3, tall);
          done += tall;
        }
      }
    });
    for (let c = begin; c < Math.min(end, vm.graces.length); c++) {
      if (!vm.graces[c]) continue;
      // Its height tells how long the longest one was.
      const tall = 3 + (BAND - 3) * Math.sqrt(vm.graces[c] / vm.longest);
      g.fillStyle = colours.gp2;
      g.fillRect(x(c * data.column), BAND - tall, Math.max(data.column * (x(1) - x(0)), 0.5) + 0.3, tall);
    }
  }

  // Single states and grace periods, where there is room for them: more than one on two pixels would hide each other, and shares are the truth.
  function exact(g, vm, w, x, y) {
    const from = Math.max(w.from, view.from), to = Math.min(w.to, view.to);
    const left = x(from), right = x(to), most = (right - left) / 2;
    g.save();
    g.beginPath();
    g.rect(left, 0, right - left, y(vm.lanes.length));
    g.clip();
    w.lanes.forEach((lane, i) => {
      let n = first(lane, from, 1, 2);
      if (first(lane, to, 1, 2) - n > most) return;
      g.fillStyle = colours.paper;
      g.fillRect(left, y(i), right - left, vm.height);
      for (; n < lane.length && lane[n][1] < to; n++) {
        const [, begin, long, state, reader] = lane[n];
        if (state === UNSEEN) continue;
        const a = x(begin), wide = x(begin + long) - a;
        g.fillStyle = colours.states[state];
        g.fillRect(a, y(i), Math.max(wide, 0.6), vm.height);
        if (reader) {
          g.fillStyle = colours.states[3];
          g.fillRect(a, y(i), Math.max(wide, 0.6), 3);
        }
      }
    });
    let n = first(w.periods, from, 0, 1);
    if (first(w.periods, to, 0, 1) - n <= most) {
      g.fillStyle = colours.paper;
      g.fillRect(left, 0, right - left, BAND);
      for (; n < w.periods.length && w.periods[n][0] < to; n++) period(g, vm, w.periods[n], x);
    }
    g.restore();
  }

  function period(g, vm, [begin, long, , over], x) {
    const a = x(begin), wide = Math.max(x(begin + long) - a, 1);
    const tall = 3 + (BAND - 3) * Math.sqrt(Math.min(long / vm.longest, 1));
    g.fillStyle = colours.gp;
    g.fillRect(a, BAND - tall, Math.max(wide - 1, 0.6), tall);
    const text = `${time(long)}${over ? "" : " …"}`, shown = Math.max(a, GUTTER);
    if (tall < 12 || a + wide - shown < g.measureText(text).width + 8) return;
    g.fillStyle = colours.paper;
    g.textAlign = "left";
    g.fillText(text, shown + 4, BAND - tall / 2);
  }

  function mark(g, canvas, x, height) {
    if (!picked || picked.vm !== canvas.dataset.vm) return;
    g.strokeStyle = colours.pick;
    g.lineWidth = 1.5;
    g.strokeRect(x(picked.from), 1, x(picked.from + picked.length) - x(picked.from), height - AXIS - 2);
  }

  function axis(g, x, width, height) {
    const rough = ((view.to - view.from) / (width - GUTTER)) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6)));
    g.textAlign = "center";
    for (let t = Math.ceil(view.from / step) * step; t < view.to; t += step) {
      g.fillStyle = colours.axis;
      g.fillRect(x(t), height - AXIS, 1, 4);
      g.fillStyle = colours.soft;
      const text = `${(t / 1e6).toFixed(digits)} s`, half = g.measureText(text).width / 2;
      g.fillText(text, Math.min(Math.max(x(t), GUTTER + half), width - half), height - 8);
    }
  }

  function drawAll() {
    canvases.forEach(draw);
    where.textContent = `${(view.from / 1e6).toFixed(4)} s to ${(view.to / 1e6).toFixed(4)} s (${time(view.to - view.from)} of ${time(length)})`;
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      drawAll();
    });
  }

  function show(from, to) {
    let span = Math.min(Math.max(to - from, SHORTEST), length);
    from = Math.min(Math.max(from, 0), length - span);
    view = { from, to: from + span };
    redraw();
  }

  function zoom(factor, at = (view.from + view.to) / 2) {
    const span = Math.min(Math.max((view.to - view.from) * factor, SHORTEST), length);
    const part = (at - view.from) / (view.to - view.from);
    show(at - part * span, at + (1 - part) * span);
  }

  const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  const actions = { all: () => show(0, length), in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.3), right: () => move(0.3) };
  for (const button of document.querySelectorAll("button[data-do]")) button.addEventListener("click", actions[button.dataset.do]);

  function pick(link) {
    const from = Number(link.dataset.from), long = Number(link.dataset.length);
    picked = { vm: link.dataset.vm, from, length: long };
    for (const row of document.querySelectorAll("tr.picked")) row.classList.remove("picked");
    link.closest("tr").classList.add("picked");
    show(from - long / 5 - 500, from + long * 1.2 + 500);
    canvases.find((c) => c.dataset.vm === link.dataset.vm)?.scrollIntoView({ block: "nearest" });
  }
  for (const link of document.querySelectorAll("a[data-from]"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      history.replaceState(null, "", link.getAttribute("href"));
      pick(link);
    });

  function describe(canvas, event) {
    const vm = data.vms[canvas.dataset.vm], box = canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    if (px < GUTTER) return null;
    const t = view.from + ((px - GUTTER) / (box.width - GUTTER)) * (view.to - view.from);
    const lane = Math.floor((py - BAND - GAP) / (vm.height + 2));
    const w = vm.windows.find((w) => t >= w.from && t <= w.to);
    const column = Math.floor(t / data.column);
    if (py < BAND) {
      const hit = w && w.periods[first(w.periods, t, 0, 1)];
      if (hit && hit[0] <= t) return `grace period ${hit[2]}: ${time(hit[1])}${hit[3] ? "" : ", not over"}`;
      return !w && vm.graces[column] ? `longest grace period here: ${time(vm.graces[column])}` : null;
    }
    if (lane < 0 || lane >= vm.lanes.length) return null;
    const name = `vCPU ${vm.lanes[lane].vcpu}`;
    if (w) {
      const hit = w.lanes[lane][first(w.lanes[lane], t, 1, 2)];
      if (!hit || hit[1] > t) return `${name}: not seen`;
      const place = hit[5] < 0 ? "" : `\n${data.places[hit[5]]}`;
      return `${name}: ${data.states[hit[3]]}${hit[4] ? " (RCU reader)" : ""}, ${time(hit[2])}${place}`;
    }
    const shares = vm.lanes[lane].columns[column];
    if (!shares || !shares.length) return `${name}: not seen`;
    const lines = [];
    for (let n = 0; n < shares.length; n += 2) lines.push(`${data.states[shares[n]]} ${shares[n + 1]} %`);
    return `${name}, ${time(data.column)}:\n${lines.join("\n")}`;
  }

  for (const canvas of canvases) {
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: view.from, to: view.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const by = ((drag.x - event.clientX) / (canvas.clientWidth - GUTTER)) * (drag.to - drag.from);
        show(drag.from + by, drag.to + by);
      }
      const text = describe(canvas, event);
      tip.hidden = !text;
      if (!text) return;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (drag = null));
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        const at = view.from + ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * (view.to - view.from);
        zoom(event.deltaY < 0 ? 0.7 : 1.4, at);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const action = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
      if (!action) return;
      event.preventDefault();
      actions[action]();
    });
  }

  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (readColours(), redraw()));
  window.addEventListener("resize", redraw);
  const linked = location.hash && document.querySelector(`a[href="${CSS.escape(location.hash).replace(/^\\#/, "#")}"]`);
  if (linked) pick(linked);
  // Not in a frame to come: a browser that only prints or dumps the page may never show a frame.
  drawAll();
  document.documentElement.dataset.ready = "yes";
})();
