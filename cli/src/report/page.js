// Draws the pictures of a page: memory, addresses and driver calls over time, from the JSON in the page.
// The rectangles of blocks are written as pixels of a canvas, so that 200,000 of them move smoothly.
'use strict';
(() => {
const COLOURS = ['#d55e00', '#0072b2', '#009e73', '#cc79a7', '#b58900', '#56b4e9', '#888888', '#8c6d31'];
const DASHES = [[], [9, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 2], [14, 4], [6, 2, 2, 2]];
const LEFT = 78, TOP = 8, BOTTOM = 22;
// Width from which lines have labels beside their ends.
const WIDE = 700;
// The colours of the page, light or dark. Pixels are little-endian numbers: alpha, blue, green, red.
const dark = matchMedia('(prefers-color-scheme: dark)');
let LIVE, GRID, INK, STEP, NOTHING, FREE, MOVED;
const paint = () => {
  [LIVE, GRID, INK, STEP, NOTHING, FREE, MOVED] = dark.matches
    ? ['#34424f', '#3a3a3a', '#ddd', '#fff4', 0xff1a1816, 0xff4a4a4a, 0xff2a6a9a]
    : ['#c9d6e2', '#e4e4e4', '#222', '#0003', 0xffffffff, 0xffe0e0e0, 0xff7cc8ff];
};
paint();
const BLOCKS = [0xffb48246, 0xff71a65b, 0xffa77999, 0xff4f86c6, 0xff9a9b4e, 0xff7d6fb8, 0xffc49a6c, 0xff5e9c8c];

const element = (name, attributes = {}, ...inside) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
};
const size = bytes => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return (unit ? bytes.toFixed(unit < 3 ? 1 : 2) : bytes) + ' ' + units[unit];
};
const mebibytes = bytes => (bytes / (1 << 20)).toLocaleString('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
// Returns the distance of about `count` marks: a power of two for bytes, otherwise 1, 2 or 5 times a power of ten.
const round = (span, count, binary) => {
  const least = span / count;
  if (binary) return 2 ** Math.ceil(Math.log2(Math.max(least, 1)));
  const ten = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].find(times => times * ten >= least) * ten;
};
// Returns a function that formats bytes in the unit that suits the largest.
const sizes = most => {
  const unit = Math.min(Math.max(Math.floor(Math.log2(Math.max(most, 1)) / 10), 0), 4);
  return bytes => bytes / 2 ** (10 * unit) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit];
};
// Returns the last index whose value is at most `value`, or -1 if there is none.
const last = (values, value) => {
  let low = -1, high = values.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle; else high = middle;
  }
  return low;
};
const series = changes => ({
  at: Float64Array.from(changes, change => change[0]),
  value: changes.map(change => change[1]),
});

// Computes everything that does not depend on the part of the picture shown.
function prepare(picture) {
  const { from, to, bytes } = picture.blocks;
  const times = Float64Array.from(from.concat(to)).sort();
  let count = 0;
  for (let index = 0; index < times.length; index++)
    if (!index || times[index] !== times[index - 1]) times[count++] = times[index];
  const at = times.subarray(0, count), value = new Float64Array(count);
  for (let index = 0; index < from.length; index++) {
    value[last(at, from[index])] += bytes[index];
    value[last(at, to[index])] -= bytes[index];
  }
  let live = 0;
  for (let index = 0; index < count; index++) value[index] = live += value[index];
  picture.live = { at, value };
  picture.stepsAt = Float64Array.from(picture.steps, step => step[0]);
  picture.allocators.forEach((allocator, index) => {
    allocator.colour = COLOURS[index % COLOURS.length];
    allocator.dash = DASHES[index % DASHES.length];
    for (const name of ['reserved', 'planned', 'calls']) allocator[name] = series(allocator[name]);
    allocator.shown = true;
  });
  return picture;
}

// Says how much less a figure is than another.
const than = (figure, other, same) => {
  const percent = (1 - figure / other) * 100;
  return same ? '' : Math.abs(percent) < 0.05 ? 'as much' : Math.abs(percent).toFixed(1) + (percent < 0 ? ' % more' : ' % less');
};

