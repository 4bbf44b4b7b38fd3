"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const GIB = 2 ** 30;
  const MODES = ["bucket", "phase", "site"];
  const COUNT = new Intl.NumberFormat("en-US");
  const NEUTRAL = "#8a8f98";

  const embedded = window.parent !== window;
  if (embedded) {
    document.body.classList.add("embedded");
    window.addEventListener("message", (event) => {
      if (event.source !== window.parent || !event.data) return;
      const theme = event.data.trainmemTheme;
      if (theme === "dark" || theme === "light") {
        root.dataset.theme = theme;
        charts.forEach((chart) => chart.draw());
      }
    });
  }

  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const gib = (bytes) => {
    if (bytes === 0) return "0 GiB";
    const value = bytes / GIB;
    if (value < 0.0005) return "<0.001 GiB";
    const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", {
      minimumFractionDigits: Math.min(decimals, 4), maximumFractionDigits: Math.min(decimals, 4),
    }) + " GiB";
  };
  const share = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) + "%" : "");
  // First position whose value is `wanted` or more.
  const lowerBound = (sorted, wanted) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low;
  };
  const summed = (steps) => {
    let total = 0;
    return steps.map((step) => (total += step));
  };

  // A stretch of the recording: its largest blocks one by one, the smaller ones summed at some instants.
  class Part {
    constructor(data) {
      const blocks = data.blocks;
      this.from = data.from;
      this.to = data.to;
      this.count = blocks.bytes.length;
      this.start = Float64Array.from(summed(blocks.start));
      this.end = this.start.map((start, number) => start + blocks.length[number] - 1);
      this.bytes = Float64Array.from(blocks.bytes);
      this.unused = blocks.rest;
      this.keys = { bucket: blocks.bucket, phase: blocks.phase, site: blocks.site };
      this.rest = data.rest.map((row) => ({ ...row, bytes: summed(row.bytes) }));
      this.stops = data.stops;
      this.isExact = data.stops.at.length === 0;
      if (this.isExact) this.sumUp();
    }

    sumUp() {
      this.total = new Float64Array(this.to - this.from + 2);
      const place = (instant) => Math.min(Math.max(instant - this.from, 0), this.to - this.from + 1);
      for (let number = 0; number < this.count; number++) {
        this.total[place(this.start[number])] += this.bytes[number];
        this.total[place(this.end[number] + 1)] -= this.bytes[number];
      }
      for (let at = 1; at < this.total.length; at++) this.total[at] += this.total[at - 1];
    }

    highest(low, high) {
      let best = low;
      if (this.isExact) {
        for (let at = low + 1; at <= high; at++) {
          if (this.total[at - this.from] > this.total[best - this.from]) best = at;
        }
        return best;
      }
      let most = -1;
      for (let at = lowerBound(this.stops.at, low); at < this.stops.at.length && this.stops.at[at] <= high; at++) {
        if (this.stops.bytes[at] > most) { most = this.stops.bytes[at]; best = this.stops.at[at]; }
      }
      return best;
    }

    stopBefore(instant) {
      const at = lowerBound(this.stops.at, instant);
      return this.stops.at[at] === instant ? at : Math.max(0, at - 1);
    }
  }

  class Recording {
    constructor(view) {
      this.view = view;
      this.parts = view.parts.map((part) => new Part(part));
      this.names = { bucket: data.buckets, phase: data.phases, site: view.sites };
    }

    // The shortest part that holds a stretch: the whole recording, or a step that is known more closely.
    part(from, to) {
      return this.parts.filter((part) => part.from <= from && to <= part.to)
        .reduce((best, part) => (part.to - part.from < best.to - best.from ? part : best));
    }

    // The highest instant of each of `width` equal stretches.
    columns(from, to, width) {
      const part = this.part(from, to);
      const stretches = Math.max(1, Math.min(width, to - from + 1));
      const chosen = new Float64Array(stretches);
      for (let column = 0; column < stretches; column++) {
        const low = from + Math.floor(column * (to - from + 1) / stretches);
        const high = Math.max(low, from + Math.floor((column + 1) * (to - from + 1) / stretches) - 1);
        chosen[column] = part.highest(low, high);
      }
      return chosen;
    }

    // One curve a key, at the given instants.
    curves(mode, instants) {
      const part = this.part(instants[0], instants[instants.length - 1]);
      const curves = this.names[mode].map(() => null);
      const curve = (key) => (curves[key] ??= new Float64Array(instants.length + 1));
      const keys = part.keys[mode];
      for (let number = 0; number < part.count; number++) {
        const first = lowerBound(instants, part.start[number]);
        const last = lowerBound(instants, part.end[number] + 1);
        if (first < last) {
          const row = curve(keys[number]);
          row[first] += part.bytes[number];
          row[last] -= part.bytes[number];
        }
      }
      for (const row of curves) if (row) for (let at = 1; at < row.length; at++) row[at] += row[at - 1];
      if (part.rest.length) {
        const stops = Array.from(instants, (at) => part.stopBefore(at));
        for (const group of part.rest) {
          const row = curve(group[mode]);
          stops.forEach((stop, column) => { row[column] += group.bytes[stop]; });
        }
      }
      return curves;
    }

    // What is there at an instant, largest first.
    at(mode, instant) {
      const part = this.part(instant, instant);
      const found = new Map();
      const add = (key, bytes, blocks) => {
        const row = found.get(key) ?? { key, bytes: 0, blocks: 0 };
        row.bytes += bytes;
        row.blocks += blocks;
        found.set(key, row);
      };
      const keys = part.keys[mode];
      for (let number = 0; number < part.count; number++) {
        if (part.start[number] <= instant && instant <= part.end[number]) add(keys[number], part.bytes[number], 1);
      }
      if (part.rest.length) {
        const stop = part.stopBefore(instant);
        for (const group of part.rest) if (group.bytes[stop]) add(group[mode], group.bytes[stop], 0);
      }
      return [...found.values()].sort((a, b) => b.bytes - a.bytes);
    }

    // What the program asked for, where every block is known.
    requested(instant) {
      if (instant === this.view.peak) return this.view.peak_requested_bytes;
      const part = this.part(instant, instant);
      if (!part.isExact) return null;
      let total = 0;
      for (let number = 0; number < part.count; number++) {
        if (part.start[number] <= instant && instant <= part.end[number]) {
          total += part.bytes[number] - part.unused[number];
        }
      }
      return total;
    }

    span(instant) {
      return this.view.spans.find(([, , start, end]) => start < instant && instant <= end) ?? this.view.spans[0];
    }

    time(instant) {
      const times = this.view.times_ms;
      if (!times.length) return null;
      let at = lowerBound(times.map((pair) => pair[0]), instant);
      if (at >= times.length) at = times.length - 1;
      const [after, late] = times[at];
      if (at === 0 || after === instant) return late;
      const [before, early] = times[at - 1];
      return early + (late - early) * (instant - before) / Math.max(1, after - before);
    }
  }

  class Chart {
    constructor(section, view) {
      this.view = view;
      this.recording = new Recording(view);
      this.mode = "bucket";
      this.from = 0;
      this.to = view.instants;
      this.cursor = view.peak;
      this.pinnedSite = null;
      this.build(section);
      this.draw();
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }

    build(section) {
      const tools = element("div", "tools");
      const choice = element("span", "choice");
      choice.setAttribute("role", "group");
      choice.setAttribute("aria-label", "colour by");
      this.modeButtons = MODES.map((mode) => {
        const button = element("button", "", { bucket: "Bucket", phase: "Phase", site: "Call site" }[mode]);
        button.type = "button";
        button.addEventListener("click", () => { this.mode = mode; this.draw(); });
        choice.append(button);
        return button;
      });
      tools.append(choice);
      const steps = [...new Set(this.view.spans.map((span) => span[1]))].filter((step) => step > 0);
      if (steps.length) {
        this.select = element("select");
        this.select.setAttribute("aria-label", "part of the recording");
        const option = (value, text) => {
          const made = element("option", "", text);
          made.value = value;
          this.select.append(made);
        };
        option("all", "Whole recording");
        const closely = (step) => {
          const spans = this.view.spans.filter((span) => span[1] === step);
          const part = this.recording.part(spans[0][2], spans[spans.length - 1][3]);
          return !part.isExact && part === this.recording.parts[0] ? " (sampled)" : "";
        };
        steps.slice(0, 500).forEach((step) => option(String(step), `Step ${step}${closely(step)}`));
        option("zoom", "Selection");
        this.select.addEventListener("change", () => this.showStep(this.select.value));
        tools.append(this.select);
      }
      this.peakButton = element("button", "", "Go to the peak");
      this.peakButton.type = "button";
      this.peakButton.addEventListener("click", () => { this.cursor = this.view.peak; this.zoom(0, this.view.instants); });
      tools.append(this.peakButton);
      const save = element("button", "", "Table as CSV");
      save.type = "button";
      save.addEventListener("click", () => this.saveTable());
      tools.append(save);
      tools.append(element("span", "meta", "Drag to zoom, arrow keys move, Escape shows all."));
      this.plot = element("div", "plot");
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "img");
      this.canvas = element("canvas");
      this.peakTag = element("span", "tag peak");
      this.cursorTag = element("span", "tag");
      this.brush = element("span", "brush hidden");
      this.plot.append(this.canvas, this.peakTag, this.cursorTag, this.brush);
      this.ribbon = element("div", "ribbon");
      this.axis = element("div", "axis");
      this.legend = element("ul", "legend");
      this.at = element("p", "at");
      this.at.setAttribute("aria-live", "polite");
      this.table = element("table");
      const scroll = element("div", "scroll");
      scroll.append(this.table);
      this.stack = element("div");
      section.append(tools, this.plot, this.ribbon, this.axis, this.legend, this.at, scroll, this.stack);
      this.listen();
    }

    listen() {
      const instantAt = (event) => {
        const box = this.plot.getBoundingClientRect();
        const column = Math.floor((event.clientX - box.left) / box.width * this.instants.length);
        return this.instants[Math.max(0, Math.min(this.instants.length - 1, column))];
      };
      let dragFrom = null;
      this.plot.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        dragFrom = event.clientX;
        this.plot.setPointerCapture(event.pointerId);
      });
      this.plot.addEventListener("pointermove", (event) => {
        this.moveTo(instantAt(event));
        if (dragFrom === null) return;
        const box = this.plot.getBoundingClientRect();
        this.brush.classList.toggle("hidden", Math.abs(event.clientX - dragFrom) < 6);
        this.brush.style.left = Math.max(0, Math.min(dragFrom, event.clientX) - box.left) + "px";
        this.brush.style.width = Math.abs(event.clientX - dragFrom) + "px";
      });
      this.plot.addEventListener("pointerup", (event) => {
        if (dragFrom === null) return;
        const box = this.plot.getBoundingClientRect();
        const place = (x) => this.from + Math.round((Math.max(box.left, Math.min(x, box.right)) - box.left)
          / box.width * (this.to - this.from));
        const [low, high] = [place(Math.min(dragFrom, event.clientX)), place(Math.max(dragFrom, event.clientX))];
        const dragged = Math.abs(event.clientX - dragFrom) >= 6;
        dragFrom = null;
        this.brush.classList.add("hidden");
        if (dragged && high - low >= 2) this.zoom(low, high);
      });
      this.plot.addEventListener("dblclick", () => this.zoom(0, this.view.instants));
      this.plot.addEventListener("keydown", (event) => {
        const column = lowerBound(this.instants, this.cursor);
        const stride = event.shiftKey ? 10 : 1;
        if (event.key === "ArrowLeft") this.moveTo(this.instants[Math.max(0, column - stride)]);
        else if (event.key === "ArrowRight") this.moveTo(this.instants[Math.min(this.instants.length - 1, column + stride)]);
        else if (event.key === "Home") this.moveTo(this.view.peak);
        else if (event.key === "Escape") this.zoom(0, this.view.instants);
        else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
        else if (event.key === "-") this.zoomBy(2);
        else return;
        event.preventDefault();
      });
    }

    zoomBy(factor) {
      const half = Math.max(2, (this.to - this.from) * factor / 2);
      this.zoom(Math.max(0, Math.floor(this.cursor - half)), Math.min(this.view.instants, Math.ceil(this.cursor + half)));
    }

    zoom(from, to) {
      this.from = from;
      this.to = Math.max(to, Math.min(from + 1, this.view.instants));
      if (this.select) this.select.value = from === 0 && to === this.view.instants ? "all" : "zoom";
      this.draw();
    }

    showStep(value) {
      if (value === "all") return this.zoom(0, this.view.instants);
      const spans = this.view.spans.filter((span) => String(span[1]) === value);
      if (!spans.length) return undefined;
      this.zoom(spans[0][2], spans[spans.length - 1][3]);
      this.select.value = value;
      return undefined;
    }

    moveTo(instant) {
      if (instant === undefined || instant === this.cursor) return;
      this.cursor = instant;
      this.place();
      this.fillTable();
    }

    draw() {
      const width = this.plot.clientWidth, height = this.plot.clientHeight;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const pen = this.canvas.getContext("2d");
      pen.scale(ratio, ratio);
      this.instants = this.recording.columns(this.from, this.to, Math.min(width, 1400));
      const curves = this.recording.curves(this.mode, this.instants);
      const order = this.order(curves);
      this.colours = this.colour(order);
      const columns = this.instants.length;
      const totals = new Float64Array(columns);
      for (const key of order) for (let column = 0; column < columns; column++) totals[column] += curves[key][column];
      const reserved = this.reservedAt();
      const top = Math.max(1, ...totals, ...reserved) * 1.08;
      this.top = top;
      const y = (bytes) => height - bytes / top * height;
      const x = (column) => column / columns * width;
      const ticks = this.grid(pen, width, top, y);
      const floor = new Float64Array(columns);
      for (const key of order) {
        const row = curves[key];
        pen.beginPath();
        for (let column = 0; column < columns; column++) {
          const level = y(floor[column] + row[column]);
          pen.lineTo(x(column), level);
          pen.lineTo(x(column + 1), level);
        }
        for (let column = columns - 1; column >= 0; column--) {
          const level = y(floor[column]);
          pen.lineTo(x(column + 1), level);
          pen.lineTo(x(column), level);
          floor[column] += row[column];
        }
        pen.closePath();
        pen.fillStyle = this.colours.get(key);
        pen.fill();
        this.edge(pen, row, floor, x, y);
      }
      pen.beginPath();
      reserved.forEach((bytes, column) => { pen.lineTo(x(column), y(bytes)); pen.lineTo(x(column + 1), y(bytes)); });
      pen.setLineDash([4, 3]);
      pen.strokeStyle = style("--ink");
      pen.lineWidth = 1;
      pen.stroke();
      pen.setLineDash([]);
      this.label(pen, ticks, y);
      this.mark(pen, width, height);
      this.modeButtons.forEach((button, index) => button.setAttribute("aria-pressed", String(MODES[index] === this.mode)));
      this.fillRibbon(width);
      this.fillAxis();
      this.fillLegend(order);
      this.place();
      this.fillTable();
      this.plot.setAttribute("aria-label", `Allocated memory over ${COUNT.format(this.view.instants)} events; the peak is `
        + `${gib(this.view.peak_bytes)} after event ${COUNT.format(this.view.peak)}. The table below says what fills it.`);
    }

    // A hairline of the page's colour on top of each band, where the band is thick enough to spare it.
    edge(pen, row, top, x, y) {
      pen.beginPath();
      let drawing = false;
      for (let column = 0; column < row.length - 1; column++) {
        const level = y(top[column]);
        if (y(0) - y(row[column]) < 4) { drawing = false; continue; }
        if (drawing) pen.lineTo(x(column), level); else pen.moveTo(x(column), level);
        pen.lineTo(x(column + 1), level);
        drawing = true;
      }
      pen.strokeStyle = style("--page");
      pen.lineWidth = 0.75;
      pen.stroke();
    }

    // Buckets and phases keep their order; call sites go by how much they fill in view.
    order(curves) {
      const present = curves.map((row, key) => ({ row, key })).filter(({ row }) => row);
      if (this.mode === "site") {
        const area = ({ row }) => row.reduce((sum, bytes) => sum + bytes, 0);
        present.sort((a, b) => area(b) - area(a));
      }
      return present.map(({ key }) => key);
    }

    colour(order) {
      if (this.mode === "bucket") return new Map(order.map((key) => [key, data.bucket_colours[key]]));
      if (this.mode === "phase") return new Map(order.map((key) => [key, data.phase_colours[key]]));
      return new Map(order.map((key, rank) => [key, data.bucket_colours[rank] && rank < 9 ? data.bucket_colours[rank] : NEUTRAL]));
    }

    reservedAt() {
      const changes = this.view.reserved;
      const times = changes.map((pair) => pair[0]);
      return Array.from(this.instants, (instant) => {
        const at = lowerBound(times, instant + 1) - 1;
        return at < 0 ? 0 : changes[at][1];
      });
    }

    grid(pen, width, top, y) {
      const raw = top / GIB / 4;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= raw);
      const ticks = [];
      pen.strokeStyle = style("--rule");
      pen.lineWidth = 1;
      for (let value = step; value * GIB < top; value += step) {
        const level = Math.round(y(value * GIB)) + 0.5;
        pen.beginPath();
        pen.moveTo(0, level);
        pen.lineTo(width, level);
        pen.stroke();
        ticks.push(value);
      }
      return ticks;
    }

    // Over the bands, each on a patch of the page's colour.
    label(pen, ticks, y) {
      pen.font = "12px " + style("--sans");
      pen.textBaseline = "bottom";
      for (const value of ticks) {
        const text = Number(value.toPrecision(6)) + " GiB";
        const level = Math.round(y(value * GIB));
        if (level < 16) continue;
        pen.globalAlpha = 0.8;
        pen.fillStyle = style("--page");
        pen.fillRect(0, level - 16, pen.measureText(text).width + 5, 16);
        pen.globalAlpha = 1;
        pen.fillStyle = style("--ink");
        pen.fillText(text, 2, level - 1);
      }
    }

    position(instant) {
      const column = Math.min(this.instants.length - 1, lowerBound(this.instants, instant));
      return (column + 0.5) / this.instants.length * this.plot.clientWidth;
    }

    mark(pen, width, height) {
      const line = (instant, colour) => {
        const at = Math.round(this.position(instant)) + 0.5;
        pen.strokeStyle = colour;
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(at, 0);
        pen.lineTo(at, height);
        pen.stroke();
      };
      const inside = (instant) => this.from <= instant && instant <= this.to;
      if (inside(this.view.peak)) line(this.view.peak, style("--accent"));
      this.view.failures.filter(inside).slice(0, 20).forEach((event) => line(event, style("--accent")));
      const failed = this.view.failures.some((event) => Math.abs(this.position(event) - this.position(this.view.peak)) < 2);
      this.peakTag.textContent = `peak ${gib(this.view.peak_bytes)}${failed ? ", out of memory" : ""}`;
      this.peakTag.classList.toggle("hidden", !inside(this.view.peak));
      this.tag(this.peakTag, this.view.peak, 0);
    }

    tag(tag, instant, top) {
      const at = this.position(instant);
      const room = this.plot.clientWidth - tag.offsetWidth;
      const left = at + 6 > room && at > tag.offsetWidth;
      tag.style.top = top + "px";
      // Where neither side has room, as on a phone, it stays inside the plot.
      tag.style.left = left ? "auto" : Math.max(0, Math.min(at + 3, room)) + "px";
      tag.style.right = left ? this.plot.clientWidth - at + 3 + "px" : "auto";
    }

    place() {
      const total = this.recording.at("bucket", this.cursor).reduce((sum, row) => sum + row.bytes, 0);
      this.cursorTag.textContent = gib(total);
      this.cursorTag.classList.toggle("hidden", this.cursor === this.view.peak || this.cursor < this.from || this.cursor > this.to);
      this.tag(this.cursorTag, this.cursor, 22);
    }

    fillRibbon(width) {
      this.ribbon.replaceChildren();
      this.ribbon.classList.toggle("hidden", !this.view.spans.length);
      const range = Math.max(1, this.to - this.from);
      let shown = 0;
      for (const [phase, step, start, end] of this.view.spans) {
        if (end < this.from || start > this.to) continue;
        const left = (Math.max(start, this.from) - this.from) / range, right = (Math.min(end, this.to) - this.from) / range;
        if ((right - left) * width < 1.5 || ++shown > 400) continue;
        const name = data.phases[phase];
        const label = step && phase === 1 ? `${name} ${step}` : name;
        const part = element("span", "", (right - left) * width > label.length * 7 + 8 ? label : "");
        part.title = step ? `${name}, step ${step}` : name;
        part.style.left = left * 100 + "%";
        part.style.width = (right - left) * 100 + "%";
        this.ribbon.append(part);
      }
    }

    fillAxis() {
      const label = (instant) => {
        const time = this.recording.time(instant);
        return `event ${COUNT.format(instant)}` + (time === null ? "" : `, ${this.seconds(time)}`);
      };
      this.axis.replaceChildren(element("span", "", label(this.from)), element("span", "", label(this.to)));
    }

    seconds(milliseconds) {
      return milliseconds >= 1000 ? (milliseconds / 1000).toFixed(2) + " s" : milliseconds.toFixed(1) + " ms";
    }

    fillLegend(order) {
      const most = this.mode === "site" ? 9 : order.length;
      this.legend.replaceChildren(...order.slice(0, most).map((key) => {
        const item = element("li");
        const chip = element("span", "chip");
        chip.style.background = this.colours.get(key);
        item.append(chip, element("span", "", this.recording.names[this.mode][key]));
        return item;
      }));
      if (order.length > most) {
        const item = element("li");
        const chip = element("span", "chip");
        chip.style.background = NEUTRAL;
        item.append(chip, element("span", "", "other call sites"));
        this.legend.append(item);
      }
      const item = element("li");
      item.append(element("span", "line"), element("span", "", "reserved"));
      this.legend.append(item);
    }

    fillTable() {
      const instant = this.cursor;
      const rows = this.recording.at(this.mode, instant);
      const total = rows.reduce((sum, row) => sum + row.bytes, 0);
      const span = this.recording.span(instant);
      const time = this.recording.time(instant);
      const place = instant === this.view.peak ? "At the peak" : "At this instant";
      const where = [`after event ${COUNT.format(instant)} of ${COUNT.format(this.view.instants)}`];
      if (span) where.push(span[1] ? `${data.phases[span[0]]} of step ${span[1]}` : data.phases[span[0]]);
      if (time !== null) where.push(this.seconds(time));
      const requested = this.recording.requested(instant);
      if (requested !== null) where.push(`of which the program asked for ${gib(requested)}, and the rest is rounding up`);
      this.at.replaceChildren(element("strong", "", `${place}: ${gib(total)}`), document.createTextNode(", " + where.join(", ")));
      const head = element("tr");
      const heading = { bucket: "Bucket", phase: "Allocated during", site: "Call site" }[this.mode];
      head.append(element("th", "", heading), element("th", "number", "Size"), element("th", "number", "Share"), element("th", "bars"));
      const most = this.mode === "site" ? 15 : rows.length;
      const lines = rows.slice(0, most).map((row) => this.line(row, total));
      if (rows.length > most) {
        const rest = rows.slice(most);
        lines.push(this.line({ key: -1, bytes: rest.reduce((sum, row) => sum + row.bytes, 0), blocks: 0, count: rest.length }, total));
      }
      const sum = element("tr", "sum");
      const size = element("td", "number", gib(total));
      size.title = COUNT.format(total) + " bytes";
      sum.append(element("td", "", "allocated"), size, element("td", "number", total ? "100%" : ""), element("td", "bars"));
      const body = element("tbody");
      body.append(...lines, sum);
      const top = element("thead");
      top.append(head);
      this.table.replaceChildren(top, body);
      this.fillStack();
    }

    line(row, total) {
      const made = element("tr");
      const name = row.key < 0 ? `${COUNT.format(row.count)} other call sites` : this.recording.names[this.mode][row.key];
      const cell = element("td", this.mode === "site" ? "code" : "name");
      const chip = element("span", "chip");
      chip.style.background = this.colours.get(row.key) ?? NEUTRAL;
      chip.style.marginRight = "8px";
      cell.append(chip, document.createTextNode(name));
      const size = element("td", "number", gib(row.bytes));
      size.title = COUNT.format(row.bytes) + " bytes" + (row.blocks ? ` in ${COUNT.format(row.blocks)} blocks` : "");
      const bars = element("td", "bars");
      const bar = element("span", "bar");
      bar.style.width = (total ? 100 * row.bytes / total : 0) + "%";
      bar.style.background = this.colours.get(row.key) ?? NEUTRAL;
      bars.append(bar);
      made.append(cell, size, element("td", "number", share(row.bytes, total)), bars);
      if (this.mode === "site" && (this.view.stacks[row.key] ?? []).length) {
        made.classList.add("pick");
        made.classList.toggle("picked", this.pinnedSite === row.key);
        made.tabIndex = 0;
        const pick = () => { this.pinnedSite = this.pinnedSite === row.key ? null : row.key; this.fillTable(); };
        made.addEventListener("click", pick);
        made.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(); });
      }
      return made;
    }

    saveTable() {
      // A spreadsheet computes what looks like a formula; a quote in front makes it text.
      const cell = (text) => `"${(/^\s*[=+\-@]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;
      const rows = this.recording.at(this.mode, this.cursor);
      const lines = rows.map((row) => [this.recording.names[this.mode][row.key], row.bytes]);
      lines.push(["allocated", rows.reduce((sum, row) => sum + row.bytes, 0)]);
      const text = [["name", "bytes"], ...lines].map(([name, bytes]) => `${cell(name)},${bytes}`).join("\r\n") + "\r\n";
      const link = element("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = `memory-by-${this.mode}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    fillStack() {
      this.stack.replaceChildren();
      if (this.mode !== "site" || this.pinnedSite === null) return;
      this.stack.append(element("pre", "", this.view.stacks[this.pinnedSite].join("\n")));
    }
  }

  const charts = [];
  document.querySelectorAll("[data-view]").forEach((section) => {
    charts.push(new Chart(section, data.views[Number(section.dataset.view)]));
  });

  if (embedded) {
    const report = () => window.parent.postMessage({ trainmemHeight: Math.ceil(document.body.getBoundingClientRect().height) + 4 }, "*");
    new ResizeObserver(report).observe(document.body);
    report();
  }
})();
