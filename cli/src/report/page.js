// Draws the pictures of a page: memory, addresses and driver calls over time, from the JSON in the page.
// The rectangles of blocks are written as pixels of a canvas, so that 200,000 of them move smoothly.
'use strict';
(() => {
// Each has a contrast of at least 3 with both papers.
const COLOURS = ['#d55e00', '#2b7bbd', '#0c9068', '#b8609a', '#a17700', '#3b8fc2', '#808080', '#8c6d31'];
const DASHES = [[], [9, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 2], [14, 4], [6, 2, 2, 2]];
const LEFT = 84, TOP = 8, BOTTOM = 22;
// Width from which lines have labels beside their ends, and width of the strokes that lead to them.
const WIDE = 700, LEADER = 22;
// The colours of the page, light or dark. Pixels are little-endian numbers: alpha, blue, green, red.
const dark = matchMedia('screen and (prefers-color-scheme: dark)');
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
const UNITS = ['bytes', 'KiB', 'MiB', 'GiB'];
const DECIMALS = [0, 1, 1, 2];
// The unit of the page, which its table has as well.
const UNIT = Math.max(UNITS.indexOf(document.getElementById('pictures').dataset.unit), 0);
const sizeIn = (bytes, unit) => (bytes / 1024 ** unit).toLocaleString('en', { minimumFractionDigits: DECIMALS[unit], maximumFractionDigits: DECIMALS[unit] }) + ' ' + UNITS[unit];
const size = bytes => sizeIn(bytes, UNIT);
// Formats the size of one block, which may be far smaller than the memory.
const blockSize = bytes => sizeIn(bytes, Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), UNIT));
const deviceText = bytes => 'device ' + size(bytes);
const refusalText = bytes => 'refused ' + blockSize(bytes);
// Returns the distance of about `count` marks: 1, 2 or 5 times a power of ten.
const round = (span, count) => {
  const least = span / count, ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find(times => times * ten >= least * 0.9999) * ten;
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
    this.right = this.width >= WIDE && widest ? Math.min(widest, 200) + LEADER + 6 : 8;
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
  // Draws marks of sizes in the unit of the page, or in a smaller one where that would need many decimals; or of counts.
  axes(sizes, word) {
    const { pen, view } = this;
    pen.fillStyle = INK;
    pen.strokeStyle = GRID;
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    const span = this.high - this.low, count = this.height / 55;
    let unit = sizes ? UNIT : 0;
    while (unit && span / count < 0.01 * 1024 ** unit) unit--;
    const scale = 1024 ** unit, step = Math.max(round(span / scale, count), unit ? 0 : 1);
    const first = Math.ceil(this.low / scale / step), end = Math.floor(this.high / scale / step);
    for (let mark = first; mark <= end; mark++) {
      const value = mark * step * scale;
      const text = (mark * step).toLocaleString('en') + (sizes && mark === end ? ' ' + UNITS[unit] : '');
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(LEFT + this.across, y);
      pen.stroke();
      pen.fillText(text, LEFT - 6, y, LEFT - 8);
    }
    pen.textBaseline = 'top';
    const apart = Math.max(round(view.to - view.from, this.across / 110), 1);
    const begin = Math.ceil(view.from / apart) * apart;
    for (let tick = begin; tick <= view.to; tick += apart) {
      const text = tick === begin ? word + ' ' + tick.toLocaleString('en') : tick.toLocaleString('en');
      const half = pen.measureText(text).width / 2, x = this.x(tick);
      pen.textAlign = 'center';
      pen.fillText(text, Math.min(Math.max(x, LEFT + half), this.width - half), this.height - BOTTOM + 6);
    }
  }
  // Writes the name of each line beside its end, apart where lines lie on each other; a stroke leads to it.
  names(lines) {
    if (this.right < 20) return;
    const { pen } = this, x = LEFT + this.across;
    const ends = lines.map(line => ({ ...line, from: this.y(line.value), y: this.y(line.value) }));
    ends.sort((one, other) => one.y - other.y);
    const apart = 15;
    let least = TOP;
    for (const end of ends) least = (end.y = Math.max(end.y, least)) + apart;
    let most = TOP + this.down;
    for (const end of ends.reverse()) most = (end.y = Math.min(end.y, most)) - apart;
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    pen.fillStyle = INK;
    pen.lineWidth = 1;
    for (const { name, colour, from, y } of ends) {
      pen.strokeStyle = colour;
      pen.beginPath();
      pen.moveTo(x + 1, from);
      pen.lineTo(x + LEADER - 8, y);
      pen.lineTo(x + LEADER - 3, y);
      pen.stroke();
      pen.fillText(name, x + LEADER, y, this.right - LEADER - 2);
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
  // Draws a line at the size of the device, and a mark at each refused request. Text that would overlap is left out.
  limits(device, refusals) {
    const { pen, view } = this, end = LEFT + this.across;
    pen.fillStyle = INK;
    if (device !== null) {
      const y = Math.round(this.y(device)) + 0.5;
      pen.strokeStyle = INK;
      pen.lineWidth = 1;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(end, y);
      pen.stroke();
      pen.setLineDash([]);
      pen.textAlign = 'left';
      pen.textBaseline = 'top';
      pen.fillText(deviceText(device), LEFT + 4, y + 3);
    }
    pen.textBaseline = 'bottom';
    let free = LEFT;
    for (const [tick, bytes] of refusals) {
      if (tick < view.from || tick > view.to) continue;
      const x = Math.min(this.x(tick), end - 2), text = refusalText(bytes), wide = pen.measureText(text).width;
      pen.fillStyle = '#b00020';
      pen.fillRect(x, TOP, 2, this.down);
      const left = x + 6 + wide < end ? x + 6 : x - 4 - wide;
      if (left < free) continue;
      pen.textAlign = 'left';
      pen.fillStyle = INK;
      pen.fillText(text, left, TOP + this.down - 4);
      free = left + wide + 8;
    }
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
    this.legend = element('p', { class: 'key' });
    this.zero = element('input', { type: 'checkbox', checked: '' });
    this.zero.onchange = () => this.draw();
    this.shownMap = element('select', { 'aria-label': 'whose addresses are shown' });
    this.shownMap.onchange = () => {
      this.chosen = this.picture.allocators[this.shownMap.value];
      Object.assign(this.view, { low: 0, high: 1 });
      this.draw();
    };
    const which = element('select', { 'aria-label': 'what is shown' },
      ...sources.map((source, index) => element('option', { value: index }, source.dataset.name)));
    which.onchange = () => this.open(sources[which.value]);
    const button = (label, title, act) => {
      const made = element('button', { type: 'button', title }, label);
      made.onclick = act;
      return made;
    };
    this.keys = element('p', { class: 'key' });
    home.append(
      element('p', { class: 'controls' }, ...(sources.length > 1 ? [which, ' '] : []),
        button('+', 'zoom in', () => this.zoom(0.5, 0.5)), ' ',
        button('\u2212', 'zoom out', () => this.zoom(2, 0.5)), ' ',
        button('all', 'show all', () => this.reset()), ' ',
        element('label', {}, this.zero, 'memory from 0'), ' ',
        element('small', {}, 'wheel: zoom in time, with Shift in addresses; drag: move; double click: all')),
      element('h3', {}, 'Memory over time'), this.legend, this.memory.canvas,
      element('h3', {}, 'Addresses over time ', this.shownMap), this.map.canvas, this.keys,
      this.callsOver, this.calls.canvas, this.hint);
    for (const chart of [this.memory, this.map, this.calls]) this.listen(chart);
    new ResizeObserver(() => this.draw()).observe(home);
    const repaint = () => {
      paint();
      this.fillLegend();
      this.drawNow();
    };
    dark.addEventListener('change', repaint);
    this.open(sources[0]);
  }
  key() {
    const css = pixel => `rgb(${pixel & 255},${pixel >> 8 & 255},${pixel >> 16 & 255})`;
    const moves = this.picture.allocators.some(allocator => allocator.held.some(piece => piece[4]));
    const mark = (pixel, text) => element('span', {}, element('i', { style: 'background:' + css(pixel) }), text);
    return [
      element('span', {}, ...BLOCKS.slice(0, 4).map(pixel => element('i', { style: 'background:' + css(pixel) })), 'blocks'),
      mark(FREE, 'held and free'), ...(moves ? [mark(MOVED, 'held and free, some of it moved here')] : []), mark(NOTHING, 'not held'),
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
  // Fills the key of the lines, in which each can be hidden, and the choice of the map.
  fillLegend() {
    const { picture, legend } = this, { allocators, words } = picture;
    const [live] = peak(picture.live);
    const several = allocators.length > 1;
    const stroke = (colour, dash, width) => {
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('width', 30);
      svg.setAttribute('height', 8);
      svg.innerHTML = `<path d="M0 4H30" stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dash}"/>`;
      return svg;
    };
    legend.replaceChildren(...allocators.map(allocator => {
      const line = element('input', { type: 'checkbox' });
      line.checked = allocator.shown;
      line.onchange = () => { allocator.shown = line.checked; this.draw(); };
      return element('label', {
        'data-allocator': allocator.name, 'data-peak-reserved': peak(allocator.reserved)[0], 'data-peak-live': live,
        'data-calls': allocator.calls.value.at(-1) ?? 0, 'data-blocks': allocator.address.length, 'data-planned': peak(allocator.planned)[0],
      }, ...(several ? [line] : []), stroke(allocator.colour, allocator.dash, 2.5), allocator.name);
    }));
    const planned = allocators.find(allocator => peak(allocator.planned)[0] > 0);
    if (planned) legend.append(element('span', {}, stroke(planned.colour, [], 1), words.planned));
    legend.append(element('span', {}, element('i', { style: 'background:' + LIVE }), 'live'));
    this.keys.replaceChildren(...this.key());
    this.shownMap.replaceChildren(...allocators.map(({ name }, index) => element('option', { value: index }, name)));
    this.shownMap.value = allocators.indexOf(this.chosen);
    this.shownMap.style.display = several ? '' : 'none';
    const peaks = allocators.map(({ name, reserved }) => `${name} ${size(peak(reserved)[0])}`);
    const marks = [...(picture.device === null ? [] : [deviceText(picture.device)]),
      ...picture.refusals.slice(0, 10).map(([tick, bytes]) => `${refusalText(bytes)} after ${words.tick} ${tick}`)];
    this.memory.canvas.setAttribute('aria-label', [`Memory over time. Peaks: ${peaks.join(', ')}; live ${size(live)}`, ...marks].join('; '));
    this.calls.canvas.setAttribute('aria-label', 'Driver calls so far: ' + allocators.map(({ name, calls }) => `${name} ${calls.value.at(-1) ?? 0}`).join(', '));
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
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => { this.grabbed = null; });
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
    // A device that is far larger than the memory would flatten the lines.
    const device = picture.device !== null && picture.device <= high * 1.5 ? picture.device : null;
    high = Math.max(high, device ?? 0);
    const room = (high - low) * 0.04;
    [chart.low, chart.high] = this.zero.checked ? [0, high * 1.04] : [Math.max(low - room, 0), high + room || 1];
    chart.labels = this.names(shown);
    chart.begin();
    const { pen } = chart;
    chart.within(() => {
      const { at, value } = picture.live;
      // One shape, so that a printer shows no seams.
      pen.fillStyle = LIVE;
      pen.beginPath();
      pen.moveTo(LEFT, chart.y(chart.low));
      let index = Math.max(last(at, view.from), 0);
      for (let x = LEFT; x < LEFT + chart.across && index < at.length; x++) {
        const until = chart.tick(x + 1);
        let most = at[index] < until ? value[index] : 0;
        while (index + 1 < at.length && at[index + 1] < until) most = Math.max(most, value[++index]);
        pen.lineTo(x, chart.y(most));
        pen.lineTo(x + 1, chart.y(most));
      }
      pen.lineTo(LEFT + chart.across, chart.y(chart.low));
      pen.fill();
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
      chart.limits(device, picture.refusals);
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
    chart.canvas.setAttribute('aria-label', `Addresses over time of ${chosen.name}: ${chosen.address.length} blocks, each a rectangle`);
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
          `block ${id[index]}: ${blockSize(bytes[index])} (${bytes[index]} bytes)`,
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
          'held and free', `${blockSize(length)} held from ${word} ${begin} to ${end < picture.ticks ? end : 'the end'}`,
          ...(moved ? [`${blockSize(moved)} moved at ${word} ${begin}`] : []), `address 0x${address.toString(16)}`,
        ];
    }
    return [];
  }
}

const sources = [...document.querySelectorAll('script[type="application/json"]')];
if (sources.length) new Explorer(document.getElementById('pictures'), sources);
})();
