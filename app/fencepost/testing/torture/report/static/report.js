"use strict";

// Each timeline zooms in time only: its viewBox changes, and --k keeps marks and texts as wide as they were.

const NARROWEST = 20;
const ZOOM = 1.5;
const STEP = 0.2;

const HALO = 14;

// The same curve as arrow_path in timeline.py.
function arrowPath(x1, y1, x2, y2, unit) {
  if (y1 === y2) {
    const side = 24 * unit;
    return `M${x1} ${y1 - HALO}C${x1 + side} ${y1 - 52} ${x2 - side} ${y1 - 52} ${x2} ${y2 - HALO - 7}`;
  }
  const start = x1 + HALO * unit;
  const end = x2 - (HALO + 7) * unit;
  const bend = Math.max(60 * unit, (end - start) / 2);
  return `M${start} ${y1}C${start + bend} ${y1} ${end - bend} ${y2} ${end} ${y2}`;
}

class Timeline {
  constructor(svg) {
    this.svg = svg;
    this.all = Number(svg.dataset.all);
    [this.x, , this.width, this.height] = svg.getAttribute("viewBox").split(" ").map(Number);
    this.labels = [...svg.querySelectorAll(".t")].map((group) => ({
      group,
      x: Number(group.dataset.x),
      end: "end" in group.dataset ? Number(group.dataset.end) : null,
      // Estimated for pages without a script; fonts and bold digits differ.
      pixels: Math.max(Number(group.dataset.w), group.querySelector("text").getBBox().width + 4),
      track: group.dataset.track,
      first: Number(group.dataset.first),
    }));
    this.arrows = [...svg.querySelectorAll(".arrow")].map((path) => ({ path, ends: ["x1", "y1", "x2", "y2"].map((end) => Number(path.dataset[end])) }));
    this.labels.sort((a, b) => a.first - b.first);
  }

  show(x, width) {
    this.width = Math.min(Math.max(width, Math.min(NARROWEST, this.all)), this.all);
    this.x = Math.min(Math.max(x, 0), this.all - this.width);
    this.svg.setAttribute("viewBox", [this.x, 0, this.width, this.height].map((n) => +n.toFixed(2)).join(" "));
    this.place();
  }

  // Zooms around a place, given as a share of what is visible.
  zoom(factor, share = 0.5) {
    const width = Math.min(Math.max(this.width * factor, NARROWEST), this.all);
    this.show(this.x + (this.width - width) * share, width);
  }

  move(share) {
    this.show(this.x + this.width * share, this.width);
  }

  // Shows the labels that have room, those of violations first.
  place() {
    const pixels = this.svg.clientWidth || 1;
    const k = this.width / pixels;
    this.svg.style.setProperty("--k", String(k));
    for (const { path, ends } of this.arrows) path.setAttribute("d", arrowPath(...ends, k));
    const taken = new Map();
    for (const label of this.labels) {
      const spot = this.spot(label, k);
      const track = taken.get(label.track) ?? [];
      const fits = spot !== null && !track.some(([from, to]) => spot.from < to && from < spot.to);
      label.group.classList.toggle("off", !fits);
      if (fits) {
        track.push([spot.from, spot.to]);
        taken.set(label.track, track);
        label.group.setAttribute("transform", `translate(${spot.x.toFixed(2)} 0)`);
      }
    }
  }

  // Where a label is, in units, and which pixels it takes; null where it has no place.
  spot(label, k) {
    if (label.end === null) {
      const middle = (label.x - this.x) / k;
      const inside = label.x >= this.x && label.x <= this.x + this.width;
      return inside ? { x: label.x, from: middle - label.pixels / 2, to: middle + label.pixels / 2 } : null;
    }
    const x = Math.max(label.x, this.x);
    const end = Math.min(label.end, this.x + this.width);
    const from = (x - this.x) / k;
    return (end - x) / k >= label.pixels ? { x, from, to: from + label.pixels } : null;
  }