const peak = ({ at, value }) => {
  let best = 0, when = 0;
  value.forEach((one, index) => { if (one > best) { best = one; when = at[index]; } });
  return [best, when];
};

// Computes the heights at which addresses are drawn. Addresses that are never used become a narrow gap.
function place(picture, allocator) {
  if (allocator.low) return;
  const { bytes } = picture.blocks, { address, held } = allocator;
  const starts = Float64Array.from(address.concat(held.map(piece => piece[2]))).sort();
  const ends = Float64Array.from(
    address.map((start, index) => start + bytes[index]).concat(held.map(piece => piece[2] + piece[3]))).sort();
  const spans = [];
  for (let index = 0, next = 0, open = 0; next < ends.length;) {
    if (index < starts.length && starts[index] <= ends[next]) {
      if (!open++) spans.push({ start: starts[index] });
      index++;
    } else {
      if (!--open) spans[spans.length - 1].end = ends[next];
      next++;
    }
  }
  const used = spans.reduce((sum, span) => sum + span.end - span.start, 0);
  let top = 0;
  spans.forEach((span, index) => {
    if (index) top += Math.min(span.start - spans[index - 1].end, used / 50);
    span.at = top;
    top += span.end - span.start;
  });
  const begins = spans.map(span => span.start);
  const drawn = where => {
    const span = spans[Math.max(last(begins, where), 0)];
    return span ? span.at + where - span.start : 0;
  };
  allocator.low = Float64Array.from(address, drawn);
  allocator.heldLow = Float64Array.from(held, piece => drawn(piece[2]));
  allocator.gaps = spans.slice(1).map((span, index) => [spans[index].at + spans[index].end - spans[index].start, span.at]);
  allocator.top = top || 1;
}

class Chart {
  constructor(view, height, label) {
    this.view = view;
    this.canvas = element('canvas', { 'aria-label': label, role: 'img', tabindex: 0 });
    this.canvas.style.height = height + 'px';
    this.height = height;
    // The names that may stand beside the ends of lines.
    this.labels = [];
    this.pen = this.canvas.getContext('2d');
  }
  begin() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.scale = scale;
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== width || this.canvas.height !== height)
      [this.canvas.width, this.canvas.height] = [width, height];
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.clearRect(0, 0, this.width, this.height);
    this.pen.font = '12px system-ui, sans-serif';
    this.pen.setLineDash([]);
    const widest = Math.max(0, ...this.labels.map(name => this.pen.measureText(name).width));
    this.right = this.width >= WIDE && widest ? Math.min(widest, 200) + 14 : 8;
    this.across = this.width - LEFT - this.right;
    this.down = this.height - TOP - BOTTOM;
  }
  x(tick) { return LEFT + (tick - this.view.from) / (this.view.to - this.view.from) * this.across; }
  y(value) { return TOP + this.down - (value - this.low) / (this.high - this.low) * this.down; }
  tick(x) { return this.view.from + (x - LEFT) / this.across * (this.view.to - this.view.from); }
  value(y) { return this.low + (TOP + this.down - y) / this.down * (this.high - this.low); }
  within(draw) {
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(LEFT, TOP, this.across, this.down);
    this.pen.clip();
    draw();
    this.pen.restore();
  }
  axes(binary, unit) {
    const { pen, view } = this;
    pen.fillStyle = INK;
    pen.strokeStyle = GRID;
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    const step = round(this.high - this.low, this.height / 55, binary);
    const show = binary ? sizes(this.high) : value => value.toLocaleString('en');
    for (let value = Math.ceil(this.low / step) * step; value <= this.high; value += step) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(LEFT + this.across, y);
      pen.stroke();
      pen.fillText(show(value), LEFT - 6, y);
    }
    pen.textBaseline = 'top';
    const apart = round(view.to - view.from, this.across / 110, false);
    const first = Math.ceil(view.from / apart) * apart;
    for (let tick = first; tick <= view.to; tick += apart) {
      const text = tick === first ? unit + ' ' + tick.toLocaleString('en') : tick.toLocaleString('en');
      const half = pen.measureText(text).width / 2, x = this.x(tick);
      pen.textAlign = 'center';
      pen.fillText(text, Math.min(Math.max(x, LEFT + half), this.width - half), this.height - BOTTOM + 6);
    }
  }
  // Writes the name of each line beside its end, apart where lines lie on each other.
  names(lines) {
    if (this.right < 20) return;
    const { pen } = this;
    const ends = lines.map(({ name, colour, value }) => ({ name, colour, y: this.y(value) }));
    ends.sort((one, other) => one.y - other.y);
    const apart = 14;
    let least = TOP;
    for (const end of ends) least = (end.y = Math.max(end.y, least)) + apart;
    let most = TOP + this.down;
    for (const end of ends.reverse()) most = (end.y = Math.min(end.y, most)) - apart;
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    for (const { name, colour, y } of ends) {
      pen.fillStyle = colour;
      pen.fillText(name, LEFT + this.across + 8, y, this.right - 10);
    }
  }
  // Draws a stepped line. All changes within one pixel become one vertical stroke.
  line({ at, value }, end, colour, dash, width) {
    const { pen, view } = this;
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath();
    let down = false;
    for (let index = Math.max(last(at, view.from), 0); index < at.length && at[index] <= view.to;) {
      const x = Math.max(this.x(at[index]), LEFT - 2);
      let [least, most, now] = [Infinity, -Infinity, null];
      for (; index < at.length && this.x(at[index]) < x + 1; index++) {
        now = value[index];
        if (now !== null) [least, most] = [Math.min(least, now), Math.max(most, now)];
      }
      if (most >= least) {
        if (down) pen.lineTo(x, this.y(least)); else pen.moveTo(x, this.y(least));
        pen.lineTo(x, this.y(most));
      }
      const until = Math.min(this.x(index < at.length ? at[index] : end), LEFT + this.across + 2);
      down = now !== null;
      if (down) { pen.lineTo(x, this.y(now)); pen.lineTo(until, this.y(now)); }
    }
    pen.stroke();
    pen.setLineDash([]);
  }
  steps(picture) {
    const first = last(picture.stepsAt, this.view.from) + 1, end = last(picture.stepsAt, this.view.to);
    if (end - first > 100) return;
    this.pen.strokeStyle = STEP;
    this.pen.lineWidth = 1;
    for (let index = first; index <= end; index++) {
      const x = Math.round(this.x(picture.stepsAt[index])) + 0.5;
      this.pen.beginPath();
      this.pen.moveTo(x, TOP);
      this.pen.lineTo(x, TOP + this.down);
      this.pen.stroke();
    }
  }
}

