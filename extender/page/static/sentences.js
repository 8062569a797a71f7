// Remedies for pending pods, and the parts of scores.

import { el, table } from './dom.js';
import { roomLink } from './room.js';

const MAX_COMPARED = 3;

/** Collapsed details. */
export const details = (title, children) => el('details', { class: 'folded' }, el('summary', {}, title), children);

/** A pod's remedies, with commands to copy. */
export function remedies({ pod, remedies: found }) {
  if (!found.length) return null;
  return el('section', {}, el('h3', {}, 'What helps'), el('ul', { class: 'fits' }, found.map((one) => el('li', {}, remedy(one, pod)))));
}

/** One remedy; for moving pods, with a link that plans the moves. */
export function remedy({ kind, text, command }, pod) {
  return [text, kind === 'move' && [': ', roomLink(pod)], command && [' ', el('code', {}, command), ' ', copy(command)]].flat();
}

function copy(command) {
  const button = el('button', { type: 'button', class: 'copy', 'aria-label': `Copy ${command}` }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling); // not a secure context: selected, for copying by hand
    }
  });
  return button;
}

/** Parts of the scores of the few best candidates. */
export function scores({ scoreTerms, nodes }) {
  const best = nodes.filter((node) => node.scoreTerms).sort((one, other) => one.rank - other.rank).slice(0, MAX_COMPARED);
  if (!best.length) return null;
  const decimals = decimalsOf(best.map((node) => node.score));
  const shown = (value) => +value.toFixed(decimals) || 0; // no -0
  const rows = Object.entries(scoreTerms)
    .map(([name, meaning]) => [`${name}: ${meaning}`, ...best.map((node) => shown(node.scoreTerms[name]))])
    .filter(([, ...adds]) => adds.some((value) => value)); // parts that round to 0 everywhere are left out
  return el(
    'section',
    {},
    el('h3', {}, 'Parts of the score'),
    table('Parts of the score', ['Part', ...best.map((node) => node.node)], [...rows, ['score', ...best.map((node) => shown(node.score))]]),
  );
}

/** Decimals that distinguish all different scores, as in `kerf explain`. */
function decimalsOf(values) {
  const different = new Set(values).size;
  let decimals = 2;
  while (decimals < 9 && new Set(values.map((value) => value.toFixed(decimals))).size < different) decimals += 1;
  return decimals;
}
