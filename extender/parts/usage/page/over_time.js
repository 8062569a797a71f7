// How many GPUs were booked, used, free, stranded and out of use, step by step.

import { panelAddress, say } from '../../address.js';
import { chart } from './chart.js';
import { ask, el, figure, plural, stamp, table } from '../../dom.js';

const WINDOWS = { '1h': ['1 h', 3600], '24h': ['24 h', 86400], '7d': ['7 d', 604800], '30d': ['30 d', 2592000] };
const STATES = { used: 'used', booked: 'booked', stranded: 'stranded', free: 'free', sick: 'out of use' };
const EVERY_MS = 60000;
const SOON_MS = 5000;

/** Fill an element, and keep it current; returns a function that shows a query: #usage?since=7d&by=namespace. */
export function showOverTime(root) {
  const shown = { since: '', by: 'state', told: null, of: '', fault: '', number: 0 };
  const buttons = el('div', { class: 'choices', role: 'group', 'aria-label': 'Usage over time' });
  const view = el('div');
  root.replaceChildren(buttons, view);

  const choose = (name, value) => {
    shown[name] = value;
    say(panelAddress('usage', { since: shown.since || '24h', by: shown.by === 'state' ? '' : shown.by }));
    if (name === 'since') load();
    draw();
  };
  const choice = (name, value, words) =>
    el('button', { type: 'button', class: 'quiet', 'aria-pressed': String((shown[name] || '24h') === value), click: () => choose(name, value), 'data-key': value }, words);

  const toggle = () => {
    const pressed = shown.by === 'namespace';
    const click = () => choose('by', pressed ? 'state' : 'namespace');
    return el('button', { type: 'button', class: 'quiet', 'aria-pressed': String(pressed), click, 'data-key': 'by' }, 'By namespace');
  };

  function draw() {
    const key = buttons.contains(document.activeElement) ? document.activeElement.dataset.key : '';
    buttons.replaceChildren(
      ...Object.entries(WINDOWS).map(([since, [words]]) => choice('since', since, words)),
      el('span', { class: 'grow' }),
      toggle(),
    );
    buttons.querySelector(`[data-key="${key}"]`)?.focus();
    const open = view.querySelector('details')?.open;
    if (shown.told) view.replaceChildren(...drawn(shown, open));
    else view.replaceChildren(el('p', { class: shown.fault ? 'fault' : 'hint' }, shown.fault || 'loading'));
  }

  async function load() {
    const number = ++shown.number;
    let told = null;
    let fault = '';
    try {
      told = await ask(`usage/over-time?since=${shown.since || '24h'}`);
      // Less than an hour of data is shown in the hour's window.
      if (!shown.since && told.source === 'kerf' && told.until - (told.knownSince ?? told.until) < 3600) {
        if (number === shown.number) shown.since = '1h';
        told = await ask('usage/over-time?since=1h');
      }
    } catch (error) {
      fault = error.message;
    }
    if (number !== shown.number) return;
    if (told && !told.steps.length) setTimeout(load, SOON_MS);
    const of = shown.since || '24h';
    if (told?.steps.length) shown.since = of;
    Object.assign(shown, { told, fault, of });
    if (!view.matches(':focus-within, :hover')) draw(); // not while someone reads it
    else if (!view.querySelector('.chart') || view.dataset.of !== of) draw();
    view.dataset.of = of;
  }

  setInterval(() => !document.hidden && load(), EVERY_MS);
  document.addEventListener('visibilitychange', () => !document.hidden && load());
  load();
  draw();
  return (query) => {
    if (WINDOWS[query.get('since')]) shown.since = query.get('since');
    shown.by = query.get('by') === 'namespace' ? 'namespace' : 'state';
    load();
    draw();
  };
}

