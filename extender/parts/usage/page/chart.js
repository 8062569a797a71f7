// A stacked chart over time, read by mouse or arrow keys.

import { el } from '../../dom.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 1000;
const HEIGHT = 100;

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/**
 * The chart. Steps are {begins, ends, amounts, words}: Unix times, an amount for each kind, and a description. `kinds`
 * are CSS classes of the amounts, from below; `most` is the end of the axis; `say` is called with the selected step, and
 * with null when none is.
 */
export function chart({ label, from, until, steps, kinds, most, say }) {
  const x = (time) => (WIDTH * Math.min(Math.max(time - from, 0), until - from)) / (until - from);
  const picture = shape('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  for (const line of [0, HEIGHT / 2]) picture.append(shape('path', { class: 'grid', d: `M0 ${line}H${WIDTH}` }));
  kinds.forEach((kind, number) => picture.append(shape('path', { class: kind, d: outline(steps, number, x, most) })));
  const mark = shape('rect', { class: 'mark', y: 0, height: HEIGHT, width: 0 });
  picture.append(mark);
  const made = el(
    'div',
    {
      class: 'chart',
      role: 'slider',
      tabindex: 0,
      'aria-label': label,
      'aria-valuemin': 0,
      'aria-valuemax': Math.max(steps.length - 1, 0),
    },
    picture,
  );
  let at = steps.length - 1;
  const tell = () => {
    made.setAttribute('aria-valuenow', Math.max(at, 0));
    made.setAttribute('aria-valuetext', steps[at]?.words ?? 'no data for that time');
  };
  const look = (number) => {
    at = number;
    const { begins, ends } = steps[at];
    mark.setAttribute('x', x(begins));
    mark.setAttribute('width', x(ends) - x(begins));
    tell();
    say(steps[at]);
  };
  const leave = () => {
    mark.setAttribute('width', 0);
    say(null);
  };
  tell();
  made.addEventListener('keydown', (event) => {
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined || !steps.length) return;
    event.preventDefault();
    look(Math.min(Math.max(to, 0), steps.length - 1));
  });
  made.addEventListener('focus', () => steps.length && made.matches(':focus-visible') && look(at));
  made.addEventListener('blur', leave);
  made.addEventListener('pointermove', (event) => {
    const { left, width } = made.getBoundingClientRect();
    const time = from + ((until - from) * (event.clientX - left)) / width;
    const found = steps.findIndex(({ begins, ends }) => begins <= time && time < ends);
    if (found >= 0) look(found);
    else leave();
  });
  made.addEventListener('pointerleave', leave);
  return made;
}

/** The area of a kind above those below it, step by step. */
function outline(steps, kind, x, most) {
  const y = (amount) => (HEIGHT * (1 - amount / (most || 1))).toFixed(3);
  const parts = steps.map(({ begins, ends, amounts }) => {
    const below = amounts.slice(0, kind).reduce((sum, amount) => sum + amount, 0);
    if (!amounts[kind]) return '';
    return `M${x(begins).toFixed(2)} ${y(below)}V${y(below + amounts[kind])}H${x(ends).toFixed(2)}V${y(below)}Z`;
  });
  return parts.join('');
}
