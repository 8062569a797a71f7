// Layout and drawing of the nodes' tiles: one cell per GPU, filled from below by the booked part, and over that the
// used part.

import { MARK } from './store.js';

const SIZES = [30, 26, 22, 18, 15, 12, 10, 8, 6, 5, 4, 3]; // of a cell, in px
const LABELLED_FROM = 15;
const LABEL_HEIGHT = 16;
const HEADING_HEIGHT = 42; // with its margin
const COLOURS = ['free', 'booked', 'used', 'over', 'fragment', 'error', 'stale', 'card', 'muted'];

/** The theme's colours, from the style sheet. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Lay out groups of nodes with the largest cells that fit in the width and height in px. */
export function layout(groups, width, maxHeight) {
  const most = Math.max(0, ...groups.flatMap((group) => group.nodes.map((node) => node.cells.length)));
  for (const size of SIZES) {
    const placed = groups.map((group) => place(group, width, size));
    const height = placed.reduce((sum, group) => sum + group.height + HEADING_HEIGHT, 0);
    if (height <= maxHeight || size === SIZES.at(-1) || !most) return placed;
  }
}

function place(group, width, size) {
  const gap = size >= 8 ? 2 : size >= 5 ? 1 : 0;
  const space = size >= 12 ? 14 : size >= 6 ? 6 : 3; // between tiles
  const labelled = size >= LABELLED_FROM;
  const top = labelled ? LABEL_HEIGHT : 0;
  const most = Math.max(...group.nodes.map((node) => node.cells.length));
  const columns = most <= 4 ? most : most <= 16 ? Math.ceil(most / 2) : 16;
  const longest = labelled ? Math.min(Math.max(...group.nodes.map((node) => node.node.length)), 18) : 0;
  const tileWidth = Math.max(columns * (size + gap) - gap, Math.ceil(longest * 6.4));
  const tileHeight = top + Math.ceil(most / columns) * (size + gap) - gap;
  const perRow = Math.max(1, Math.floor((width + space) / (tileWidth + space)));
  const rows = Math.ceil(group.nodes.length / perRow);
  const height = rows * (tileHeight + space) - space;
  return { ...group, size, gap, space, top, columns, tileWidth, tileHeight, perRow, height };
}

/** Left and upper edge of a tile. */
export function cornerOf(group, index) {
  const x = (index % group.perRow) * (group.tileWidth + group.space);
  return [x, Math.floor(index / group.perRow) * (group.tileHeight + group.space)];
}

/** Index of the tile at a point, and of the GPU in it; -1 for none. */
export function at(group, x, y) {
  const column = Math.floor(x / (group.tileWidth + group.space));
  const index = Math.floor(y / (group.tileHeight + group.space)) * group.perRow + column;
  if (column < 0 || column >= group.perRow || !group.nodes[index]) return [-1, -1];
  const [left, upper] = cornerOf(group, index);
  const step = group.size + group.gap;
  const [column2, row2] = [Math.floor((x - left) / step), Math.floor((y - upper - group.top) / step)];
  const gpu = row2 * group.columns + column2;
  return [index, column2 < group.columns && row2 >= 0 && group.nodes[index].cells[gpu] ? gpu : -1];
}

/** Redraw one tile. */
export function drawTile(context, group, index, colour) {
  const node = group.nodes[index];
  const [left, upper] = cornerOf(group, index);
  context.fillStyle = colour.card;
  context.fillRect(left, upper, group.tileWidth, group.tileHeight);
  if (group.top) {
    context.fillStyle = node.setAside ? colour.error : colour.muted;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'top';
    context.fillText(shortened(node.node), left, upper + 1);
  }
  const step = group.size + group.gap;
  node.cells.forEach((cell, number) => {
    const x = left + (number % group.columns) * step;
    drawCell(context, cell, x, upper + group.top + Math.floor(number / group.columns) * step, group.size, colour, node.slices);
  });
}

const shortened = (name) => (name.length > 18 ? `${name.slice(0, 17)}…` : name);

function drawCell(context, [booked, used, marks], x, y, size, colour, slices = 0) {
  const box = (fill, from, to) => {
    context.fillStyle = fill;
    context.fillRect(x, y + size - to, size, to - from);
  };
  const high = (percent) => (percent > 0 ? Math.max(1, Math.round((size * Math.min(percent, 100)) / 100)) : 0);
  if (marks & MARK.error) {
    box(colour.error, 0, size);
    if (size >= 8) cross(context, x, y, size, colour.card);
    return;
  }
  box(colour.free, 0, size);
  if (marks & MARK.fragment) hollow(context, x, y, size, colour);
  const [bookedHigh, usedHigh] = [high(booked), high(marks & MARK.unmanaged ? Math.max(used, 40) : used)];
  if (bookedHigh) box(colour.booked, 0, bookedHigh);
  if (usedHigh) box(colour.used, 0, Math.min(usedHigh, bookedHigh));
  if (usedHigh > bookedHigh) box(colour.over, bookedHigh, usedHigh);
  if (marks & MARK.stale) hatch(context, x, y, size, colour.stale);
  if (marks & MARK.reserved) dashed(context, x, y, size, colour);
  if (marks & MARK.mig) notch(context, x, y, size, colour.card);
  if (slices > 1 && size >= 3 * slices) for (let cut = 1; cut < slices; cut++) box(colour.card, Math.round((size * cut) / slices), Math.round((size * cut) / slices) + 1);
}

/** An outline: free, but on a node in use. Small cells are filled with its colour. */
function hollow(context, x, y, size, colour) {
  context.fillStyle = colour.fragment;
  context.fillRect(x, y, size, size);
  const border = size >= 15 ? 2 : 1;
  if (size < 6) return;
  context.fillStyle = colour.card;
  context.fillRect(x + border, y + border, size - 2 * border, size - 2 * border);
}

/** A dashed border: reserved for a pod that is not bound yet. */
function dashed(context, x, y, size, colour) {
  if (size < 6) return;
  context.save();
  context.strokeStyle = colour.used;
  context.lineWidth = size >= 15 ? 2 : 1;
  context.setLineDash([size / 6, size / 6]);
  const inset = context.lineWidth / 2;
  context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  context.restore();
}

/** A cut corner: a MIG device. */
function notch(context, x, y, size, colour) {
  const cut = Math.max(2, size * 0.34);
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x + size - cut, y);
  context.lineTo(x + size, y);
  context.lineTo(x + size, y + cut);
  context.fill();
}

function cross(context, x, y, size, colour) {
  const inset = size * 0.28;
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1.5, size / 10);
  context.beginPath();
  context.moveTo(x + inset, y + inset);
  context.lineTo(x + size - inset, y + size - inset);
  context.moveTo(x + size - inset, y + inset);
  context.lineTo(x + inset, y + size - inset);
  context.stroke();
}

function hatch(context, x, y, size, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let offset = -size; offset < size; offset += 4) {
    context.moveTo(x + offset, y + size);
    context.lineTo(x + offset + size, y);
  }
  context.stroke();
  context.restore();
}