/** The elements for an answer. */
function drawn({ told, of, by }, open) {
  const [words, length] = WINDOWS[of];
  const from = told.until - length;
  const gpus = (step, name) => (step.seconds > 0 ? (3600 * step[`${name}GpuHours`]) / step.seconds : 0);
  const names = told.namespaces;
  const steps = told.steps.map((step) => {
    const booked = gpus(step, 'booked');
    const used = Math.min(gpus(step, 'used'), booked);
    const amounts =
      by === 'state'
        ? [used, booked - used, gpus(step, 'stranded'), gpus(step, 'free'), gpus(step, 'sick')]
        : step.bookedByNamespace.map((hours) => (step.seconds > 0 ? (3600 * hours) / step.seconds : 0));
    const ends = Math.min(step.at + told.stepSeconds, told.until);
    return { begins: step.at, ends, amounts, capacity: gpus(step, 'capacity'), words: `${when(step.at, ends)}: ${told_of(step, gpus, by, names, amounts)}` };
  });
  const most = Math.max(0, ...steps.map((step) => (by === 'state' ? step.capacity : step.amounts.reduce((sum, one) => sum + one, 0))));
  const mean = average(told.steps);
  const amounts = mean && names.map((_, number) => (3600 * mean.bookedByNamespace[number]) / mean.seconds);
  const summary = mean ? `On average ${told_of(mean, gpus, by, names, amounts)}` : 'No data for that time yet.';
  const said = el('p', { class: 'hint said' }, summary);
  const kinds = by === 'state' ? Object.keys(STATES) : names.map((name, number) => `name-${name === '(other)' ? 5 : number}`);
  return [
    el('div', { class: 'axis' }, el('span', {}, plural(+most.toFixed(1), 'GPU')), el('span', {}, by === 'state' ? 'all GPUs' : 'booked, by namespace')),
    chart({ label: `GPUs in the last ${words}, by time`, from, until: told.until, steps, kinds, most, say: (step) => (said.textContent = step ? step.words : summary) }),
    el('div', { class: 'axis' }, el('span', {}, stamp(from)), el('span', {}, 'now')),
    said,
    el('ul', { class: 'legend over-time' }, kinds.map((kind, number) => el('li', {}, el('span', { class: `key ${kind}` }), by === 'state' ? STATES[kind] : names[number]))),
    origin(told, from),
    asTable(told, steps, by, gpus, open),
  ].filter(Boolean);
}

/** The data's source, and since when there is data. */
function origin({ source, since, knownSince, note }, from) {
  if (source === 'prometheus') return el('p', { class: 'hint' }, since > from + 3600 ? `From Prometheus, since ${stamp(since)}.` : 'From Prometheus.');
  if (knownSince == null || knownSince <= from) return null;
  return el('p', { class: 'hint', title: note }, `Since ${stamp(knownSince)} (Kerf's start); set telemetry.url for older data.`);
}

function told_of(step, gpus, by, names, amounts) {
  const share = (name) => figure(gpus(step, name), 1);
  if (by === 'namespace') return names.map((name, number) => `${name} ${figure(amounts[number], 1)}`).join(', ') || 'nothing booked';
  const used = step.measuredGpuHours > 0 ? ` (${share('used')} used)` : '';
  return `${share('booked')} of ${plural(+gpus(step, 'capacity').toFixed(1), 'GPU')} booked${used}, ${share('free')} free, ${share('stranded')} stranded, ${share('sick')} out of use`;
}

/** The sum of all steps. */
function average(steps) {
  if (!steps.some((step) => step.seconds > 0)) return null;
  const sums = { bookedByNamespace: [] };
  for (const step of steps) {
    for (const [name, value] of Object.entries(step)) {
      if (typeof value === 'number') sums[name] = (sums[name] ?? 0) + value;
    }
    step.bookedByNamespace.forEach((hours, number) => (sums.bookedByNamespace[number] = (sums.bookedByNamespace[number] ?? 0) + hours));
  }
  return sums;
}

/** The same figures as a table, newest first; built when it is opened. */
function asTable(told, steps, by, gpus, open) {
  const made = el('details', { open }, el('summary', {}, 'As a table'));
  const fillIt = () => {
    if (!made.open || made.childElementCount > 1) return;
    const headings = by === 'state' ? ['From', 'GPUs', 'Booked', 'Used', 'Free', 'Stranded', 'Out of use'] : ['From', ...told.namespaces];
    const columns = ['capacity', 'booked', 'used', 'free', 'stranded', 'sick'];
    const rows = told.steps.map((step, number) => [
      stamp(step.at),
      ...(by === 'state' ? columns.map((name) => figure(gpus(step, name), 1)) : steps[number].amounts.map((amount) => figure(amount, 1))),
    ]);
    made.append(table('GPUs over time', headings, rows.reverse()));
  };
  made.addEventListener('toggle', fillIt);
  fillIt();
  return made;
}

const short = (time) => new Date(1000 * time).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });
const when = (begins, ends) => (ends - begins < 43200 ? `${stamp(begins)} to ${short(ends)}` : `${stamp(begins)} to ${stamp(ends)}`);