class Explorer {
  constructor(home, sources) {
    this.home = home;
    this.view = { from: 0, to: 1, low: 0, high: 1 };
    this.hint = element('div', { class: 'hint' });
    this.memory = new Chart(this.view, 240, 'memory over time');
    this.map = new Chart(this.view, 420, 'addresses over time');
    this.calls = new Chart(this.view, 130, 'driver calls over time');
    this.callsOver = element('h3', {}, 'Driver calls so far');
    this.legend = element('table', { class: 'legend' });
    this.zero = element('input', { type: 'checkbox', checked: '' });
    this.zero.onchange = () => this.draw();
    this.title = element('h3');
    const which = element('select', { 'aria-label': 'what is shown' },
      ...sources.map((source, index) => element('option', { value: index }, source.dataset.name)));
    which.onchange = () => this.open(sources[which.value]);
    const button = (label, title, act) => {
      const made = element('button', { type: 'button', title }, label);
      made.onclick = act;
      return made;
    };
    this.keys = element('p', { class: 'key' }, ...this.key());
    home.append(
      element('p', { class: 'controls' }, which, ' ',
        button('+', 'zoom in', () => this.zoom(0.5, 0.5)), ' ',
        button('\u2212', 'zoom out', () => this.zoom(2, 0.5)), ' ',
        button('all', 'show all', () => this.reset()), ' ',
        element('label', {}, this.zero, 'memory from 0'), ' ',
        element('small', {}, 'wheel: zoom time; Shift and wheel: zoom addresses; drag: move; double click: all')),
      this.legend,
      element('h3', {}, 'Memory over time'), this.memory.canvas,
      this.title, this.map.canvas, this.keys,
      this.callsOver, this.calls.canvas, this.hint);
    for (const chart of [this.memory, this.map, this.calls]) this.listen(chart);
    new ResizeObserver(() => this.draw()).observe(home);
    dark.addEventListener('change', () => {
      paint();
      this.fillLegend();
      this.keys.replaceChildren(...this.key());
      this.draw();
    });
    this.open(sources[0]);
  }
  key() {
    const css = pixel => `rgb(${pixel & 255},${pixel >> 8 & 255},${pixel >> 16 & 255})`;
    const mark = (pixel, text) => element('span', {}, element('i', { style: 'background:' + css(pixel) }), text);
    return [
      element('span', {}, ...BLOCKS.slice(0, 4).map(pixel => element('i', { style: 'background:' + css(pixel) })), 'blocks'),
      mark(FREE, 'held and free'), mark(MOVED, 'held and free, some of it moved here'), mark(NOTHING, 'not held'),
    ];
  }
  open(source) {
    source.picture ??= prepare(JSON.parse(source.textContent));
    this.picture = source.picture;
    this.chosen = this.picture.allocators[this.picture.allocators.length - 1];
    this.fillLegend();
    this.reset();
    // Drawn now, not with the next frame, so that measuring or printing the page finds it drawn.
    this.drawNow();
  }
  fillLegend() {
    const { picture, legend } = this;
    const [live] = peak(picture.live);
    // A packing has no driver calls, and there may be nothing to compare with.
    const { allocators } = picture, [base] = allocators;
    const called = allocators.some(allocator => allocator.calls.value.length);
    const moves = allocators.some(allocator => allocator.held.some(piece => piece[4]));
    const several = allocators.length > 1;
    const columns = [
      ['peak ' + picture.words.reserved + ' MiB', most => mebibytes(most), true],
      ['than ' + base.name, (most, allocator) => than(most, peak(base.reserved)[0], allocator === base), several],
      ['at ' + picture.words.tick, (most, { reserved }) => peak(reserved)[1].toLocaleString('en'), true],
      ['over live', most => live ? (most / live).toFixed(4) : '-', true],
      ['driver calls', (most, { calls }) => (calls.value.at(-1) ?? 0).toLocaleString('en'), called],
      ['moved MiB', (most, allocator, moved) => moved ? mebibytes(moved) : '-', moves],
    ].filter(column => column[2]);
    const head = ['map', 'line', '', ...columns.map(column => column[0])];
    legend.replaceChildren(element('tr', {}, ...head.map(text => element('th', {}, text))));
    for (const allocator of picture.allocators) {
      const [most] = peak(allocator.reserved);
      const calls = allocator.calls.value.at(-1) ?? 0;
      const seen = new Set();
      let moved = 0;
      for (const piece of allocator.held) if (!seen.has(piece[0])) { seen.add(piece[0]); moved += piece[4]; }
      const map = element('input', { type: 'radio', name: 'map', 'aria-label': 'map of ' + allocator.name });
      map.checked = allocator === this.chosen;
      map.onchange = () => { this.chosen = allocator; this.view.low = 0; this.view.high = 1; this.draw(); };
      const line = element('input', { type: 'checkbox', 'aria-label': 'line of ' + allocator.name });
      line.checked = allocator.shown;
      line.onchange = () => { allocator.shown = line.checked; this.draw(); };
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('width', 46);
      svg.setAttribute('height', 8);
      svg.innerHTML = `<path d="M0 4H46" stroke="${allocator.colour}" stroke-width="2.5" stroke-dasharray="${allocator.dash}"/>`;
      const cells = columns.map(column => column[1](most, allocator, moved));
      legend.append(element('tr', {
        'data-allocator': allocator.name, 'data-peak-reserved': most, 'data-peak-live': live, 'data-calls': calls,
        'data-blocks': allocator.address.length, 'data-planned': peak(allocator.planned)[0],
      }, element('td', {}, map), element('td', {}, line, svg), element('td', { class: 'text' }, allocator.name),
      ...cells.map(cell => element('td', {}, cell))));
    }
    const swatch = element('i', { style: 'background:' + LIVE });
    const planned = picture.allocators.some(allocator => peak(allocator.planned)[0] > 0);
    const ofLive = several ? [mebibytes(live), '', peak(picture.live)[1].toLocaleString('en')] : [mebibytes(live), peak(picture.live)[1].toLocaleString('en')];
    legend.append(element('tr', {}, element('td'), element('td', {}, swatch), element('td', { class: 'text' }, 'live'),
      ...ofLive.map(cell => element('td', {}, cell)),
      element('td', { class: 'text', colspan: columns.length - ofLive.length }, planned ? 'thin lines: ' + picture.words.planned : '')));
  }
  reset() {
    Object.assign(this.view, { from: 0, to: Math.max(this.picture.ticks, 1), low: 0, high: 1 });
    this.draw();
  }
  // Limits the view to the picture.
  fit() {
    const { view, picture } = this;
    const ticks = Math.max(picture.ticks, 1);
    const span = Math.min(Math.max(view.to - view.from, Math.min(10, ticks)), ticks);
    view.from = Math.min(Math.max(view.from, 0), ticks - span);
    view.to = view.from + span;
    const part = Math.min(Math.max(view.high - view.low, 1e-6), 1);
    view.low = Math.min(Math.max(view.low, 0), 1 - part);
    view.high = view.low + part;
  }
  zoom(by, at) {
    const { view } = this, span = view.to - view.from, middle = view.from + span * at;
    view.from = middle - span * by * at;
    view.to = view.from + span * by;
    this.draw();
  }
  zoomAddresses(by, at) {
    const { view } = this, part = view.high - view.low, middle = view.low + part * at;
    view.low = middle - part * by * at;
    view.high = view.low + part * by;
    this.draw();
  }
  listen(chart) {
    const { canvas } = chart, { view } = this;
    const at = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener('wheel', event => {
      event.preventDefault();
      const [x, y] = at(event), by = Math.exp((event.deltaY || event.deltaX) / 400);
      if (event.shiftKey && chart === this.map) this.zoomAddresses(by, Math.min(Math.max(1 - (y - TOP) / chart.down, 0), 1));
      else this.zoom(by, Math.min(Math.max((x - LEFT) / chart.across, 0), 1));
    }, { passive: false });
    canvas.addEventListener('dblclick', () => this.reset());
    canvas.addEventListener('pointerdown', event => {
      this.grabbed = [...at(event), view.from, view.low];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointerup', () => { this.grabbed = null; });
    canvas.addEventListener('pointerleave', () => { this.pointed = null; this.hint.style.display = 'none'; this.draw(); });
    canvas.addEventListener('pointermove', event => {
      const [x, y] = at(event);
      if (this.grabbed) {
        const [startX, startY, from, low] = this.grabbed, span = view.to - view.from, part = view.high - view.low;
        view.from = from - (x - startX) / chart.across * span;
        view.to = view.from + span;
        if (chart === this.map) { view.low = low + (y - startY) / chart.down * part; view.high = view.low + part; }
        this.draw();
      }
      this.pointed = { chart, x, y };
      this.point(event);
    });
    canvas.addEventListener('keydown', event => {
      const span = view.to - view.from;
      const move = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
      if (move) { view.from += span * move; view.to += span * move; this.draw(); }
      else if (event.key === '+') this.zoom(0.5, 0.5);
      else if (event.key === '-') this.zoom(2, 0.5);
      else if (event.key === '0') this.reset();
      else return;
      event.preventDefault();
    });
  }
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = null; this.drawNow(); });
  }
  drawNow() {
    this.fit();
    this.drawMemory();
    this.drawMap();
    this.drawCalls();
    document.documentElement.dataset.drawn = Math.round(performance.now());
  }
  drawMemory() {
    const chart = this.memory, { picture, view } = this;
    const shown = picture.allocators.filter(allocator => allocator.shown);
    let [low, high] = [Infinity, 1];
    for (const { at, value } of [picture.live, ...shown.map(allocator => allocator.reserved)])
      for (let index = Math.max(last(at, view.from), 0); index < at.length && at[index] <= view.to; index++) {
        low = Math.min(low, value[index]);
        high = Math.max(high, value[index]);
      }
    const room = (high - low) * 0.04;
    [chart.low, chart.high] = this.zero.checked ? [0, high * 1.04] : [Math.max(low - room, 0), high + room || 1];
    chart.labels = this.names(shown);
    chart.begin();
    const { pen } = chart;
    chart.within(() => {
      const { at, value } = picture.live;
      pen.fillStyle = LIVE;
      let index = Math.max(last(at, view.from), 0);
      for (let x = LEFT; x < LEFT + chart.across && index < at.length; x++) {
        const until = chart.tick(x + 1);
        let most = at[index] < until ? value[index] : 0;
        while (index + 1 < at.length && at[index + 1] < until) most = Math.max(most, value[++index]);
        pen.fillRect(x, chart.y(most), 1, chart.y(chart.low) - chart.y(most));
      }
    });
    chart.axes(true, picture.words.tick);
    chart.names(this.ends(shown, 'reserved'));
    chart.within(() => {
      chart.steps(picture);
      for (const allocator of shown) {
        const end = allocator.refused ?? picture.ticks;
        chart.line(allocator.planned, end, allocator.colour, [], 1);
        chart.line(allocator.reserved, end, allocator.colour, allocator.dash, 2);
      }
    });
  }
  drawCalls() {
    const chart = this.calls, { picture } = this;
    // A packing has no driver calls.
    const none = picture.allocators.every(allocator => allocator.calls.value.length === 0);
    for (const part of [this.callsOver, chart.canvas]) part.style.display = none ? 'none' : '';
    if (none) return;
    const shown = picture.allocators.filter(allocator => allocator.shown);
    chart.low = 0;
    chart.high = Math.max(4, ...shown.map(allocator => allocator.calls.value.at(-1) ?? 0)) * 1.04;
    chart.labels = this.names(shown);
    chart.begin();
    chart.axes(false, picture.words.tick);
    chart.names(this.ends(shown, 'calls'));
    chart.within(() => {
      for (const allocator of shown)
        chart.line(allocator.calls, allocator.refused ?? picture.ticks, allocator.colour, allocator.dash, 2);
    });
  }
  drawMap() {
    const chart = this.map, { picture, view, chosen } = this;
    place(picture, chosen);
    this.title.textContent = 'Addresses over time: ' + chosen.name;
    chart.low = view.low * chosen.top;
    chart.high = view.high * chosen.top;
    chart.labels = this.memory.labels;
    chart.begin();
    const { pen, scale } = chart;
    const wide = Math.round(chart.across * scale), high = Math.round(chart.down * scale);
    if (wide < 1) return;
    const image = pen.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
    pixels.fill(NOTHING);
    const perTick = wide / (view.to - view.from), perByte = high / (chart.high - chart.low);
    const fill = (from, to, low, bytes, pixel, bordered) => {
      if (to < view.from || from > view.to || low + bytes < chart.low || low > chart.high) return;
      const left = Math.max(Math.floor((from - view.from) * perTick), 0);
      const right = Math.min(Math.max(Math.floor((to - view.from) * perTick), left + 1), wide);
      const top = Math.max(high - Math.floor((low + bytes - chart.low) * perByte), 0);
      const bottom = Math.min(Math.max(high - Math.floor((low - chart.low) * perByte), top + 1), high);
      const edge = bordered && right - left > 3 && bottom - top > 3;
      for (let row = top; row < bottom; row++) {
        const begin = row * wide + left, end = row * wide + right;
        if (edge && row === top) { pixels.fill(NOTHING, begin, end); continue; }
        pixels.fill(pixel, begin, end);
        if (edge) pixels[end - 1] = NOTHING;
      }
    };
    chosen.held.forEach(([from, to, , bytes, moved], index) => fill(from, to, chosen.heldLow[index], bytes, moved ? MOVED : FREE));
    const { from, to, bytes, id } = picture.blocks;
    for (let index = 0; index < chosen.address.length; index++)
      fill(from[index], to[index], chosen.low[index], bytes[index], BLOCKS[Math.imul(id[index], 0x9e3779b1) >>> 29], true);
    pen.putImageData(image, Math.round(LEFT * scale), Math.round(TOP * scale));
    chart.within(() => {
      chart.steps(picture);
      pen.strokeStyle = '#888';
      pen.setLineDash([4, 4]);
      for (const [low, top] of chosen.gaps) {
        const y = chart.y((low + top) / 2);
        pen.beginPath();
        pen.moveTo(LEFT, y);
        pen.lineTo(LEFT + chart.across, y);
        pen.stroke();
      }
      pen.setLineDash([]);
      if (chosen.refused !== null) {
        pen.fillStyle = '#b00020';
        pen.fillRect(chart.x(chosen.refused), TOP, 2, chart.down);
      }
      const { block } = this;
      if (block !== undefined && block < chosen.address.length) {
        pen.strokeStyle = INK;
        pen.lineWidth = 2;
        const x = chart.x(from[block]), y = chart.y(chosen.low[block] + bytes[block]);
        pen.strokeRect(x, y, chart.x(to[block]) - x, chart.y(chosen.low[block]) - y);
      }
    });
    pen.fillStyle = INK;
    chart.axes(true, picture.words.tick);
  }
  // Names beside lines are for pictures with several lines.
  names(shown) { return this.picture.allocators.length > 1 ? shown.map(allocator => allocator.name) : []; }
  ends(shown, figure) {
    return shown.map(({ name, colour, [figure]: line }) => ({ name, colour, value: line.value[Math.max(last(line.at, this.view.to), 0)] ?? 0 }));
  }
  // Shows a hint about the point under the pointer.
  point(event) {
    const { chart, x, y } = this.pointed, { picture, hint } = this;
    const inside = x >= LEFT && x <= LEFT + chart.across && y >= TOP && y <= TOP + chart.down;
    const lines = !inside ? [] : chart === this.map ? this.under(chart.tick(x), chart.value(y)) : this.at(chart, Math.floor(chart.tick(x)));
    hint.textContent = lines.join('\n');
    hint.style.display = lines.length ? 'block' : 'none';
    hint.style.left = Math.min(event.clientX + 14, window.innerWidth - hint.offsetWidth - 8) + 'px';
    hint.style.top = Math.min(event.clientY + 14, window.innerHeight - hint.offsetHeight - 8) + 'px';
    this.draw();
  }
  at(chart, tick) {
    const { picture } = this;
    const now = ({ at, value }) => { const index = last(at, tick); return index < 0 ? null : value[index]; };
    const lines = [picture.words.tick + ' ' + tick.toLocaleString('en'), 'live ' + size(now(picture.live) ?? 0)];
    for (const allocator of picture.allocators.filter(allocator => allocator.shown)) {
      const planned = now(allocator.planned);
      lines.push(chart === this.calls ? `${allocator.name}: ${now(allocator.calls) ?? 0} calls`
        : `${allocator.name}: ${size(now(allocator.reserved) ?? 0)}` + (planned === null ? '' : `, ${picture.words.planned} ${size(planned)}`));
    }
    return lines;
  }
  under(tick, where) {
    const { picture, chosen } = this, { from, to, bytes, id, stream } = picture.blocks, { tick: word } = picture.words;
    this.block = undefined;
    for (let index = 0; index < chosen.address.length; index++)
      if (from[index] <= tick && tick < to[index] && chosen.low[index] <= where && where < chosen.low[index] + bytes[index]) {
        this.block = index;
        const step = last(picture.stepsAt, from[index]);
        return [
          `block ${id[index]}: ${size(bytes[index])} (${bytes[index]} bytes)`,
          `${word} ${from[index]} to ${to[index] < picture.ticks ? to[index] : 'the end'}`,
          step < 0 ? 'before the first step' : `step ${picture.steps[step][1]}`,
          stream?.[index] == null ? 'stream: not in the trace' : `stream ${stream[index]}`,
          `address 0x${chosen.address[index].toString(16)}`,
        ];
      }
    for (let index = chosen.held.length - 1; index >= 0; index--) {
      const [begin, end, address, length, moved] = chosen.held[index];
      if (begin <= tick && tick < end && chosen.heldLow[index] <= where && where < chosen.heldLow[index] + length)
        return [
          'held and free', `${size(length)} held from ${word} ${begin} to ${end < picture.ticks ? end : 'the end'}`,
          ...(moved ? [`${size(moved)} moved at ${word} ${begin}`] : []), `address 0x${address.toString(16)}`,
        ];
    }
    return [];
  }
}

const sources = [...document.querySelectorAll('script[type="application/json"]')];
if (sources.length) new Explorer(document.getElementById('pictures'), sources);
})();