  // Where the marked operation is that is nearest to the middle of the view, from 0 to 1; the middle where none is in view.
  marked() {
    const box = this.svg.getBoundingClientRect();
    const places = [...this.svg.querySelectorAll(".halo")].map((halo) => {
      const mark = halo.getBoundingClientRect();
      return ((mark.left + mark.right) / 2 - box.left) / box.width;
    });
    const seen = places.filter((place) => place >= 0 && place <= 1);
    return seen.sort((a, b) => Math.abs(a - 0.5) - Math.abs(b - 0.5))[0] ?? 0.5;
  }

  do(action) {
    const actions = {
      in: () => this.zoom(1 / ZOOM, this.marked()),
      out: () => this.zoom(ZOOM),
      left: () => this.move(-STEP),
      right: () => this.move(STEP),
      all: () => this.show(0, this.all),
    };
    actions[action]();
  }
}

const KEYS = { "+": "in", "=": "in", "-": "out", "−": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all" };

const timelines = new Map();
const violations = [...document.querySelectorAll(".violation")];
const keys = document.getElementById("keys");

function timelineOf(element) {
  const svg = element?.closest?.(".chart") ?? element?.closest?.("article")?.querySelector(".chart");
  return svg ? timelines.get(svg.id) : undefined;
}

// The timeline that has the focus, or else the first one that is on the screen.
function current() {
  const focused = timelineOf(document.activeElement);
  if (focused) return focused;
  return [...timelines.values()].find(({ svg }) => {
    const box = svg.getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  });
}

function goToViolation(step) {
  if (violations.length === 0) return;
  const now = violations.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 ? 0 : violations.length - 1) : (now + step + violations.length) % violations.length;
  violations[next].focus();
  violations[next].closest("article").scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.key === "?") {
    keys.showModal();
  } else if (event.key === "n" || event.key === "p") {
    goToViolation(event.key === "n" ? 1 : -1);
  } else if (event.key in KEYS) {
    // Home and the arrows belong to the page, or to a table that scrolls, unless a timeline has the focus.
    const inTimeline = document.activeElement?.closest?.(".chart, .buttons");
    const timeline = event.key.length > 1 && !inTimeline ? undefined : current();
    if (!timeline) return;
    timeline.do(KEYS[event.key]);
  } else {
    return;
  }
  event.preventDefault();
}

function followMouse(timeline) {
  const { svg } = timeline;
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      timeline.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, (event.clientX - box.left) / box.width);
    },
    { passive: false },
  );
  svg.addEventListener("dblclick", (event) => {
    const box = svg.getBoundingClientRect();
    timeline.zoom(event.shiftKey ? ZOOM : 1 / ZOOM, (event.clientX - box.left) / box.width);
  });
  let last = null;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    last = event.clientX;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (last === null) return;
    timeline.move((last - event.clientX) / svg.clientWidth);
    last = event.clientX;
  });
  for (const over of ["pointerup", "pointercancel"]) {
    svg.addEventListener(over, () => {
      last = null;
    });
  }
}

function placeAll() {
  for (const timeline of timelines.values()) timeline.place();
  for (const heat of document.querySelectorAll(".heat")) {
    heat.style.setProperty("--k", String(heat.viewBox.baseVal.width / (heat.clientWidth || 1)));
  }
}

document.documentElement.classList.add("live");
for (const svg of document.querySelectorAll(".chart")) {
  const timeline = new Timeline(svg);
  timelines.set(svg.id, timeline);
  followMouse(timeline);
}
for (const violation of violations) {
  violation.addEventListener("focus", () => {
    if (violation.matches(":focus-visible")) timelineOf(violation).show(Number(violation.dataset.x), Number(violation.dataset.width));
  });
}
for (const button of document.querySelectorAll("button[data-do]")) {
  button.addEventListener("click", () => timelines.get(button.dataset.for).do(button.dataset.do));
}
document.addEventListener("keydown", onKey);
window.addEventListener("resize", placeAll);
placeAll();
